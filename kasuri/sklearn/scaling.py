"""Scaling: columns of mean 0 and standard deviation 1, and the way back to their own unit."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def standardise(train: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(mean, standard deviation, all tensors with both taken out as float32), column by column.

    Statistics are computed in float64. A column that is constant over `train` is only centred.

    Args:
        train: (N, D), the rows that the statistics come from.
        others: (M, D) each.

    Examples:
        >>> mean, scale, (train, test) = standardise(torch.tensor([[1.0], [3.0]]), torch.ones(1, 1))
        >>> mean, scale, test
        (tensor([2.], dtype=torch.float64), tensor([1.], dtype=torch.float64), tensor([[-1.]]))
    """
    mean, scale = _statistics(train)
    return mean, scale, [((part.double() - mean) / scale).float() for part in (train, *others)]


def _statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.double()
    scale = rows.std(0, correction=0)
    # asked for by comparison: rounding can give a constant column a deviation above 0
    scale[(rows == rows[:1]).all(0)] = 1.0
    return rows.mean(0), scale


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x - zero) / unit, column by column, in float64.

    Args:
        zero: (columns,).
        unit: (columns,), positive; 1 for a constant column.

    Examples:
        >>> scaling = Scaling.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> scaling(torch.tensor([[4.0, 6.0]]))
        tensor([[2., 1.]], dtype=torch.float64)
        >>> scaling.undone(torch.tensor([[2.0, 1.0]]))
        array([[4., 6.]])
    """

    zero: Tensor
    unit: Tensor

    @staticmethod
    def of(rows: Tensor, what: str = "X", otherwise: Tensor | None = None) -> "Scaling":
        """The scaling that these rows (N, columns) ask for; `what` they are, for messages.

        A column that is constant in them takes its unit from the rows of `otherwise`.
        """
        zero, unit = _statistics(rows)
        if otherwise is not None:
            is_constant = (rows == rows[:1]).all(0)
            unit = torch.where(is_constant, _statistics(otherwise)[1], unit)
        # squares of numbers around 1e-160 are 0, though they differ: in a unit of their own they do
        largest = rows.double().abs().amax(0)
        own = torch.where((unit == 0) & (largest > 0), largest, 1.0)
        unit = torch.where(unit == 0, _statistics(rows.double() / own)[1] * own, unit)
        broken = ~(zero.isfinite() & unit.isfinite())
        if broken.any():
            raise ValueError(
                f"column {int(broken.nonzero()[0])} of {what} holds numbers so large that its standard "
                "deviation overflows: divide it by a constant first"
            )
        # a spread below the smallest float64 is 0 all the same
        return Scaling(zero, torch.where(unit > 0, unit, 1.0))

    def __call__(self, rows: Tensor) -> Tensor:
        """Scaled rows."""
        return (rows.double() - self.zero) / self.unit

    def undone(self, rows: Tensor) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Rows (..., columns) in their own unit."""
        return (rows.double() * self.unit + self.zero).numpy()

    def spread(self, rows: Tensor) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Standard deviations (..., columns) in their own unit."""
        return (rows.double() * self.unit).numpy()

    def options(self) -> dict[str, list[float]]:
        """Numbers that make an equal scaling, for saving."""
        return {"zero": self.zero.tolist(), "unit": self.unit.tolist()}

    @staticmethod
    def from_options(options: dict[str, list[float]]) -> "Scaling":
        """The scaling with these options."""
        zero, unit = (torch.tensor(options[key], dtype=torch.float64) for key in ("zero", "unit"))
        return Scaling(zero, unit)

"""Scaling: columns of mean 0 and standard deviation 1, and the way back to their own unit."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x - zero) / unit, column by column, in float64.

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
    def of(rows: Tensor, what: str = "X", everything: Tensor | None = None) -> "Scaling":
        """The scaling of these rows; `what` they are, for messages.

        A column that is constant in them has its unit from `everything`, or 1.
        """
        rows = rows.double()
        zero, unit = rows.mean(0), rows.std(0, correction=0)
        if not (zero.isfinite() & unit.isfinite()).all():
            raise ValueError(
                f"{what} has numbers so large that their squares overflow: divide it first"
            )
        # asked for by comparison: rounding can give a constant column a deviation above 0
        is_constant = (rows == rows[:1]).all(0) | (unit == 0)
        other = torch.ones_like(unit) if everything is None else Scaling.of(everything, what).unit
        return Scaling(zero, torch.where(is_constant, other, unit))

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
        """Numbers that make an equal scaling, for files."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @staticmethod
    def from_options(options: dict[str, list[float]]) -> "Scaling":
        """The scaling with these options."""
        return Scaling(**{k: torch.tensor(v, dtype=torch.float64) for k, v in options.items()})

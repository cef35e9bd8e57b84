"""Scaling: columns of mean 0 and standard deviation 1, and the way back to their own unit."""

from dataclasses import dataclass

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
        tensor([[4., 6.]], dtype=torch.float64)
    """

    zero: Tensor
    unit: Tensor

    @staticmethod
    def of(rows: Tensor, everything: Tensor | None = None) -> "Scaling":
        """The scaling of these rows; a column constant in them has its unit from `everything`, or 1."""
        rows = rows.double()
        zero, unit = rows.mean(0), rows.std(0, correction=0)
        # asked for by comparison: rounding can give a constant column a deviation above 0
        is_constant = (rows == rows[:1]).all(0) | (unit == 0)
        other = torch.ones_like(unit) if everything is None else Scaling.of(everything).unit
        return Scaling(zero, torch.where(is_constant, other, unit))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows.double() - self.zero) / self.unit

    def undone(self, rows: Tensor, zero: float | None = None) -> Tensor:
        """Rows (..., columns) in their own unit; deviations with zero=0."""
        return rows.double() * self.unit + (self.zero if zero is None else zero)

    def options(self) -> dict[str, list[float]]:
        """Numbers that make an equal scaling, for files."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @staticmethod
    def from_options(options: dict[str, list[float]]) -> "Scaling":
        return Scaling(**{k: torch.tensor(v, dtype=torch.float64) for k, v in options.items()})

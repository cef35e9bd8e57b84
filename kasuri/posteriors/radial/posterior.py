"""The posterior of `kasuri.Radial`: a matrix whose rows, columns or both are lengths times directions."""

from collections.abc import Callable, Container
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from kasuri.posteriors.base import Posterior
from kasuri.posteriors.mean_field import independent
from kasuri.posteriors.parts import entries
from kasuri.posteriors.radial.polar import Polar, Side, product_moments, to_vectors

INSTEAD = "instead of Radial: a side has length 1"  # what print(bnn) says of normal weights


class RadialPosterior(Posterior):
    """Rows (*blocks, out, in), columns (*blocks, in/positions, out · positions) or a product of both.

    Columns may be lengths alone, without directions.
    """

    def __init__(
        self, rows: Polar | None = None, columns: Polar | None = None, positions: int = 1
    ) -> None:
        super().__init__()
        self.rows, self.columns, self.positions = rows, columns, positions

    def sides(self) -> dict[Side, Polar]:
        """The factors of the matrix; the first one has directions."""
        sides: dict[Side, Polar | None] = {"rows": self.rows, "columns": self.columns}
        return {side: polar for side, polar in sides.items() if polar is not None}

    @property
    def shape(self) -> torch.Size:
        ((side, polar), *_) = self.sides().items()
        assert polar.directions is not None
        *blocks, count, d = polar.directions.loc.shape
        if side == "rows":
            return torch.Size((*blocks, count, d))
        return torch.Size((*blocks, d // self.positions, count * self.positions))

    def _matrix(self, side: Side, vectors: Tensor) -> Tensor:
        """The matrix of such vectors; of lengths alone something that broadcasts to it."""
        if vectors.shape[-1] == 1:
            vectors = vectors.expand(*vectors.shape[:-1], self.positions)
        return to_vectors(vectors, side, self.positions)

    @property
    def mean(self) -> Tensor:
        """E[W]: products of mean radii, A(κ) and mean directions."""
        return self._product(Polar.mean)

    def rsample(self) -> Tensor:
        return self._product(Polar.rsample)

    def _product(self, vectors: Callable[[Polar], Tensor]) -> Tensor:
        sides = self.sides().items()
        return reduce(torch.mul, [self._matrix(side, vectors(polar)) for side, polar in sides])

    @property
    def variance(self) -> Tensor:
        """Var[W], elementwise, of a product of independent numbers."""
        moments = []
        for side, polar in self.sides().items():
            mean, variance = polar.moments()
            moments.append((self._matrix(side, mean), self._matrix(side, variance)))
        return reduce(product_moments, moments)[1]

    def require_density(self) -> None:
        if len(self.sides()) > 1:
            raise TypeError(
                "a radial posterior of rows and columns together has no density of the weights that could be "
                'written down: take prior=kasuri.RadialPrior(), or grouping="row"'
            )

    def entropy(self) -> Tensor:
        self.require_density()
        (polar,) = self.sides().values()
        return polar.entropy().to(polar.local.loc.dtype)

    def squared_norm(self) -> Tensor:
        """E‖W‖²; of one side the sum of its squared radii."""
        polar, *others = self.sides().values()
        if others:
            return super().squared_norm()
        return polar.squares().sum().to(polar.local.loc.dtype)

    def log_modes(self, side: Side) -> Tensor:
        """Logarithms of the modes of the radii: how strong each row (output) or column (input) is.

        They are those of z, the radii of single rows or columns, without the layer's factor s: it is the
        same for all of them, and what it gains the others may have lost. So only radii of one side of
        one layer compare.

        Args:
            side: "rows" (*blocks, out), or "columns" (*blocks, in), of convolutions channels.

        Examples:
            >>> import kasuri
            >>> weight = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.1, 0.0]])
            >>> q = kasuri.Radial()(weight)
            >>> bool(q.log_modes("rows")[0] > q.log_modes("rows")[1])
            True
        """
        sides = self.sides()
        if side not in sides:
            choices = " or ".join(f'"{choice}"' for choice in sides)
            raise ValueError(f"log_modes({side!r}): this posterior has {choices}")
        radii = sides[side].local
        return radii.law().log_mode().to(radii.loc.dtype)

    def part(self, rows: Tensor, columns: Tensor | None = None) -> Posterior:
        """Radial again: exact if whole vectors are left, else with the same means and second moment.

        Where a side has length 1, `kasuri.Radial` has independent normal weights, and so has the part.
        """
        assert columns is not None
        sides, positions = self.sides(), self.positions
        if is_too_narrow(sides, rows.shape[-1], columns.shape[-1], positions):
            mean, variance = (
                entries(moment, rows, columns) for moment in (self.mean, self.variance)
            )
            return independent(mean, variance, INSTEAD)
        polars = {side: polar.part(side, rows, columns, positions) for side, polar in sides.items()}
        return RadialPosterior(polars.get("rows"), polars.get("columns"), positions)

    def extra_repr(self) -> str:
        sides = [
            side if polar.directions is not None else f"radii of {side}"
            for side, polar in self.sides().items()
        ]
        return f"{super().extra_repr()}, {' and '.join(sides)}"

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Files of version 0.2 have a name of its own for lengths of columns."""
        for key in [key for key in state if key.startswith(f"{prefix}column_radii.")]:
            state[key.replace("column_radii", "columns.local")] = state.pop(key)
        super()._load_from_state_dict(state, prefix, *rest)


def is_too_narrow(sides: Container[Side], outs: int, ins: int, positions: int) -> bool:
    """Whether a matrix, laid out as one of these sides, has a side of length 1."""
    shapes = {"rows": (outs, ins), "columns": (outs * positions, ins // positions)}
    return any(1 in shape for side, shape in shapes.items() if side in sides)

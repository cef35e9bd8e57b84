"""The posterior of `kasuri.Radial`: a matrix whose rows, columns or both are lengths times directions."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from kasuri.posteriors.base import Posterior
from kasuri.posteriors.mean_field import independent
from kasuri.posteriors.parts import entries
from kasuri.posteriors.radial.polar import (
    Polar,
    Side,
    along_columns,
    draw_radius,
    inputs_left,
    mean_radius,
    product_moments,
    radius_moments,
    to_vectors,
)
from kasuri.posteriors.radial.radii import Radii

Statistic = Literal["mode", "product_mode"]
POWERS = {"mode": 1.0, "product_mode": 2.0}
INSTEAD = "instead of Radial: a side has length 1"  # what print(bnn) says of normal weights


class RadialPosterior(Posterior):
    """Rows (*blocks, out, in), columns (*blocks, in/positions, out · positions) or a product of both.

    Instead of columns, radii of columns may be a factor.
    """

    def __init__(
        self,
        rows: Polar | None = None,
        columns: Polar | None = None,
        column_radii: Radii | None = None,
        positions: int = 1,
    ) -> None:
        super().__init__()
        self.rows, self.columns, self.column_radii = rows, columns, column_radii
        self.positions = positions

    @property
    def shape(self) -> torch.Size:
        side, polar = next(self.polars())
        *blocks, count, d = polar.directions.loc.shape
        if side == "rows":
            return torch.Size((*blocks, count, d))
        return torch.Size((*blocks, d // self.positions, count * self.positions))

    def polars(self) -> Iterator[tuple[Side, Polar]]:
        """The sides that have directions."""
        if self.rows is not None:
            yield "rows", self.rows
        if self.columns is not None:
            yield "columns", self.columns

    def own_radii(self) -> Iterator[tuple[Side, Radii]]:
        """Radii of single rows and columns, of the sides that have them."""
        for side, polar in self.polars():
            yield side, polar.local
        if self.column_radii is not None:
            yield "columns", self.column_radii

    @property
    def mean(self) -> Tensor:
        """E[W]: products of mean radii, A(κ) and mean directions."""
        return self._product(Polar.mean, mean_radius)

    def rsample(self) -> Tensor:
        return self._product(Polar.rsample, draw_radius)

    def _product(
        self, vectors: Callable[[Polar], Tensor], radius: Callable[[Radii], Tensor]
    ) -> Tensor:
        factors = [
            to_vectors(vectors(polar), side, self.positions) for side, polar in self.polars()
        ]
        if self.column_radii is not None:
            scales = along_columns(radius(self.column_radii), self.positions)
            factors.append(scales.to(factors[0].dtype))
        return reduce(torch.mul, factors)

    @property
    def variance(self) -> Tensor:
        """Var[W], elementwise, of a product of independent numbers."""
        parts: list[Sequence[Tensor]] = [
            [to_vectors(moment, side, self.positions) for moment in polar.moments()]
            for side, polar in self.polars()
        ]
        if self.column_radii is not None:
            moments = radius_moments(self.column_radii)
            dtype = parts[0][0].dtype
            parts.append([along_columns(m, self.positions).to(dtype) for m in moments])
        return reduce(product_moments, parts)[1]

    def _only(self) -> Polar | None:
        """The one side, if there is but one."""
        if self.columns is None:
            return self.rows if self.column_radii is None else None
        return self.columns if self.rows is None else None

    def require_density(self) -> None:
        if self._only() is None:
            raise TypeError(
                "a radial posterior of rows and columns together has no density of the weights that could be "
                'written down: take prior=kasuri.RadialPrior(), or grouping="row"'
            )

    def entropy(self) -> Tensor:
        self.require_density()
        polar = self._only()
        assert polar is not None
        return polar.entropy().to(polar.directions.loc.dtype)

    def squared_norm(self) -> Tensor:
        """E‖W‖²; of one side the sum of its squared radii."""
        polar = self._only()
        if polar is None:
            return super().squared_norm()
        return polar.squares().sum().to(polar.directions.loc.dtype)

    def log_modes(self, side: Side, statistic: Statistic = "mode") -> Tensor:
        """Logarithms of the modes of the radii: how strong each row (output) or column (input) is.

        They are those of z, the radii of single rows or columns, without the layer's factor s: it is the
        same for all of them, and what it gains the others may have lost. So only radii of one side of
        one layer compare.

        Args:
            side: "rows" (*blocks, out), or "columns" (*blocks, in), of convolutions channels.
            statistic: "mode" of z; or "product_mode", half the log-mode of z² = αβ, as published. They
                order radii differently if their variances differ.

        Examples:
            >>> import kasuri
            >>> weight = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.1, 0.0]])
            >>> q = kasuri.Radial()(weight)
            >>> bool(q.log_modes("rows")[0] > q.log_modes("rows")[1])
            True
        """
        own = dict(self.own_radii())
        for name, known in ((side, own), (statistic, POWERS)):
            if name not in known:
                choices = " or ".join(f'"{choice}"' for choice in known)
                raise ValueError(f"log_modes({name!r}): this posterior has {choices}")
        law = own[side].law()
        return law.log_mode(POWERS[statistic]).to(own[side].loc.dtype)

    def part(self, rows: Tensor, columns: Tensor | None = None) -> Posterior:
        """Radial again: exact if whole vectors are left, else with the same means and second moment.

        Where a side has length 1, `kasuri.Radial` has independent normal weights, and so has the part.
        """
        assert columns is not None
        outs, ins, positions = rows.shape[-1], columns.shape[-1], self.positions
        sizes = {outs, ins} if self.rows is not None else set()
        if self.columns is not None or self.column_radii is not None:
            sizes |= {outs * positions, ins // positions}
        if 1 in sizes:
            mean, variance = (
                entries(moment, rows, columns) for moment in (self.mean, self.variance)
            )
            return independent(mean, variance, INSTEAD)
        polars = {side: polar.part(side, rows, columns, positions) for side, polar in self.polars()}
        radii = self.column_radii
        if radii is not None:
            radii = radii.some(inputs_left(columns, positions))
        return RadialPosterior(polars.get("rows"), polars.get("columns"), radii, positions)

    def extra_repr(self) -> str:
        sides: list[str] = [side for side, _ in self.polars()]
        sides += ["radii of columns"] if self.column_radii is not None else []
        return f"{super().extra_repr()}, {' and '.join(sides)}"

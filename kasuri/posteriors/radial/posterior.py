"""The posterior of `kasuri.Radial`: a matrix whose rows, columns or both are lengths times directions."""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from kasuri.posteriors.base import Posterior
from kasuri.posteriors.mean_field import independent
from kasuri.posteriors.parts import entries
from kasuri.posteriors.radial.directions import Directions
from kasuri.posteriors.radial.polar import (
    Polar,
    Side,
    along_columns,
    draw_radius,
    product_moments,
    radius_moments,
    to_matrix,
)
from kasuri.posteriors.radial.polar_parts import inputs_left, polar_part, some_radii
from kasuri.posteriors.radial.radii import Radii

Statistic = Literal["mode", "product_mode"]
INSTEAD = "instead of Radial: a side has length 1"  # what print(bnn) says of normal weights


class RadialPosterior(Posterior):
    """factor · R ∘ C, with R made of `rows`, and C of `columns` or of one radius for each column.

    Args:
        shape: of W, (*blocks, out, in).
        rows: vectors (*blocks, out, in), or None for R = 1.
        columns: vectors (*blocks, in/positions, out · positions), or None.
        column_radii: (*blocks, in/positions), or None.
        positions: neighbouring columns that are one input.
        factor: a constant.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        rows: Polar | None = None,
        columns: Polar | None = None,
        column_radii: Radii | None = None,
        positions: int = 1,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        self._shape = torch.Size(shape)
        self.rows, self.columns, self.column_radii = rows, columns, column_radii
        self.positions, self.factor = positions, factor

    @property
    def shape(self) -> torch.Size:
        """Shape of W."""
        return self._shape

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

    def directions(self, side: Side) -> Directions | None:
        """Of the rows or columns, if they have directions."""
        polar = self.rows if side == "rows" else self.columns
        return None if polar is None else polar.directions

    @property
    def mean(self) -> Tensor:
        """E[W]: products of mean radii, A(κ) and mean directions."""
        return self._product([(side, polar.mean()) for side, polar in self.polars()])

    @property
    def at_mode(self) -> Tensor:
        """Mean radii times mean directions, longer than the mean by 1/A(κ): what the paper evaluates."""
        return self._product([(side, polar.at_mode()) for side, polar in self.polars()])

    def _product(self, vectors: Sequence[tuple[Side, Tensor]]) -> Tensor:
        first, *others = (to_matrix(v, side, self.positions) for side, v in vectors)
        for other in others:
            first = first * other
        if self.column_radii is not None:
            radii = radius_moments(self.column_radii)[0]
            first = first * along_columns(radii, self.positions).to(first.dtype)
        return first if self.factor == 1 else first * self.factor

    @property
    def variance(self) -> Tensor:
        """Var[W], elementwise, of a product of independent numbers."""
        parts = [
            tuple(to_matrix(one, side, self.positions) for one in polar.moments())
            for side, polar in self.polars()
        ]
        mean, variance = parts[0]
        if self.column_radii is not None:
            radii = radius_moments(self.column_radii)
            parts.append(tuple(along_columns(m, self.positions).to(mean.dtype) for m in radii))
        for other_mean, other_variance in parts[1:]:
            mean, variance = product_moments((mean, variance), (other_mean, other_variance))
        return variance * self.factor**2

    def rsample(self) -> Tensor:
        """One draw."""
        first, *others = (
            to_matrix(polar.rsample(), side, self.positions) for side, polar in self.polars()
        )
        for other in others:
            first = first * other
        if self.column_radii is not None:
            radii = draw_radius(self.column_radii)
            first = first * along_columns(radii, self.positions).to(first.dtype)
        return first if self.factor == 1 else first * self.factor

    def _only(self) -> Polar | None:
        """The one side, if there is but one."""
        if self.columns is None:
            return self.rows if self.column_radii is None else None
        return self.columns if self.rows is None else None

    def require_density(self) -> None:
        """Refuse for rows and columns together."""
        if self._only() is None:
            raise TypeError(
                "a radial posterior of rows and columns together has more radii and directions than weights, "
                "and no density of the weights that could be written down: take a prior of radii and "
                'directions, prior=kasuri.RadialPrior(), or grouping="row"'
            )

    def entropy(self) -> Tensor:
        """Differential entropy, for rows or columns alone."""
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
        powers = {"mode": 1.0, "product_mode": 2.0}
        if statistic not in powers:
            raise ValueError(f'log_modes(statistic={statistic!r}): write "mode" or "product_mode"')
        radii = self._radii_of(side)
        return radii.law().log_mode(powers[statistic]).to(radii.loc.dtype)

    def _radii_of(self, side: Side) -> Radii:
        if side not in ("rows", "columns"):
            raise ValueError(f'log_modes({side!r}): write "rows" or "columns"')
        found = dict(self.own_radii())
        if side not in found:
            has = next(iter(found))
            raise ValueError(
                f'log_modes({side!r}): this posterior has radii of its {has} only; write "{has}", or '
                'build it with grouping="double"'
            )
        return found[side]

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
            mean, variance = (entries(one, rows, columns) for one in (self.mean, self.variance))
            return independent(mean, variance, INSTEAD)
        # as kasuri.Radial(rescale=True) has it for a matrix of this size, so that files agree
        is_rescaled = self.columns is not None and self.factor != 1
        factor = math.sqrt(outs * positions) if is_rescaled else self.factor
        longer = {"rows": 1.0, "columns": self.factor / factor}
        polars = {
            side: polar_part(polar, side, rows, columns, positions, longer[side])
            for side, polar in self.polars()
        }
        radii = self.column_radii
        if radii is not None:
            radii = some_radii(copy.deepcopy(radii), inputs_left(columns, positions))
        return RadialPosterior(
            (*rows.shape, ins),
            rows=polars.get("rows"),
            columns=polars.get("columns"),
            column_radii=radii,
            positions=positions,
            factor=factor,
        )

    def some_blocks(self, blocks: Tensor, *, single: bool = False) -> Posterior:
        """As of every posterior; the shape is kept apart from the tensors."""
        other = super().some_blocks(blocks, single=single)
        assert isinstance(other, RadialPosterior)
        other._shape = torch.Size(self.shape[1:] if single else (len(blocks), *self.shape[1:]))
        return other

    def extra_repr(self) -> str:
        """Shape, and what is grouped."""
        sides: list[str] = [side for side, _ in self.polars()]
        sides += ["radii of columns"] if self.column_radii is not None else []
        return f"{super().extra_repr()}, {' and '.join(sides)}"

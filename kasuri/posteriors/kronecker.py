"""What families with a row and a column covariance share: options, initial values, draws."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from kasuri.numerics import local_kronecker
from kasuri.numerics.safe import safe_sqrt, soft_min_inverse
from kasuri.numerics.torch_internals import eager
from kasuri.numerics.triangular import folded_shape
from kasuri.posteriors.base import LOG_TWO_PI, Builder, Family, Located
from kasuri.posteriors.full_side import FullSide
from kasuri.posteriors.low_rank_side import LowRankSide
from kasuri.posteriors.marginal import Marginal, less_each
from kasuri.posteriors.mean_field import MeanField
from kasuri.posteriors.parts import entries
from kasuri.posteriors.sides import LOG_CEILING, DiagonalSide, Side
from kasuri.streams import normal

Structure = str | int
"""Of one side: "auto", "full", "diagonal", or the rank of common directions beside a diagonal."""


@dataclass(frozen=True, kw_only=True)
class KroneckerFamily(Family):
    """Options of a family whose weights vary with a row and a column covariance."""

    estimator: ClassVar[str] = "auto"
    rows: Structure = "auto"
    columns: Structure = "auto"

    def __post_init__(self) -> None:
        """Refuse structures that do not exist."""
        super().__post_init__()
        for side in ("rows", "columns"):
            value = getattr(self, side)
            rank = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not rank and value not in ("auto", "full", "diagonal"):
                raise ValueError(
                    f'{type(self).__name__}({side}={value!r}): write {side}="full" for any '
                    f'covariance, {side}="diagonal" for none, {side}=8 for 8 common directions '
                    f'beside a diagonal, or {side}="auto"'
                )

    def for_vectors(self) -> MeanField:
        """Mean-field with the same options: a vector has no rows and columns."""
        return MeanField(
            scale=self.scale, noise=self.noise, max_scale=self.max_scale, mean=self.mean
        )

    @staticmethod
    @abstractmethod
    def auto(size: int) -> Structure:
        """What "auto" means for a side of this size."""

    def sides(self, weight: Tensor, scale: float, bound: float | None) -> tuple[Side, Side]:
        """Sides for a weight (*blocks, out, in).

        Args:
            weight: only its shape, type and device matter.
            scale: mean initial standard deviation of the Kronecker part.
            bound: of these standard deviations, or None.
        """
        if weight.dim() < 2:
            raise ValueError(
                f"{type(self).__name__}() was asked for a tensor of shape {tuple(weight.shape)}: "
                "a vector has no rows and columns to correlate; write kasuri.MeanField() for it"
            )
        *blocks, outs, ins = weight.shape
        ceiling = None if bound is None else bound**0.5

        def side(structure: Structure, size: int) -> Side:
            deviations = (self.noise * weight.new_empty(*blocks, size).normal_()).exp()
            deviations *= scale**0.5 / deviations.mean(-1, keepdim=True)
            chosen = self.auto(size) if structure == "auto" else structure
            return build_side(chosen, deviations, self.noise, ceiling)

        return side(self.rows, outs), side(self.columns, ins)


def build_side(
    structure: Structure, deviations: Tensor, noise: float, ceiling: float | None
) -> Side:
    """A side that starts with these marginal standard deviations (*blocks, n).

    Correlations start at 0, but for the loadings of common directions: those have a saddle point at
    0, so they start at random, with squared norm noise² on average. A rank r with n ≤ 2r + 1 gives
    the full side: it is more general and has fewer numbers.
    """
    if ceiling is not None:
        deviations = soft_min_inverse(deviations.clamp(max=0.99 * ceiling), ceiling)
    *blocks, size = deviations.shape
    if structure == "diagonal" or size == 1:
        return DiagonalSide(deviations.log(), ceiling)
    if structure == "full" or (isinstance(structure, int) and size <= 2 * structure + 1):
        lower = deviations.new_zeros(*blocks, *folded_shape(size))
        return FullSide(deviations.log(), lower, ceiling)
    assert isinstance(structure, int)
    loadings = deviations.new_empty(*blocks, size, structure).normal_() * (noise / structure**0.5)
    own = deviations / (1 + loadings.square().sum(-1)).sqrt()
    return LowRankSide(own.log(), loadings, ceiling)


def push_noise(rows: Side, columns: Side, x: Tensor, noise: Tensor) -> Tensor:
    """‖x C‖ · R ε for every x (batch, in) and ε (batch, width of the rows)."""
    plain = rows.ceiling is columns.ceiling is None and x.dtype == columns.log_scale.dtype
    if plain and isinstance(rows, FullSide) and isinstance(columns, FullSide) and eager():
        right, left = ((side.lower, side.log_scales()) for side in (rows, columns))
        return local_kronecker.push_noise(x, left, right, noise, LOG_CEILING)
    return safe_sqrt(columns.pull(x).square().sum(-1, keepdim=True)) * rows.spread(noise)


class KroneckerPosterior(Located, Marginal):
    """Means `loc` (*blocks, out, in) and two sides; what else there is, the families say."""

    def __init__(self, loc: Tensor, rows: Side, columns: Side) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.rows, self.columns = rows, columns

    @abstractmethod
    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """Half the log-determinant of the covariance, over all blocks, or a lower bound of it.

        Args:
            rows: mask (*blocks, out) of rows to which the covariance is cut; None for all.
            columns: mask (*blocks, in) of columns, given if and only if `rows` is.
        """

    def cut(self, rows: Tensor, columns: Tensor | None) -> tuple[Tensor, Side, Side]:
        """Means and sides of some rows and columns, for `part`."""
        assert columns is not None
        loc = entries(self.loc, rows, columns)
        return loc, self.rows.part(rows), self.columns.part(columns)

    def family_of_part(self, family: Builder) -> Builder:
        """Structures that follow sizes are fixed."""
        if not isinstance(family, KroneckerFamily):
            return family
        return replace(family, rows=self.rows.structure, columns=self.columns.structure)

    def set_apart(self, mask: Tensor) -> None:
        """Both sides."""
        self.rows, self.columns = self.rows.apart(mask.any(-1)), self.columns.apart(mask.any(-2))

    def settle(self, mask: Tensor) -> None:
        """Let both sides see whether what is left of them is apart."""
        self.rows.settle(mask.any(-1))
        self.columns.settle(mask.any(-2))

    def marginal_entropy(self, mask: Tensor) -> Tensor:
        """As exact as the entropy of all where whole rows and columns are dropped, else less by each."""
        rows, columns = mask.any(-1), mask.any(-2)
        inside = rows.unsqueeze(-1) & columns.unsqueeze(-2)
        part = self.half_log_det(rows, columns) + inside.sum().to(self.loc) * (
            0.5 * (1 + LOG_TWO_PI)
        )
        return less_each(part, self.variance, inside & ~mask)

    def kronecker_variance(self) -> Tensor:
        """Variances U_ii V_jj of R X Cᵀ."""
        return self.rows.variances().unsqueeze(-1) * self.columns.variances().unsqueeze(-2)

    def kronecker_draw(self) -> Tensor:
        """R X Cᵀ with fresh noise X."""
        like = self.loc
        shape = (*like.shape[:-2], self.rows.width, self.columns.width)
        noise = normal(shape, dtype=like.dtype, device=like.device)
        with torch.autocast(like.device.type, enabled=False):
            return self.rows.spread(self.columns.spread(noise).mT).mT

    def kronecker_pull(self, directions: Tensor) -> Tensor:
        """Rᵀ j C of directions j (N, *blocks, out, in)."""
        return (self.rows.factor().mT @ (directions @ self.columns.factor())).flatten(1)

    def pull(self, directions: Tensor) -> Tensor:
        """Rᵀ j C, and the noise of single weights that the family has beside."""
        own = (self.variance - self.kronecker_variance()).clamp(min=0).sqrt()
        return torch.cat([self.kronecker_pull(directions), (directions * own).flatten(1)], -1)

    def kronecker_push_is_cheaper(self, vectors: int) -> bool:
        """Whether pushing vectors through both sides takes less than a draw: B < about in + out."""
        outs, ins = self.shape[-2:]
        drawing = outs * self.columns.cost + ins * self.rows.cost
        return vectors * (self.columns.cost + self.rows.cost) < drawing

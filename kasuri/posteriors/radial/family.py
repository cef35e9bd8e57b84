"""Radial and directional: every row of W is a length times a direction, w_i = s z_i ξ_i.

ξ_i ~ vMF(μ_i, κ) on the unit sphere; z_i, and s for the whole layer, are log-normal. Columns likewise; of
both sides W is the elementwise product of two such matrices, or s z_i z'_j ξ_ij.

Parameters, for n vectors of dimension d: n d for the directions (one of each means nothing), 1 or n
concentrations, 2 (n + 1) for radii. Exact: sampling with unbiased gradients, mean,
marginal variances; for rows or columns alone also entropy, E‖W‖² and hence the KL to normal priors. With
both sides W has no density of its own: use kasuri.RadialPrior, which speaks of radii and directions.
Not available: drawing an output without its weights; `local` and `flipout` are refused.

A common factor can wander between s, z and, with both sides, z': only a prior of radii holds it. Blocks
(gates, groups of a convolution) are layers of their own.

Reference: Radial and directional posteriors for Bayesian neural networks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.checks import is_number
from kasuri.posteriors.mean_field import MatrixFamily, MeanFieldPosterior
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.polar import (
    SIDES,
    Directions,
    Polar,
    Side,
    along_columns,
    concentration_at,
    to_vectors,
)
from kasuri.posteriors.radial.posterior import INSTEAD, RadialPosterior
from kasuri.posteriors.radial.radii import LogNormal, Radii

_CHOICES = {
    "grouping": ("row", "column", "double"),
    "double": ("hadamard", "scales"),
    "concentration": ("layer", "group"),
}
LONGEST = 20_000  # radii are held at e^10
FILL = 0.01  # in units of the scale: what stands for rows and columns of zeros, which have no direction
LOG_TOP = 29.0  # of concentrations at the start, a little below what posteriors hold
STEPS = 40  # of bisection


@dataclass(frozen=True, kw_only=True)
class Radial(MatrixFamily):
    """Weights as lengths times directions, per output (row), per input (column) or both.

    Inputs of a convolution are channels: a row is all weights of an output channel, a column all weights
    of an input channel. Vectors (biases) get a mean-field posterior, and so does a matrix that, laid
    out as rows or as columns, has a side of length one; `print(bnn)` and `kasuri.summary(bnn)` say so.

    Args:
        grouping: "row", "column" or "double".
        double: how "double" joins both sides. "hadamard": (s z_i ξ_ij) (s' z'_j ζ_ji), as published;
            "scales": s z_i z'_j ξ_ij.
        concentration: one κ per "layer" and side, or one per "group" (row or column).
        scale: root mean square of the initial standard deviations of the weights.
        noise: relative spread of the initial standard deviations of radii.
        gap: start at the κ whose most likely cosine to the mean direction is 1 - gap; by default κ
            follows `scale`.
        mean: as in every family; rows or columns of zeros, which have no direction, start near 0.
        positions: neighbouring columns that are one input; `kasuri.bayesianize` sets it for convolutions.
        max_scale: not available.

    Examples:
        >>> q = Radial(grouping="row")(torch.randn(30, 20))
        >>> sum(p.numel() for p in q.parameters()) == 30 * 20 + 1 + 2 * (30 + 1)
        True
        >>> Radial()(torch.randn(1, 20))
        MeanFieldPosterior(1x20, instead of Radial: a side has length 1)
    """

    grouping: str = "row"
    double: str = "hadamard"
    concentration: str = "layer"
    gap: float | None = None
    positions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                options = " or ".join(f"{name}={choice!r}" for choice in choices)
                raise ValueError(f"Radial({name}={value!r}): write {options}")
        if self.gap is not None and not (is_number(self.gap) and 0 < self.gap < 1):
            raise ValueError(f"Radial(gap={self.gap!r}): must be a number between 0 and 1")
        if self.max_scale is not None:
            raise ValueError(
                f"Radial(max_scale={self.max_scale}): standard deviations follow from radii and "
                "concentrations and have no bound of their own"
            )
        if self.double != "hadamard" and self.grouping != "double":
            raise ValueError(f'Radial(double={self.double!r}): it belongs to grouping="double"')

    @classmethod
    def restored(cls, options: dict[str, Any]) -> "Radial":
        """From a file; files of version 0.2 name options that have one choice now, or matter no more."""
        of_0_2 = {"radius": "log-normal", "rescale": False, "min_gap": None}
        for name, choice in of_0_2.items():
            value = options.get(name, choice)
            if value != choice:
                raise ValueError(
                    f"Radial({name}={value!r}) of version 0.2: it must be {choice!r} now"
                )
        gone = {*of_0_2, "factors", "spread"}
        return cls(**{name: value for name, value in options.items() if name not in gone})

    def for_kernel(self, positions: int) -> "Radial":
        return replace(self, positions=positions)

    def __call__(self, weight: Tensor) -> RadialPosterior | MeanFieldPosterior:
        """The posterior around an initial weight (*blocks, out, in), split into radii and directions."""
        self.require_matrix(weight)
        outs, ins = weight.shape[-2:]
        rows, columns = {outs, ins}, {outs * self.positions, ins // self.positions}
        if 1 in {"row": rows, "column": columns, "double": rows | columns}[self.grouping]:
            instead = self.for_vectors()(weight)
            instead.note = INSTEAD
            return instead
        start = self._filled(self.initial_mean(weight).detach().double())
        longest = float(torch.linalg.vector_norm(start, dim=-1).max())
        if not longest < LONGEST:
            raise ValueError(
                f"Radial() of a weight with a row of length {longest:g}: lengths must be below "
                f"{LONGEST:,}; divide the weight by a number and multiply the layer's output by it"
            )
        return self._around(start).to(weight.dtype)

    def _filled(self, weight: Tensor) -> Tensor:
        """The weight with rows and columns of zeros replaced by ± 0.01 scale."""
        signs = torch.where(torch.rand_like(weight) < 0.5, -1.0, 1.0)
        empty = torch.zeros_like(weight, dtype=torch.bool)
        for side in SIDES:
            vectors = to_vectors(weight, side, self.positions)
            zero = (vectors == 0).all(-1, keepdim=True).expand(vectors.shape)
            empty |= to_vectors(zero, side, self.positions)
        return torch.where(empty, FILL * self.scale * signs, weight)

    def _around(self, weight: Tensor) -> RadialPosterior:
        """Radii and directions whose product has the weight as its mean."""
        positions, (sides, scales) = self.positions, self._split(weight)
        growths = {side: self._growth(to_vectors(weight, side, positions)) for side in SIDES}
        size = torch.ones_like(weight)  # products of E r², if directions were certain
        for side, vectors in sides.items():
            squares = vectors.square().sum(-1) * growths[side].exp()
            squares = squares.unsqueeze(-1).expand(vectors.shape)
            size = size * to_vectors(squares, side, positions)
        radii = None
        if scales is not None:
            size = size * along_columns((2 * scales + growths["columns"]).exp(), positions)
            radii = _radii(scales, growths["columns"])
        kappas = self._concentrations(weight, sides, size)
        polars = {
            side: self._polar(vectors, growths[side], kappas[side])
            for side, vectors in sides.items()
        }
        return RadialPosterior(polars.get("rows"), polars.get("columns"), radii, positions)

    def _split(self, weight: Tensor) -> tuple[dict[Side, Tensor], Tensor | None]:
        """Mean vectors of the sides that have directions, and log-means of radii of columns without them.

        Both sides share a weight as sign(w) √|w| and √|w|. With "scales" the columns get their norms, up to
        a common factor that makes their geometric mean 1.
        """
        if self.grouping == "row":
            return {"rows": weight}, None
        columns = to_vectors(weight, "columns", self.positions)
        if self.grouping == "column":
            return {"columns": columns}, None
        if self.double == "hadamard":
            return {
                "rows": weight.sign() * weight.abs().sqrt(),
                "columns": columns.abs().sqrt(),
            }, None
        logs = torch.linalg.vector_norm(columns, dim=-1).log()
        logs = logs - logs.mean(-1, keepdim=True)
        return {"rows": weight / along_columns(logs.exp(), self.positions)}, logs

    def _concentrations(
        self, weight: Tensor, sides: Mapping[Side, Tensor], size: Tensor
    ) -> dict[Side, Tensor]:
        """κ of the sides that have directions, (*blocks, 1): κ/d is the same for both.

        That at which E‖W‖² is that of noise N(0, scale²) around the weight, by bisection; or by `gap`. `size`
        are products of squared mean radii and their growth at A = 1, (*blocks, out, in).
        """
        wanted = weight.square().sum((-2, -1)) + weight.shape[-2:].numel() * self.scale**2
        dimensions = {side: vectors.shape[-1] for side, vectors in sides.items()}
        if self.gap is not None:
            kappas = {side: concentration_at(d, self.gap) for side, d in dimensions.items()}
            return {side: torch.full_like(wanted, k).unsqueeze(-1) for side, k in kappas.items()}
        # E‖W‖² = Σ size Π (a + b share), a and b functions of κ: sums over the matrix are taken once
        terms = size.unsqueeze(-1)
        for side, vectors in sides.items():
            share = F.normalize(vectors, dim=-1, eps=0.0).square()
            share = to_vectors(share, side, self.positions).unsqueeze(-1)
            terms = torch.cat([terms, terms * share], -1)
        totals = terms.sum((-3, -2))
        low = torch.full_like(wanted, -12.0)
        high = torch.full_like(wanted, LOG_TOP - math.log(max(dimensions.values())))
        for _ in range(STEPS):
            middle = (low + high) / 2
            weights = torch.ones_like(wanted).unsqueeze(-1)
            for d in dimensions.values():
                a, b = (part.unsqueeze(-1) for part in _second_moment(d * middle.exp(), d))
                weights = torch.cat([weights * a, weights * b], -1)
            above = (totals * weights).sum(-1) > wanted
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        ratio = ((low + high) / 2).exp().unsqueeze(-1)
        return {side: d * ratio for side, d in dimensions.items()}

    def _growth(self, vectors: Tensor) -> Tensor:
        """Log(E r²/(E r)²) of the radii: that of a normal vector of this mean with N(0, scale²) noise."""
        squares, noise = vectors.square().sum(-1), self.scale**2
        growth = torch.log1p(noise / (squares + vectors.shape[-1] * noise))
        return growth * (2 * self.noise * torch.randn_like(growth)).exp()

    def _polar(self, vectors: Tensor, growth: Tensor, kappa: Tensor) -> Polar:
        """Radii and directions of which the vectors are the means, at these concentrations."""
        *blocks, count, d = vectors.shape
        kappa = kappa.expand(*blocks, count if self.concentration == "group" else 1)
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        log_radii = norms.log() - vmf.terms(kappa, d).resultant.log()
        # the layer's factor starts with the common size, and with little of the noise
        noise = growth.amin(-1, keepdim=True) / (1 + count)
        size = (log_radii - growth / 2).mean(-1, keepdim=True) + noise / 2
        directions = Directions(vectors / norms.unsqueeze(-1), kappa)
        return Polar(directions, _radii(log_radii - size, growth - noise), _radii(size, noise))


def _radii(log_means: Tensor, growth: Tensor) -> Radii:
    return Radii(LogNormal(log_means - growth / 2, growth.log()))


def _second_moment(kappa: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """(a, b) of E x_j² / A² = a + b μ_j²."""
    of = vmf.terms(kappa, d)
    square = of.resultant.square()
    return of.spread / square, 1 + (of.slope - of.spread) / square

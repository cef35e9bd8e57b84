"""Radial and directional: every row of W is a length times a direction, w_i = s z_i ξ_i.

ξ_i ~ vMF(μ_i, κ) on the unit sphere; z_i, and s for the whole layer, are log-normal. Columns likewise; of
both sides W is the elementwise product of two such matrices, or s z_i z'_j ξ_ij.

Parameters, for n vectors of dimension d: n d for the directions (one of each means nothing), 1 or n
concentrations, 2F (n + 1) for radii of F factors. Exact: sampling with unbiased gradients, mean,
marginal variances; for rows or columns alone also entropy, E‖W‖² and hence the KL to normal priors. With
both sides W has no density of its own: use kasuri.RadialPrior, which speaks of radii and directions.
Not available: drawing an output without its weights; `local` and `flipout` are refused.

A common factor can wander between s, z and, with both sides, z': only a prior of radii holds it. Blocks
(gates, groups of a convolution) are layers of their own.

Reference: Radial and directional posteriors for Bayesian neural networks.
"""

import math
from collections.abc import Sequence
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
    along_columns,
    concentration_at,
    mean_radius,
    to_vectors,
)
from kasuri.posteriors.radial.posterior import INSTEAD, RadialPosterior
from kasuri.posteriors.radial.radii import LogNormal, Radii

_CHOICES = {
    "grouping": ("row", "column", "double"),
    "double": ("hadamard", "scales"),
    "concentration": ("layer", "group"),
    "factors": (1, 2),
}
LONGEST = 20_000  # radii are held at e^10
FILL = 0.01  # in units of the scale: what stands for rows and columns of zeros, which have no direction
LOG_TOP = 29.0  # of concentrations at the start, a little below what posteriors hold
STEPS = 50  # of bisection


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
        factors: of a radius: 2 for kasuri.RadialPrior(form="augmented"), 1 for all else, in which a second
            one would be redundant.
        scale: root mean square of the initial standard deviations of the weights: in total, or of every
            row or column that is the only side and has its own κ.
        noise: relative spread of the initial standard deviations of radii.
        gap: start at the κ whose most likely cosine to the mean direction is 1 - gap; by default κ
            follows `scale`.
        min_gap: an upper bound of κ in the same terms, approached smoothly; None for no bound.
        spread: initial standard deviation of the logarithm of each factor; by default a radius varies by
            `scale`, as any weight does.
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
    factors: int = 1
    gap: float | None = None
    min_gap: float | None = None
    spread: float | None = None
    positions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices or isinstance(value, bool):
                options = " or ".join(f"{name}={choice!r}" for choice in choices)
                raise ValueError(f"Radial({name}={value!r}): write {options}")
        for name, top in (("gap", 1), ("min_gap", 1), ("spread", math.inf)):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value < top):
                raise ValueError(f"Radial({name}={value!r}): must be a number between 0 and {top}")
        if self.gap is not None and self.gap <= (self.min_gap or 0):
            raise ValueError(
                f"Radial(gap={self.gap}, min_gap={self.min_gap}): gap must be above min_gap"
            )
        if self.max_scale is not None:
            raise ValueError(
                f"Radial(max_scale={self.max_scale}): standard deviations follow from radii and "
                "concentrations and have no bound of their own; see gap= and min_gap="
            )
        if self.double != "hadamard" and self.grouping != "double":
            raise ValueError(f'Radial(double={self.double!r}): it belongs to grouping="double"')

    @classmethod
    def restored(cls, options: dict[str, Any]) -> "Radial":
        """From a file; files of version 0.2 name options that have one choice now."""
        options = dict(options)
        for name, choice in (("radius", "log-normal"), ("rescale", False)):
            value = options.pop(name, choice)
            if value != choice:
                raise ValueError(
                    f"Radial({name}={value!r}) of version 0.2: it must be {choice!r} now"
                )
        return cls(**options)

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
        if self.grouping == "row":
            posterior = RadialPosterior(rows=self._one_side(start))
        elif self.grouping == "column":
            polar = self._one_side(to_vectors(start, "columns", self.positions))
            posterior = RadialPosterior(columns=polar, positions=self.positions)
        elif self.double == "hadamard":
            posterior = self._hadamard(start)
        else:
            posterior = self._scales(start)
        return posterior.to(weight.dtype)

    def _filled(self, weight: Tensor) -> Tensor:
        """The weight with rows and columns of zeros replaced by ± 0.01 scale."""
        signs = torch.where(torch.rand_like(weight) < 0.5, -1.0, 1.0)
        empty = torch.zeros_like(weight, dtype=torch.bool)
        for side in SIDES:
            vectors = to_vectors(weight, side, self.positions)
            zero = (vectors == 0).all(-1, keepdim=True).expand(vectors.shape)
            empty |= to_vectors(zero, side, self.positions)
        return torch.where(empty, FILL * self.scale * signs, weight)

    def _one_side(self, vectors: Tensor) -> Polar:
        """Radii and directions of vectors (*blocks, n, d) alone.

        E‖w‖² = (length of the mean)² e^growth / A² is to be that of noise N(0, scale²) around the mean: for
        every vector if each has a concentration of its own, else in total.
        """
        growth, d = self._growth(vectors), vectors.shape[-1]
        if self.gap is not None:
            return self._polar(vectors, growth, self._published(vectors))
        radial, wanted = _squares(vectors, growth), vectors.square().sum(-1) + d * self.scale**2
        if self.concentration == "layer":
            radial, wanted = (part.sum(-1, keepdim=True) for part in (radial, wanted))
        kappa = vmf.inverse_mean_resultant((radial / wanted).sqrt().clamp(max=1.0), d)
        return self._polar(vectors, growth, kappa.clamp(max=math.exp(LOG_TOP)))

    def _hadamard(self, weight: Tensor) -> RadialPosterior:
        """Rows sign √|w| times columns √|w|. Both share the noise and the mean of log-radii."""
        positions, roots = self.positions, weight.abs().sqrt()
        growths = self._growth(weight), self._growth(to_vectors(weight, "columns", positions))
        sides = weight.sign() * roots, to_vectors(roots, "columns", positions)
        size, across = map(_squares, sides, growths)
        kappas = self._concentrations(
            weight, sides, size.unsqueeze(-1) * along_columns(across, positions)
        )
        rows, columns = map(self._polar, sides, growths, kappas)
        logs = [mean_radius(*side.radii()).log().mean(-1) for side in (rows, columns)]
        uneven = ((logs[0] - logs[1]) / 2).detach()[..., None, None]
        rows.layer.loc.data -= uneven
        columns.layer.loc.data += uneven
        return RadialPosterior(rows, columns, positions=positions)

    def _scales(self, weight: Tensor) -> RadialPosterior:
        """Columns get their norms, up to a common factor that makes their geometric mean 1; rows the rest."""
        columns = to_vectors(weight, "columns", self.positions)
        growth, column_growth = self._growth(weight), self._growth(columns, common=False)
        logs = torch.linalg.vector_norm(columns, dim=-1).log()
        logs = logs - logs.mean(-1, keepdim=True)
        rows = weight / along_columns(logs.exp(), self.positions)
        across = along_columns((2 * logs + column_growth).exp(), self.positions)
        size = _squares(rows, growth).unsqueeze(-1) * across
        (kappa,) = self._concentrations(weight, (rows,), size)
        radii, polar = self._radii(logs, column_growth), self._polar(rows, growth, kappa)
        return RadialPosterior(polar, column_radii=radii, positions=self.positions)

    def _published(self, vectors: Tensor) -> Tensor:
        """κ of vectors (*blocks, n, d) by `gap`, (*blocks, 1)."""
        assert self.gap is not None
        kappa = concentration_at(vectors.shape[-1], self.gap)
        return vectors.new_full((*vectors.shape[:-2], 1), kappa)

    def _concentrations(
        self, weight: Tensor, sides: Sequence[Tensor], size: Tensor
    ) -> list[Tensor]:
        """κ of rows, and of columns if they have directions too, (*blocks, 1): κ/d is the same for both.

        That at which E‖W‖² is that of noise N(0, scale²) around the weight, by bisection; or by `gap`. `size`
        are products of squared mean radii and their growth at A = 1, (*blocks, out, in).
        """
        if self.gap is not None:
            return [self._published(vectors) for vectors in sides]
        wanted = weight.square().sum((-2, -1)) + weight.shape[-2:].numel() * self.scale**2
        # E‖W‖² = Σ size Π (a + b share), a and b functions of κ: sums over the matrix are taken once
        terms = size.unsqueeze(-1)
        for side, vectors in zip(SIDES, sides, strict=False):
            share = F.normalize(vectors, dim=-1, eps=0.0).square()
            share = to_vectors(share, side, self.positions).unsqueeze(-1)
            terms = torch.cat([terms, terms * share], -1)
        totals = terms.sum((-3, -2))
        dimensions = [vectors.shape[-1] for vectors in sides]
        low = torch.full_like(wanted, -12.0)
        high = torch.full_like(wanted, LOG_TOP - math.log(max(dimensions)))
        for _ in range(STEPS):
            middle = (low + high) / 2
            weights = torch.ones_like(wanted).unsqueeze(-1)
            for d in dimensions:
                a, b = (part.unsqueeze(-1) for part in _second_moment(d * middle.exp(), d))
                weights = torch.cat([weights * a, weights * b], -1)
            above = (totals * weights).sum(-1) > wanted
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        return [d * ((low + high) / 2).exp().unsqueeze(-1) for d in dimensions]

    def _growth(self, vectors: Tensor, common: bool = True) -> Tensor:
        """Log(E r²/(E r)²) of the radii, that of a common factor included.

        By default that of the length of a normal vector of this mean and N(0, scale²) noise.
        """
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        if self.spread is None:
            noise = self.scale**2
            growth = torch.log1p(noise / (norms.square() + vectors.shape[-1] * noise))
        else:
            growth = torch.full_like(norms, (1 + common) * self.spread**2 / self.factors)
        return growth * (2 * self.noise * torch.randn_like(growth)).exp()

    def _polar(self, vectors: Tensor, growth: Tensor, kappa: Tensor) -> Polar:
        """Radii and directions of which the vectors are the means, at these concentrations or the bound."""
        *blocks, count, d = vectors.shape
        bound = None
        if self.min_gap is not None:
            bound = concentration_at(d, self.min_gap)
            kappa = kappa.clamp(max=0.99 * bound)
        kappa = kappa.expand(*blocks, count if self.concentration == "group" else 1)
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        log_radii = norms.log() - vmf.mean_resultant(kappa, d).log()
        # the layer's factor starts with the common size, and with little of the noise
        share = 1 / (1 + count) if self.spread is None else 0.5
        noise = growth.amin(-1, keepdim=True) * share
        size = (log_radii - growth / 2).mean(-1, keepdim=True) + noise / 2
        local = self._radii(log_radii - size, growth - noise)
        directions = Directions(vectors / norms.unsqueeze(-1), kappa, bound)
        return Polar(directions, local, self._radii(size, noise))

    def _radii(self, log_means: Tensor, growth: Tensor) -> Radii:
        return Radii(LogNormal(log_means - growth / 2, growth.log()), self.factors)


def _squares(vectors: Tensor, growth: Tensor) -> Tensor:
    """E r² of vectors of these means, if their directions were certain."""
    return vectors.square().sum(-1) * growth.exp()


def _second_moment(kappa: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """(a, b) of E x_j² / A² = a + b μ_j²."""
    of = vmf.terms(kappa, d)
    square = of.resultant.square()
    return of.spread / square, 1 + (of.slope - of.spread) / square

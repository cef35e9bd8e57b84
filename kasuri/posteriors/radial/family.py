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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kasuri.checks import between, one_of
from kasuri.posteriors.mean_field import MatrixFamily, MeanFieldPosterior
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.polar import Directions, Polar, Side, concentration_at, to_vectors
from kasuri.posteriors.radial.posterior import INSTEAD, RadialPosterior, is_too_narrow
from kasuri.posteriors.radial.radii import LogNormal, Radii

Grouping = Literal["row", "column", "double"]
Double = Literal["hadamard", "scales"]
Concentration = Literal["layer", "group"]
SIDES: dict[Grouping, tuple[Side, ...]] = {
    "row": ("rows",),
    "column": ("columns",),
    "double": ("rows", "columns"),
}
LONGEST = 20_000  # radii are held at e^10
FILL = 0.01  # in units of the scale: what stands for rows and columns of zeros, which have no direction
# Logarithms of κ/d at the start: κ stays a little below what posteriors hold
LOWEST, LOG_TOP = -12.0, 29.0
STEPS, CLOSE = 12, 1e-9  # of the secant rule: at most so many, until they are so small


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

    grouping: Grouping = "row"
    double: Double = "hadamard"
    concentration: Concentration = "layer"
    gap: float | None = None
    positions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(grouping=(self.grouping, Grouping), double=(self.double, Double))
        one_of(concentration=(self.concentration, Concentration))
        if self.gap is not None:
            between(0, 1, gap=self.gap)
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
        if is_too_narrow(SIDES[self.grouping], outs, ins, self.positions):
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
        for side in SIDES["double"]:
            vectors = to_vectors(weight, side, self.positions)
            zero = (vectors == 0).all(-1, keepdim=True).expand(vectors.shape)
            empty |= to_vectors(zero, side, self.positions)
        return torch.where(empty, FILL * self.scale * signs, weight)

    @torch.no_grad()
    def _around(self, weight: Tensor) -> RadialPosterior:
        """Radii and directions whose product has the weight as its mean, and noise of size `scale`.

        κ/d is the same for both sides. It is found by the secant rule: the logarithm of the variance falls
        with that of κ, at a slope of 1, and of up to 2 for each side where κ is small.
        """
        vectors = self._split(weight)
        growths = {s: self._growth(to_vectors(weight, s, self.positions)) for s in vectors}

        def posterior(kappa: Callable[[int], Tensor]) -> RadialPosterior:
            polars = {
                side: self._polar(part, growths[side], kappa(part.shape[-1]))
                for side, part in vectors.items()
            }
            return RadialPosterior(polars.get("rows"), polars.get("columns"), self.positions)

        def at_ratio(logs: Tensor) -> RadialPosterior:
            return posterior(lambda d: d * logs.exp())

        def excess(logs: Tensor) -> Tensor:
            variance = at_ratio(logs).variance.mean((-2, -1)).unsqueeze(-1)
            return variance.log() - 2 * math.log(self.scale)

        logs, gap = weight.new_zeros(*weight.shape[:-2], 1), self.gap  # of κ/d, for each block
        if gap is not None:
            return posterior(lambda d: logs + concentration_at(d, gap))
        top = LOG_TOP - math.log(max(part.shape[-1] for part in vectors.values()))
        before = excess(logs)
        move = before.clamp(LOWEST, top)
        for _ in range(STEPS):
            logs = logs + move
            now = excess(logs)
            slope = ((before - now) / move).nan_to_num(1.0).clamp(0.1, 4.0)
            move, before = (logs + now / slope).clamp(LOWEST, top) - logs, now
            if not bool((move.abs() > CLOSE).any()):
                break
        return at_ratio(logs + move)

    def _split(self, weight: Tensor) -> dict[Side, Tensor]:
        """Mean vectors of the sides; vectors of one number are lengths alone.

        Both sides share a weight as sign(w) √|w| and √|w|. With "scales" the columns get their norms, up to
        a common factor that makes their geometric mean 1.
        """
        if self.grouping == "row":
            return {"rows": weight}
        columns = to_vectors(weight, "columns", self.positions)
        if self.grouping == "column":
            return {"columns": columns}
        if self.double == "hadamard":
            return {"rows": weight.sign() * weight.abs().sqrt(), "columns": columns.abs().sqrt()}
        lengths = torch.linalg.vector_norm(columns, dim=-1, keepdim=True)
        lengths = lengths / lengths.log().mean(-2, keepdim=True).exp()
        return {
            "rows": to_vectors(columns / lengths, "columns", self.positions),
            "columns": lengths,
        }

    def _growth(self, vectors: Tensor) -> Tensor:
        """Log(E r²/(E r)²) of the radii: that of a normal vector of this mean with N(0, scale²) noise."""
        squares, noise = vectors.square().sum(-1), self.scale**2
        growth = torch.log1p(noise / (squares + vectors.shape[-1] * noise))
        return growth * (2 * self.noise * torch.randn_like(growth)).exp()

    def _polar(self, vectors: Tensor, growth: Tensor, kappa: Tensor) -> Polar:
        """Radii and directions of which the vectors are the means, at these concentrations."""
        *blocks, count, d = vectors.shape
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        if d == 1:
            return Polar(_radii(norms.log(), growth))
        kappa = kappa.expand(*blocks, count if self.concentration == "group" else 1)
        log_radii = norms.log() - vmf.terms(kappa, d).resultant.log()
        # the layer's factor starts with the common size, and with little of the noise
        noise = growth.amin(-1, keepdim=True) / (1 + count)
        size = (log_radii - growth / 2).mean(-1, keepdim=True) + noise / 2
        directions = Directions(vectors / norms.unsqueeze(-1), kappa)
        return Polar(_radii(log_radii - size, growth - noise), _radii(size, noise), directions)


def _radii(log_means: Tensor, growth: Tensor) -> Radii:
    return Radii(LogNormal(log_means - growth / 2, growth.log()))

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

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kasuri.checks import is_number, is_whole
from kasuri.posteriors.mean_field import MatrixFamily, MeanFieldPosterior
from kasuri.posteriors.radial import start as radial_start
from kasuri.posteriors.radial.directions import Directions, concentration_at
from kasuri.posteriors.radial.polar import Polar, to_vectors
from kasuri.posteriors.radial.posterior import INSTEAD, RadialPosterior
from kasuri.posteriors.radial.radii import LogNormal, Radii

_CHOICES = {
    "grouping": ("row", "column", "double"),
    "double": ("hadamard", "scales"),
    "concentration": ("layer", "group"),
    "factors": (1, 2),
}

LONGEST = 20_000  # radii are held at e^10


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
        rescale: multiply the "hadamard" product by the root of a column's length, √out (convolutions:
            of out times positions). Without it unit radii make weights that are too small by so
            much; the start at a given weight is not affected.
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
    rescale: bool = False
    concentration: str = "layer"
    factors: int = 1
    gap: float | None = None
    min_gap: float | None = None
    spread: float | None = None
    positions: int = 1

    def __post_init__(self) -> None:
        """Refuse options that do not exist or contradict each other."""
        super().__post_init__()
        self._check_numbers()
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices or isinstance(value, bool):
                options = " or ".join(f"{name}={choice!r}" for choice in choices)
                raise ValueError(f"Radial({name}={value!r}): write {options}")
        if self.max_scale is not None:
            raise ValueError(
                f"Radial(max_scale={self.max_scale}): standard deviations of weights follow from radii and "
                "concentrations and have no bound of their own; for small concentrations to start from, "
                "or a prior that asks for them, see gap= here and in kasuri.RadialPrior"
            )
        if self.double != "hadamard" and self.grouping != "double":
            raise ValueError(
                f'Radial(double={self.double!r}, grouping={self.grouping!r}): it belongs to grouping="double"'
            )
        if self.rescale and (self.grouping, self.double) != ("double", "hadamard"):
            raise ValueError(
                'Radial(rescale=True): it belongs to grouping="double", double="hadamard"; leave it out'
            )

    def _check_numbers(self) -> None:
        for name in ("gap", "min_gap"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value < 1):
                raise ValueError(f"Radial({name}={value!r}): 1 - cosine, between 0 and 1, e.g. 0.1")
        if self.gap is not None and self.min_gap is not None and self.gap <= self.min_gap:
            raise ValueError(
                f"Radial(gap={self.gap}, min_gap={self.min_gap}): the start must be above the bound"
            )
        if self.spread is not None and not (is_number(self.spread) and self.spread > 0):
            raise ValueError(f"Radial(spread={self.spread!r}): a standard deviation is positive")
        if not is_whole(self.positions, 1):
            raise ValueError(f"Radial(positions={self.positions!r}): a whole number, 1 or more")

    @classmethod
    def restored(cls, options: dict[str, Any]) -> "Radial":
        """From a file; those of version 0.2 name the kind of radius, of which one is left."""
        options = dict(options)
        kind = options.pop("radius", "log-normal")
        if kind != "log-normal":
            raise ValueError(
                f"Radial(radius={kind!r}) of version 0.2: radii must be log-normal now"
            )
        return cls(**options)

    def for_kernel(self, positions: int) -> "Radial":
        """The same with columns of so many positions."""
        return replace(self, positions=positions)

    def __call__(self, weight: Tensor) -> RadialPosterior | MeanFieldPosterior:
        """The posterior around an initial weight (*blocks, out, in)."""
        self.require_matrix(weight)
        if weight.shape[-1] % self.positions:
            raise ValueError(
                f"Radial(positions={self.positions}) of {weight.shape[-1]} columns: every input has as many"
            )
        if 1 in self._sides(weight):
            instead = self.for_vectors()(weight)
            instead.note = INSTEAD
            return instead
        start = radial_start.filled(self.initial_mean(weight), self.scale, self.positions)
        longest = float(torch.linalg.vector_norm(start, dim=-1).max())
        if not longest < LONGEST:
            raise ValueError(
                f"Radial() was asked for a weight with a row of length {longest:g}: lengths have to be "
                f"numbers below {LONGEST:,}; divide the weight and multiply what it gives"
            )
        build = {"row": self._rows, "column": self._columns, "double": self._double}[self.grouping]
        return build(start).to(weight.dtype)

    def _sides(self, weight: Tensor) -> set[int]:
        """Lengths of the matrices (out, in · positions) and (out · positions, in) that the grouping uses."""
        outs, ins = weight.shape[-2:]
        rows, columns = {outs, ins}, {outs * self.positions, ins // self.positions}
        return {"row": rows, "column": columns, "double": rows | columns}[self.grouping]

    def _rows(self, weight: Tensor) -> RadialPosterior:
        start = radial_start.single(weight, self._growth(weight), self._how())
        return RadialPosterior(weight.shape, rows=self._polar(start))

    def _columns(self, weight: Tensor) -> RadialPosterior:
        vectors = to_vectors(weight, "columns", self.positions)
        start = radial_start.single(vectors, self._growth(vectors), self._how())
        columns = self._polar(start)
        return RadialPosterior(weight.shape, columns=columns, positions=self.positions)

    def _double(self, weight: Tensor) -> RadialPosterior:
        product = self.double == "hadamard"
        columns = to_vectors(weight, "columns", self.positions)
        growths = self._growth(weight), self._growth(columns, common=product)
        if product:
            factor = columns.shape[-1] ** 0.5 if self.rescale else 1.0
            one, other = radial_start.hadamard(weight, self.positions, growths, factor, self._how())
            return RadialPosterior(
                weight.shape,
                rows=self._polar(one),
                columns=self._polar(other),
                positions=self.positions,
                factor=factor,
            )
        one, logs = radial_start.scaled(weight, self.positions, growths, self._how())
        return RadialPosterior(
            weight.shape,
            rows=self._polar(one),
            column_radii=self._radii(logs, growths[1]),
            positions=self.positions,
        )

    def _how(self) -> radial_start.Concentrating:
        own = self.concentration == "group"
        return radial_start.Concentrating(self.scale, self.gap, self.min_gap, own)

    def _growth(self, vectors: Tensor, common: bool = True) -> Tensor:
        """Log(E r²/(E r)²) of the radii, that of a common factor included."""
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        if self.spread is None:
            growth = radial_start.natural_growth(norms, vectors.shape[-1], self.scale)
        else:
            growth = torch.full_like(norms, (1 + common) * self.spread**2 / self.factors)
        return growth * (2 * self.noise * torch.randn_like(growth)).exp()

    def _polar(self, start: radial_start.Start) -> Polar:
        bound = None
        if self.min_gap is not None:
            bound = concentration_at(start.directions.shape[-1], self.min_gap)
        directions = Directions(start.directions, start.concentration, bound)
        # the layer's factor starts with the common size, and with little of the noise
        share = 1 / (1 + start.growth.shape[-1]) if self.spread is None else 0.5
        noise = start.growth.amin(-1, keepdim=True) * share
        size = (start.log_radii - start.growth / 2).mean(-1, keepdim=True) + noise / 2
        local = self._radii(start.log_radii - size, start.growth - noise)
        return Polar(directions, local, self._radii(size, noise))

    def _radii(self, log_means: Tensor, growth: Tensor) -> Radii:
        return Radii(LogNormal(log_means - growth / 2, growth.log()), self.factors)

"""Positive low-rank factors of a matrix of standard deviations, by the KL between the normals.

For given σ the product τ = RᵀC is sought that minimises

    KL(N(μ, τ²) ‖ N(μ, σ²)) = Σ (τ²/(2σ²) - log(τ/σ) - ½).

In this direction, because it is what tying costs: where N(μ, σ²) is the optimum of an ELBO whose
expected log-likelihood is quadratic nearby, moving its scales from σ to τ lowers the ELBO by exactly
this number. Least squares would care about the largest σ only, and this loss is relative: an error
of a per cent costs the same at every weight, about (log τ/σ)² nats.

The factors are improved by multiplicative updates. With φ_k = r_k c_k/τ the loss is bounded from
above by Jensen's inequality, for -log τ and for τ² alike, and the bound separates:

    r_ki ← r_ki · √(Σ_j c_kj/τ_ij / Σ_j c_kj τ_ij/σ_ij²),   likewise for c.

Each update lowers the loss or leaves it. For k = 1 it is Sinkhorn's scaling of 1/σ², the problem is
convex in the logarithms and the global optimum is found. For k ≥ 2 there may be local optima; rank
k + 1 starts from rank k with one component split in two along the largest residual, so that more
rank never fits worse.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ITERATIONS = 500
_EVERY = 10  # iterations between looks at the loss
_SMALLEST = 2e-9  # of the largest factor at the same position: no logarithm of 0


class Factors(NamedTuple):
    """R (k, out), C (k, in) and the loss per weight."""

    rows: Tensor
    columns: Tensor
    loss: float


def loss_per_weight(scale: Tensor, rows: Tensor, columns: Tensor) -> float:
    """KL(N(μ, (RᵀC)²) ‖ N(μ, scale²)) in nats per weight."""
    ratio = (rows.T @ columns) / scale
    return float((ratio.square() / 2 - ratio.log() - 0.5).mean())


def growing(scale: Tensor, iterations: int = ITERATIONS) -> Iterator[Factors]:
    """Fits of rank 1, 2, 3, ... to standard deviations (out, in), without end."""
    logs = scale.log()
    middle = logs.mean() / 2
    rows = (logs.mean(1) - middle).exp()[None]
    columns = (logs.mean(0) - middle).exp()[None]
    while True:
        fit = improved(scale, rows, columns, iterations)
        yield fit
        rows, columns = _split(scale, fit)


def improved(scale: Tensor, rows: Tensor, columns: Tensor, iterations: int = ITERATIONS) -> Factors:
    """The factors after updates, until these change nothing any more."""
    weight = scale.square().reciprocal()
    loss = loss_per_weight(scale, rows, columns)
    for count in range(1, iterations + 1):
        rows = _updated(weight, rows, columns)
        columns = _updated(weight.T, columns, rows)
        if count % _EVERY == 0:
            before, loss = loss, loss_per_weight(scale, rows, columns)
            if before - loss <= 1e-4 * loss + 1e-10:
                break
    return Factors(rows, columns, loss_per_weight(scale, rows, columns))


def _updated(weight: Tensor, mine: Tensor, other: Tensor) -> Tensor:
    product = mine.T @ other
    down = other @ (product * weight).T
    up = other @ product.reciprocal_().T
    return mine * up.div_(down).sqrt_()


def balanced(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The same product, the largest entries of both factors of each component being equal.

    Zeros are raised to a tiny number, since logarithms are taken of the entries.
    """
    ratio = (columns.amax(1, keepdim=True) / rows.amax(1, keepdim=True)).sqrt()
    rows, columns = rows * ratio, columns / ratio
    return rows.clamp(min=_SMALLEST * rows.amax(0)), columns.clamp(min=_SMALLEST * columns.amax(0))


def _split(scale: Tensor, fit: Factors) -> tuple[Tensor, Tensor]:
    """One more component: one of them split in two so that the loss falls.

    r c = ½ r(1 + a)·c(1 + b) + ½ r(1 - a)·c(1 - b) - r c a b, so leaving out the last term adds
    r c a b, a rank-one correction along whatever a and b one likes, and keeps everything positive.
    """
    product = fit.rows.T @ fit.columns
    residual = (1 - (product / scale).square()) / 2  # minus the slope in log τ, about log σ/τ
    parts = [
        residual * torch.outer(r, c) / product for r, c in zip(fit.rows, fit.columns, strict=True)
    ]
    best = max(range(len(parts)), key=lambda k: float(parts[k].norm()))
    left, sizes, right = torch.linalg.svd(parts[best], full_matrices=False)
    # shortened to at most 0.9 in their own direction: that is the one in which the loss falls
    tilts = (sizes[0].sqrt() * tilt for tilt in (left[:, 0], right[0]))
    a, b = (tilt * (0.9 / tilt.abs().max().clamp_min(0.9)) for tilt in tilts)
    for step in (1, 1 / 4, 1 / 16, 1 / 64, 1 / 256, 0):  # at 0 two halves of the same: never worse
        rows = _divided(fit.rows, best, step * a, 1.0)
        columns = _divided(fit.columns, best, step * b, 0.5)
        if loss_per_weight(scale, rows, columns) <= fit.loss:
            break
    return rows, columns


def _divided(factor: Tensor, which: int, tilt: Tensor, share: float) -> Tensor:
    """Component `which` as the two with factors share · (1 ± tilt)."""
    half, other = share * factor[which] * (1 + tilt), share * factor[which] * (1 - tilt)
    return torch.cat([factor[:which], half[None], factor[which + 1 :], other[None]])

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
_POWER = 30  # steps of the power iteration that finds the residual's direction
_SMALLEST = 2e-9  # of the largest factor at the same position: no logarithm of 0


class Factors(NamedTuple):
    """R (*blocks, k, out), C (*blocks, k, in) and the loss per weight (*blocks)."""

    rows: Tensor
    columns: Tensor
    loss: Tensor


def loss_per_weight(scale: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """KL(N(μ, (RᵀC)²) ‖ N(μ, scale²)) in nats per weight, (*blocks)."""
    ratio = (rows.mT @ columns) / scale
    return (ratio.square() / 2 - ratio.log() - 0.5).mean((-2, -1))


def growing(scale: Tensor, iterations: int = ITERATIONS) -> Iterator[Factors]:
    """Fits of rank 1, 2, 3, ... to standard deviations (*blocks, out, in), without end."""
    logs = scale.log()
    middle = logs.mean((-2, -1), keepdim=True) / 2
    rows = (logs.mean(-1, keepdim=True) - middle).exp().mT
    columns = (logs.mean(-2, keepdim=True) - middle).exp()
    while True:
        fit = improved(scale, rows, columns, iterations)
        yield fit
        rows, columns = _split(scale, fit)


def improved(
    scale: Tensor,
    rows: Tensor,
    columns: Tensor,
    iterations: int = ITERATIONS,
    ceiling: float | None = None,
) -> Factors:
    """The factors after updates, until these change nothing any more; held below a ceiling if given.

    The ceiling is exact: the bound that an update minimises falls and then rises in each factor, so
    its minimum below the ceiling is the ceiling.
    """
    weight = scale.square().reciprocal()
    loss = loss_per_weight(scale, rows, columns)
    for count in range(1, iterations + 1):
        rows = _updated(weight, rows, columns, ceiling)
        columns = _updated(weight.mT, columns, rows, ceiling)
        if count % _EVERY == 0:
            before, loss = loss, loss_per_weight(scale, rows, columns)
            if bool((before - loss <= 1e-4 * loss + 1e-10).all()):
                break
    return Factors(rows, columns, loss_per_weight(scale, rows, columns))


def _updated(weight: Tensor, mine: Tensor, other: Tensor, ceiling: float | None) -> Tensor:
    product = mine.mT @ other
    down = other @ (product * weight).mT
    up = other @ product.reciprocal_().mT
    new = mine * up.div_(down).sqrt_()
    return new if ceiling is None else new.clamp(max=ceiling)


def balanced(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The same product, the largest entries of both factors of each component being equal.

    Entries that have become nothing are raised to almost nothing, since their logarithms are wanted.
    """
    ratio = (columns.amax(-1, keepdim=True) / rows.amax(-1, keepdim=True)).sqrt()
    return _visible(rows * ratio), _visible(columns / ratio)


def _visible(factor: Tensor) -> Tensor:
    return torch.maximum(factor, _SMALLEST * factor.amax(-2, keepdim=True))


def _split(scale: Tensor, fit: Factors) -> tuple[Tensor, Tensor]:
    """One more component: one of them split in two so that the loss falls.

    r c = ½ r(1 + a)·c(1 + b) + ½ r(1 - a)·c(1 - b) - r c a b, so leaving out the last term adds
    r c a b, a rank-one correction along whatever a and b one likes, and keeps everything positive.
    """
    product = fit.rows.mT @ fit.columns
    residual = (1 - (product / scale).square()) / 2  # minus the slope in log τ, about log σ/τ
    directions = [_direction(residual / product, fit, k) for k in range(fit.rows.shape[-2])]
    size, a, b = (torch.stack(parts, -1) for parts in zip(*directions, strict=True))
    best = size.argmax(-1)[..., None]
    a, b = (
        tilts.gather(-1, best[..., None].expand(*tilts.shape[:-1], 1))[..., 0] for tilts in (a, b)
    )
    step = torch.ones_like(size[..., :1])
    for _ in range(5):
        rows, columns = _divided(fit, best, step * a, step * b)
        worse = loss_per_weight(scale, rows, columns) > fit.loss
        if not bool(worse.any()):
            return rows, columns
        step = torch.where(worse[..., None], step / 4, step)
    step = torch.where(worse[..., None], 0.0, step)  # two halves of the same: never worse
    return _divided(fit, best, step * a, step * b)


def _direction(residual: Tensor, fit: Factors, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(size, a, b) of the largest singular component of the residual where component k counts."""
    rows, columns = fit.rows[..., k, :], fit.columns[..., k, :]
    part = residual * rows[..., :, None] * columns[..., None, :]
    longest = part.square().sum(-1).argmax(-1)[..., None, None]
    right = part.gather(-2, longest.expand(*longest.shape[:-1], part.shape[-1]))[..., 0, :]
    tiny = torch.finfo(part.dtype).tiny
    for _ in range(_POWER):
        left = (part @ right[..., None])[..., 0]
        left = left / left.norm(dim=-1, keepdim=True).clamp_min(tiny)
        right = (left[..., None, :] @ part)[..., 0, :]
        size = right.norm(dim=-1, keepdim=True)
        right = right / size.clamp_min(tiny)
    return size[..., 0], _bounded(size.sqrt() * left), _bounded(size.sqrt() * right)


def _bounded(tilt: Tensor) -> Tensor:
    """Shortened to at most 0.9, in its own direction: that is the one in which the loss falls."""
    return tilt * (0.9 / tilt.abs().amax(-1, keepdim=True).clamp_min(0.9))


def _divided(fit: Factors, which: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Component `which` (*blocks, 1) as the two with factors (1 ± a) and (1 ± b)/2."""

    def halves(factor: Tensor, tilt: Tensor, share: float) -> Tensor:
        index = which[..., None].expand(*which.shape[:-1], 1, factor.shape[-1])
        old, tilt = factor.gather(-2, index), tilt[..., None, :]
        kept = factor.scatter(-2, index, share * old * (1 + tilt))
        return torch.cat([kept, share * old * (1 - tilt)], -2)

    return halves(fit.rows, a, 1.0), halves(fit.columns, b, 0.5)

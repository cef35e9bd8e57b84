"""Mean and variance of functions of normal variables: activations, maxima, products, softmax.

Exact: rectifiers, products of independent variables, sums. By quadrature, to a few thousandths:
smooth activations. By Clark's formula: the maximum of two, of which more are taken pair by pair. To first
order: softmax. All are elementwise, so that they can be written to any graph format.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kasuri.numerics.quadrature import gauss_hermite

_SQRT_HALF = math.sqrt(0.5)
_STEEPEST = 12.0  # deviations beyond which a normal distribution function is 0 or 1 in float32

# made once: a graph that is being traced must not make them
_RULES = {
    dtype: tuple(tensor.to(dtype) for tensor in gauss_hermite(7))
    for dtype in (torch.float32, torch.float64)
}


def ndtr(z: Tensor) -> Tensor:
    """Distribution function of the standard normal, by erf (which graph formats know)."""
    return 0.5 * (1 + torch.erf(z * _SQRT_HALF))


def density(z: Tensor) -> Tensor:
    """Density of the standard normal."""
    return (-0.5 * z.square()).exp() * (1 / math.sqrt(2 * math.pi))


def _standardised(mean: Tensor, scale: Tensor) -> Tensor:
    tiny = torch.finfo(scale.dtype).tiny
    return (mean / scale.clamp(min=tiny)).clamp(-_STEEPEST, _STEEPEST)


def rectified(mean: Tensor, variance: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(z, slope · z) for z ~ N(mean, variance), slope ≤ 1.

    The derivative of the mean is the mean slope.
    """
    scale = variance.sqrt()
    z = _standardised(mean, scale)
    above, height = ndtr(z), scale * density(z)
    first = mean * above + height
    second = (mean.square() + variance) * above + mean * height
    spread = (second - first.square()).clamp(min=0)
    if slope == 0:
        return first, spread
    # max(z, az) = (1-a) r + a z with Cov(r, z) = variance · Φ
    spread = (1 - slope) ** 2 * spread + slope**2 * variance
    spread = spread + 2 * slope * (1 - slope) * variance * above
    return (1 - slope) * first + slope * mean, spread


def smooth_moments(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of φ(z), z ~ N(mean, variance), of a smooth function by seven Gauss-Hermite nodes."""
    shape = [-1, *[1] * mean.dim()]
    nodes, weights = (part.to(mean.device).reshape(shape) for part in _RULES[mean.dtype])
    values = function(mean + variance.sqrt() * nodes)
    centre = (weights * values).sum(0)
    return centre, (weights * (values - centre).square()).sum(0)


def larger(m1: Tensor, v1: Tensor, m2: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(z₁, z₂) of independent normals (Clark's formula)."""
    spread = (v1 + v2).sqrt()
    z = _standardised(m1 - m2, spread)
    # of each number the share of the cases in which it is the larger one, and what lies between the means
    over, under, height = ndtr(z), ndtr(-z), density(z)
    between = z.square() * over * under - z * height * (over - under) - height.square()
    variance = (v1 * over + v2 * under + (v1 + v2) * between).clamp(min=0)
    # not from one mean on: the other one may be that of a padded place, far below everything
    return m1 * over + m2 * under + spread * height, variance


def softmax_variance(probs: Tensor, variance: Tensor, dim: int) -> Tensor:
    """Var of softmax(z), independent z with these variances, to first order at `probs`.

    Var p_i ≈ p_i² ((1 - 2 p_i) v_i + Σ_j p_j² v_j).
    """
    total = (probs.square() * variance).sum(dim, keepdim=True)
    return (probs.square() * ((1 - 2 * probs) * variance + total)).clamp(min=0)


def factor(covariance: Tensor) -> Tensor:
    """L with L Lᵀ = covariance (..., C, C), column by column: also of singular ones, and without a solver."""
    rest, columns = covariance, []
    size = covariance.shape[-1]
    floor = torch.finfo(covariance.dtype).eps * covariance.diagonal(dim1=-2, dim2=-1)
    for index in range(size):
        pivot = rest[..., index, index]
        kept = pivot > 4 * size * floor[..., index]  # the rest is rounding
        scale = torch.where(kept, pivot, 1.0).rsqrt().unsqueeze(-1)
        column = torch.where(kept.unsqueeze(-1), rest[..., index] * scale, 0.0)
        columns.append(column)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
    return torch.stack(columns, -1)

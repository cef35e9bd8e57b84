"""How a cosine drawn from a von Mises-Fisher distribution moves with the concentration.

At a fixed value of the distribution function F of ω its derivative in κ is -(∂F/∂κ) / (∂F/∂ω), an integral
over the tail beyond ω. With θ = arccos ω it is

    sin θ ∫ |cos φ - A| e^{κ(cos φ - ω)} (sin φ / sin θ)^{d-2} dφ

over the tail on that side of θ where cos φ - A keeps its sign. ω is given as the gap 1 - ω, which has all
its digits where κ is large.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kasuri.numerics.quadrature import gauss_legendre
from kasuri.posteriors.radial.vmf_series import COARSE, terms
from kasuri.posteriors.radial.von_mises_fisher import mean_resultant_complement

# A tail ends where the logarithm of a density has fallen by so much, half of it if d = 2.
TAIL = 72.0
NODES, WEIGHTS = gauss_legendre(24)
# 2e-5 of a slope, whose expectation a draw of a network knows to a few percent
TAIL_OF_SINGLE = 48.0
NODES_OF_SINGLE, WEIGHTS_OF_SINGLE = gauss_legendre(12)


class _Tail(NamedTuple):
    """Where to integrate, all (..., 1).

    Args:
        gap: 1 - ω.
        square: sin² θ.
        theta: where the tail begins.
        width: how far it goes, negative towards 0.
    """

    gap: Tensor
    square: Tensor
    theta: Tensor
    width: Tensor


def cosine_slope(gap: Tensor, kappa: Tensor, d: int) -> Tensor:
    """dω/dκ at a fixed value of the distribution function, for ω = 1 - gap, in float64.

    Differentiable in both arguments.

    Args:
        gap: (...) 1 - ω.
        kappa: (...) concentrations.
        d: dimension of the space around the sphere.

    Examples:
        >>> gap = torch.tensor(1.0, dtype=torch.float64)
        >>> cosine_slope(gap, 0 * gap, 5)  # (1 - ω²) / (d - 1)
        tensor(0.2500, dtype=torch.float64)
    """
    kappa = kappa.unsqueeze(-1)
    complement = mean_resultant_complement(kappa, d)
    tail = _tail(gap.unsqueeze(-1), kappa, complement, d, TAIL)
    nodes, weights = (torch.tensor(n, dtype=gap.dtype, device=gap.device) for n in (NODES, WEIGHTS))
    half = tail.width * (0.5 * nodes)
    risen = 2 * torch.sin(tail.theta + half) * torch.sin(half)  # cos θ - cos φ
    there = tail.gap + risen  # 1 - cos φ
    # (sin φ / sin θ)², above 0 also where rounding has gone beyond the poles
    squares = (there * (2 - there) / tail.square).clamp(min=1e-300)
    log = (0.5 * (d - 2)) * squares.log() - kappa * risen
    size = (tail.square.sqrt() * tail.width.abs()).squeeze(-1)
    return size * (((complement - there).abs() * log.exp()) @ weights)


def cosine_slope_of_single(gap: Tensor, kappa: Tensor, d: int) -> Tensor:
    """As `cosine_slope`, to 1e-4 and in a sixth of the time: for draws in single precision.

    Half as many nodes, in float32, and without derivatives of its own.

    Args:
        gap: (...) 1 - ω in float64.
        kappa: (...) concentrations in float64; broadcasts.
        d: dimension of the space around the sphere.

    Examples:
        >>> gap = torch.tensor([0.5, 1.0], dtype=torch.float64)
        >>> cosine_slope_of_single(gap, 0 * gap, 5)
        tensor([0.1875, 0.2500], dtype=torch.float64)
    """
    kappa, gap = kappa.unsqueeze(-1), gap.clamp(min=1e-36)  # whose reciprocal is a float32 number
    found = terms(kappa, d, COARSE)
    complement = (found.slope + (d - 1) * found.spread) / (1 + kappa * found.spread)
    tail = _tail(gap.unsqueeze(-1), kappa, complement, d, TAIL_OF_SINGLE)
    nodes, weights = (
        torch.tensor(n, dtype=torch.float32, device=gap.device)
        for n in (NODES_OF_SINGLE, WEIGHTS_OF_SINGLE)
    )
    half = tail.width.float() * (0.5 * nodes)
    risen = torch.sin(tail.theta.float() + half).mul_(half.sin_()).mul_(2)  # cos θ - cos φ
    log = kappa.neg().float() * risen
    if d > 2:
        # (sin φ / sin θ)² - 1, whose logarithm has all digits for a large power to keep
        ahead = (2 * (1 - tail.gap)).float() - risen
        grown = ahead.mul_(risen).mul_(tail.square.reciprocal().float())
        log.add_(grown.clamp_(min=-1 + 1e-7).log1p_(), alpha=0.5 * (d - 2))
    apart = risen.sub_((complement - tail.gap).float()).abs_()
    sums = apart.mul_(log.exp_()) @ weights
    return (tail.square.sqrt() * tail.width.abs()).squeeze(-1) * sums


def _tail(gap: Tensor, kappa: Tensor, complement: Tensor, d: int, nats: float) -> _Tail:
    """The tail of these draws, until the logarithm of the density has fallen by so much.

    It falls at some rate where the tail begins, and faster by the precision about its mode.
    """
    gap = gap.clamp(1e-300, 2 - 1e-15)
    square = gap * (2 - gap)
    sine = square.sqrt()
    theta = torch.atan2(sine, 1 - gap)
    up = gap > complement  # the tail is on the side of π
    fall = ((d - 2) * (1 - gap) / sine - kappa * sine).detach()
    rate = torch.where(up, -fall, fall).clamp(min=0)
    precision = torch.hypot(2 * kappa, torch.full_like(kappa, d - 2)).detach()
    reach = 2 * nats / (rate + (rate.square() + 2 * nats * precision).sqrt())
    width = torch.where(up, torch.minimum(math.pi - theta, reach), -torch.minimum(theta, reach))
    return _Tail(gap, square, theta, width)

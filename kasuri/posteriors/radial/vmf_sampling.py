"""Draws of a von Mises-Fisher distribution, with gradients in direction and concentration.

x = ω μ + √(1 - ω²) τ, τ uniform among the unit vectors across μ. The cosine ω is found by rejection from a
proposal that needs uniform random numbers only. Internally ω is kept as the gap 1 - ω, which has all its
digits where κ is large.

The gradient of ω in κ is the implicit one, at a fixed value of the distribution function F:
-(∂F/∂κ) / (∂F/∂ω). With θ = arccos ω it is an integral over the tail on that side of θ where cos φ - A
keeps its sign,

    sin θ ∫ |cos φ - A| e^{κ(cos φ - ω)} (sin φ / sin θ)^{d-2} dφ
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics.quadrature import gauss_legendre
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.radial.von_mises_fisher import check_dimension, terms
from kasuri.streams import normal, uniform

# At least 66 of 100 proposals are accepted, whatever d and κ. A loop redraws what is not. Where there can be
# no loop, 20 proposals leave fewer than 1e-9 of the draws without an accepted one, which take the first.
AT_ONCE, WITHOUT_LOOP = 3, 20

SMALL = 8  # dimensions below which noise across μ may be next to nothing in single precision

# A tail ends where the logarithm of a density has fallen by so much, half of it if d = 2.
TAIL, RULE = 72.0, gauss_legendre(24)


def sample(loc: Tensor, kappa: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Independent draws of vMF(loc, kappa), (*shape, *batch, d), of length 1.

    Gradients are unbiased for any function of the draws, in κ and in loc = normalize(...); there are no
    second derivatives. The gradient in loc is that of the smallest rotation which takes loc along; noise
    across loc does not enter it. loc (*batch, d) and kappa (*batch) broadcast.
    """
    d = loc.shape[-1]
    check_dimension(d)
    batch = torch.broadcast_shapes(loc.shape[:-1], kappa.shape)
    gap = sample_gap(kappa.double(), d, (*shape, *batch)).unsqueeze(-1)
    sine = (gap * (2 - gap)).clamp(min=1e-300).sqrt()  # no infinite gradient should a gap be 0
    wide = torch.float64 if d < SMALL or loc.dtype == torch.float64 else torch.float32
    cosine, sine, mean = (1 - gap).to(wide), sine.to(wide), loc.to(wide)
    fixed = mean.detach()
    noise = normal((*shape, *batch, d), dtype=wide, device=loc.device)
    across = F.normalize(_without(noise, fixed, fixed), dim=-1)
    # the smallest rotation that takes `fixed` to `mean` turns it as well
    across = _without(across, mean, fixed)
    return torch.addcmul(cosine * mean, sine, across).to(loc.dtype)


def _without(vectors: Tensor, other: Tensor, direction: Tensor) -> Tensor:
    """Vectors minus their inner products with others times a direction."""
    dots = torch.linalg.vecdot(vectors, other).unsqueeze(-1)
    return torch.addcmul(vectors, dots, direction, value=-1)


def sample_gap(kappa: Tensor, d: int, size: Sequence[int]) -> Tensor:
    """Independent draws of 1 - ω of this size, with implicit gradients in κ, which is in float64."""
    fixed = kappa.detach()
    gap = accepted_gap(fixed.expand(size), d)
    if not torch.is_grad_enabled():
        return gap
    return gap - cosine_slope(gap, fixed, d) * (kappa - fixed)


def accepted_gap(kappa: Tensor, d: int) -> Tensor:
    """A draw of 1 - ω for every κ, a float64 tensor without gradients, by as many proposals as it takes."""
    if not eager():  # neither vmap nor a compiler can run a loop
        return _first_accepted(kappa, d, WITHOUT_LOOP)[0]
    flat = kappa.reshape(-1)
    gap, accepted = _first_accepted(flat, d, AT_ONCE)
    while not accepted.all():
        missing = accepted.logical_not().nonzero().squeeze(-1)
        gap[missing], accepted[missing] = _first_accepted(flat[missing], d, AT_ONCE)
    return gap.view(kappa.shape)


def _first_accepted(kappa: Tensor, d: int, count: int) -> tuple[Tensor, Tensor]:
    """1 - ω of the first accepted one of `count` proposals, and whether there was one.

    A coordinate t of a uniform point on the sphere is moved to ω = (t + c) / (1 + c t), c the mode of
    the proposal, and accepted with probability e^{κ(ω - c)} (1 + c t)^{1-d}.
    """
    size = (3, *kappa.shape, count)
    radial, angular, threshold = uniform(size, dtype=kappa.dtype, device=kappa.device).unbind()
    kappa = kappa.unsqueeze(-1)
    root = torch.hypot(2 * kappa, torch.full_like(kappa, d - 1))
    mode = 2 * kappa / (root + (d - 1))
    mode_gap = (d - 1) * (1 + (d - 1) / (root + 2 * kappa)) / (root + (d - 1))  # 1 - mode
    # t = r cos 2πa is the first of two coordinates; 1 - r² is a power of a uniform number
    half = torch.sin(math.pi * angular).square()
    if d == 2:
        t_gap = 2 * half
    else:
        log = torch.log1p(-radial) * (2 / (d - 2))
        r = torch.expm1(log).neg().sqrt()
        t_gap = log.exp() / (1 + r) + 2 * r * half
    scale = mode_gap + mode * (2 - t_gap)  # 1 + c t
    gap = mode_gap * t_gap / scale
    log_ratio = kappa * (mode_gap - gap) - (d - 1) * scale.log()
    # not "≥": a κ that is not a number must give such draws, not an endless search
    accepted = (log_ratio < torch.log1p(-threshold)).logical_not()
    first = accepted.to(torch.uint8).argmax(-1, keepdim=True)  # the first of the largest
    return gap.gather(-1, first).squeeze(-1), accepted.any(-1)


def cosine_slope(gap: Tensor, kappa: Tensor, d: int) -> Tensor:
    """dω/dκ at a fixed value of the distribution function, for ω = 1 - gap, in float64; both broadcast."""
    nodes, weights = torch.tensor(RULE, dtype=gap.dtype, device=gap.device)
    kappa = kappa.unsqueeze(-1)
    of = terms(kappa, d)
    # 1 - A from A' = 1 - A² - (d-1) A/κ, so that nothing cancels
    complement = (of.slope + (d - 1) * of.spread) / (1 + of.resultant)
    gap = gap.unsqueeze(-1).clamp(1e-300, 2 - 1e-15)
    square = gap * (2 - gap)  # sin² θ
    sine = square.sqrt()
    theta = torch.atan2(sine, 1 - gap)
    # how far the tail goes: the log-density falls at some rate where the tail begins, and faster by the
    # precision about its mode
    up = gap > complement  # the tail is on the side of π
    fall = (d - 2) * (1 - gap) / sine - kappa * sine
    rate = torch.where(up, -fall, fall).clamp(min=0)
    precision = torch.hypot(2 * kappa, torch.full_like(kappa, d - 2))
    reach = 2 * TAIL / (rate + (rate.square() + 2 * TAIL * precision).sqrt())
    width = torch.where(up, torch.minimum(math.pi - theta, reach), -torch.minimum(theta, reach))
    half = width * (0.5 * nodes)
    risen = 2 * torch.sin(theta + half) * torch.sin(half)  # cos θ - cos φ
    there = gap + risen  # 1 - cos φ
    # (sin φ / sin θ)², above 0 also where rounding has gone beyond the poles
    squares = (there * (2 - there) / square).clamp(min=1e-300)
    log = (0.5 * (d - 2)) * squares.log() - kappa * risen
    size = (sine * width.abs()).squeeze(-1)
    return size * (((complement - there).abs() * log.exp()) @ weights)

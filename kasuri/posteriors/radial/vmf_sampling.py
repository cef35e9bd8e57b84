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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.quadrature import gauss_legendre
from kasuri.numerics.torch_internals import batched_apart, eager
from kasuri.posteriors.radial.von_mises_fisher import check_dimension, mean_resultant_complement
from kasuri.streams import normal, normal_like, uniform

# At least 66 of 100 proposals are accepted, whatever d and κ. A loop redraws what is not; for few draws a
# second turn of it costs more than more proposals. Where there can be no loop, 40 proposals leave fewer than
# 1e-18 of the draws without an accepted one.
AT_ONCE, WITHOUT_LOOP = 2, 40
FEW, FOR_FEW = 500, 8

SMALL = 8  # dimensions below which noise across μ may be next to nothing in single precision

# A tail ends where the logarithm of a density has fallen by so much, half of it if d = 2.
TAIL, RULE = 72.0, gauss_legendre(24)


def sample(loc: Tensor, kappa: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Independent draws of vMF(loc, kappa), (*shape, *batch, d), of length 1.

    Gradients are unbiased for any function of the draws, in κ and in loc = normalize(...). The one in
    loc is that of the smallest rotation which takes loc along; noise across loc does not enter it.
    loc (*batch, d) and kappa (*batch) broadcast.
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
    across = noise - (noise * fixed).sum(-1, keepdim=True) * fixed
    across = across / torch.linalg.vector_norm(across, dim=-1, keepdim=True)
    # the rotation that takes `fixed` to `mean` and keeps what is across both: here the identity,
    # elsewhere in the direction of its derivative not
    turn = (across * mean).sum(-1, keepdim=True) / (1 + (fixed * mean).sum(-1, keepdim=True))
    moved = across - turn * (fixed + mean)
    return (cosine * mean + sine * moved).to(loc.dtype)


def sample_gap(kappa: Tensor, d: int, size: Sequence[int]) -> Tensor:
    """Independent draws of 1 - ω of this size, with implicit gradients in κ, which is in float64."""
    kappa = kappa.reshape((*[1] * (len(size) - kappa.dim()), *kappa.shape))
    fixed = kappa.detach()
    if eager():
        gap = accepted_gap(fixed.expand(size), d)
    else:  # neither vmap nor a compiler can run a loop
        gap = _first_accepted(fixed.expand(size), d, WITHOUT_LOOP)[0]
    if not torch.is_grad_enabled():
        return gap
    if torch.compiler.is_compiling():
        # torch.compile cannot trace the function below; it needs first derivatives only
        return gap - cosine_slope(gap, fixed, d) * (kappa - fixed)
    return _Implicit.apply(kappa, gap, d)


class _Implicit(torch.autograd.Function):
    """`gap` as a function of κ, which has as many dimensions and broadcasts: its functions are expensive."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, gap: Tensor, d: int) -> Tensor:
        return gap.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kappa, _, ctx.d = inputs
        ctx.save_for_backward(output, kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        gap, kappa = ctx.saved_tensors
        return (-grad * cosine_slope(gap, kappa, ctx.d)).sum_to_size(kappa.shape), None, None


def accepted_gap(kappa: Tensor, d: int) -> Tensor:
    """A draw of 1 - ω for every κ, a float64 tensor without gradients, by as many proposals as it takes."""
    flat = kappa.reshape(-1)
    gap, accepted = _first_accepted(flat, d, AT_ONCE if flat.numel() > FEW else FOR_FEW)
    while not accepted.all():
        missing = accepted.logical_not().nonzero().squeeze(-1)
        gap[missing], accepted[missing] = _first_accepted(flat[missing], d, FOR_FEW)
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
    """dω/dκ at a fixed value of the distribution function, for ω = 1 - gap, in float64.

    Differentiable in both arguments, which broadcast.
    """
    nodes, weights = torch.tensor(RULE, dtype=gap.dtype, device=gap.device)
    kappa = kappa.unsqueeze(-1)
    complement = mean_resultant_complement(kappa, d)
    gap = gap.unsqueeze(-1).clamp(1e-300, 2 - 1e-15)
    square = gap * (2 - gap)  # sin² θ
    sine = square.sqrt()
    theta = torch.atan2(sine, 1 - gap)
    # how far the tail goes: the log-density falls at some rate where the tail begins, and faster by the
    # precision about its mode
    up = gap > complement  # the tail is on the side of π
    fall = ((d - 2) * (1 - gap) / sine - kappa * sine).detach()
    rate = torch.where(up, -fall, fall).clamp(min=0)
    precision = torch.hypot(2 * kappa, torch.full_like(kappa, d - 2)).detach()
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


def sample_scaled(loc: Tensor, kappa: Tensor, radius: Tensor) -> Tensor:
    """Vectors radius · x with x ~ vMF(loc / ‖loc‖, κ), (..., d), in few sweeps over them.

    Values and gradients are those of `sample`. With noise g and μ = loc/‖loc‖, τ is g - (gᵀμ) μ over its
    length, so that every vector is a sum a · loc + b · g. Written out, that takes a dozen sweeps over
    memory forwards and as many backwards, and each of them a call for every operation of a vmap; as
    one autograd node it takes a few. `loc` may have any length; κ and radius are in float64, and one κ may
    serve several rows.
    """
    if not batched_apart() or loc.dtype not in (torch.float32, torch.float64):
        directions = sample(F.normalize(loc, dim=-1), kappa)
        return radius.to(loc.dtype).unsqueeze(-1) * directions
    # a random number is batched wherever draws are to differ, whether parameters are batched or not
    token = radius.detach() if eager() else uniform((), device=loc.device)
    rows = loc.dim() - 1
    kappa, radius = (
        values.reshape((*[1] * (rows - values.dim()), *values.shape)) for values in (kappa, radius)
    )
    drawn: Tensor = _SampleScaled.apply(loc, kappa, radius, token)[0]
    return drawn


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, (..., 1)."""
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


class _SampleScaled(torch.autograd.Function):
    """A draw, and what its derivatives are made of."""

    @staticmethod
    def forward(loc: Tensor, kappa: Tensor, radius: Tensor, token: Tensor) -> tuple[Tensor, ...]:
        d, dtype = loc.shape[-1], loc.dtype
        gap = accepted_gap(kappa.expand(loc.shape[:-1]), d)
        if d < SMALL:
            loc = loc.double()
        noise = normal_like(loc)
        square = _dots(loc, loc).clamp_(min=1e-24)
        if d < SMALL:  # where next to nothing may be left of it
            noise.addcmul_(loc, _dots(loc, noise) / square, value=-1)
        along = _dots(loc, noise)
        across = (_dots(noise, noise) - along * along / square).sqrt_()
        cosine, sine, r = _scales(gap, radius, loc)
        b = sine / across
        a = cosine / square.sqrt() - b * along / square
        drawn = torch.mul(loc, r * a).addcmul_(noise, r * b)
        return drawn.to(dtype), noise, gap, square, along, across

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:3], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        loc, kappa, radius, noise, gap, square, along, across = ctx.saved_tensors
        wide = loc.to(noise.dtype)
        grad = grad.to(noise.dtype)
        cosine, sine, r = _scales(gap, radius, wide)
        p, q = _dots(grad, wide), _dots(grad, noise)
        length = square.sqrt()
        towards = (q - along / square * p) / across  # of the gradient, along τ
        of_radius = cosine / length * p + sine * towards
        of_cosine = (r * (p / length - cosine / sine * towards)).squeeze(-1).double()
        # a rotation takes μ along: r (ω G - √(1-ω²) (Gᵀμ) τ), projected, and over the length of loc
        turned = -r * sine / across * p / square
        kept = r * cosine / length
        of_loc = torch.mul(grad, kept).addcmul_(noise, turned)
        of_loc.addcmul_(wide, -(kept * p + turned * along) / square)
        slope = cosine_slope(gap, kappa, loc.shape[-1])
        return (
            of_loc.to(loc.dtype),
            (of_cosine * slope).sum_to_size(kappa.shape),
            of_radius.squeeze(-1).double().sum_to_size(radius.shape),
            None,
        )

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        token = inputs[3] if dims[3] is None else inputs[3].select(dims[3], 0)
        batched = [
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(inputs[:3], dims, strict=False)
        ]
        samples = _SampleScaled.apply(*batched, token)
        return samples, (0,) * len(samples)


def _scales(gap: Tensor, radius: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine, sine and length of every row, (..., 1), in the precision of the draw."""
    sine = (gap * (2 - gap)).clamp(min=1e-300).sqrt()
    cosine, sine, radius = (
        values.to(like.dtype).unsqueeze(-1) for values in (1 - gap, sine, radius)
    )
    return cosine, sine, radius

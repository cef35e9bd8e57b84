"""Draws of a von Mises-Fisher distribution, with gradients in direction and concentration.

x = ω μ + √(1 - ω²) τ, τ uniform among the unit vectors across μ. The cosine ω is found by rejection from a
proposal that needs no random numbers but uniform ones, so that draws work inside vmap and
torch.compile. Its gradient in κ is the implicit one, `vmf_slope`. Internally ω is kept as the gap 1 - ω,
which has all its digits where κ is large.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.radial.vmf_slope import cosine_slope
from kasuri.posteriors.radial.von_mises_fisher import check_dimension, mean_resultant
from kasuri.streams import normal, uniform

# At least 66 of 100 proposals are accepted, whatever d and κ. A loop redraws what is not; where there can
# be no loop, 40 proposals leave fewer than 1e-18 of the draws without one, less than uniform
# numbers in double precision can tell from none.
AT_ONCE, WITHOUT_LOOP = 2, 40
FEW, FOR_FEW = 500, 8  # for few draws a second turn of the loop costs more than more proposals

SMALL = 8  # dimensions below which noise across μ may be next to nothing in single precision


def sample(loc: Tensor, kappa: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Independent draws of vMF(loc, kappa), (*shape, *batch, d), of length 1.

    Gradients are unbiased for any function of the draws, in κ and in loc = normalize(...). The one in
    loc is that of the smallest rotation which takes loc along; noise across loc does not enter it.

    Args:
        loc: (*batch, d) unit vectors.
        kappa: (*batch) concentrations; both broadcast.
        shape: shape of the sample.

    Examples:
        >>> loc = torch.tensor([0.0, 0.0, 1.0])
        >>> sample(loc, torch.tensor(1e12), (2,)).round(decimals=4).abs()
        tensor([[0., 0., 1.],
                [0., 0., 1.]])
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


def sample_cosine(kappa: Tensor, d: int, shape: Sequence[int] = ()) -> Tensor:
    """Independent draws of ω = μᵀx, (*shape, ...), with implicit gradients in κ.

    Args:
        kappa: (...) concentrations.
        d: dimension of the space around the sphere.
        shape: shape of the sample.

    Examples:
        >>> kappa = torch.zeros(1000, requires_grad=True)
        >>> bool(sample_cosine(kappa, 5).mean().abs() < 0.1)
        True
    """
    check_dimension(d)
    return (1 - sample_gap(kappa.double(), d, (*shape, *kappa.shape))).to(kappa.dtype)


def sample_cosine_by_rejection(
    kappa: Tensor, d: int, shape: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Draws of ω with the gradient of the proposal, and logarithms of weights that correct it.

    The logarithms are 0, and only their gradient c matters: the one of E[e^c f(ω)] is unbiased. In a network
    f is the whole loss, which every direction of every layer then multiplies by a c of its own: prefer
    `sample_cosine`, to which this is here to be compared. First derivatives only.

    Args:
        kappa: (...) concentrations.
        d: dimension of the space around the sphere.
        shape: shape of the sample.

    Returns:
        Cosines and logarithms of weights, both (*shape, ...).

    Examples:
        >>> kappa = torch.full((3,), 2.0, requires_grad=True)
        >>> cosine, log_weight = sample_cosine_by_rejection(kappa, 5)
        >>> log_weight.exp()
        tensor([1., 1., 1.], grad_fn=<ExpBackward0>)
    """
    check_dimension(d)
    fixed = kappa.detach().double()
    cosine = 1 - _gap(fixed.expand((*shape, *kappa.shape)), d)
    root = (4 * fixed.square() + (d - 1) ** 2).sqrt()
    across = 1 - cosine.square()
    correction = cosine - mean_resultant(fixed, d) + (fixed * across - (d - 1) * cosine) / root
    moved = kappa.double() - fixed
    draw, log_weight = cosine + across / root * moved, correction * moved
    return draw.to(kappa.dtype), log_weight.to(kappa.dtype)


def sample_gap(kappa: Tensor, d: int, size: Sequence[int]) -> Tensor:
    """Independent draws of 1 - ω of this size, with implicit gradients in κ.

    Args:
        kappa: concentrations in float64, which broadcast to that size.
        d: dimension of the space around the sphere.
        size: shape of the result.

    Examples:
        >>> sample_gap(torch.tensor([1e12], dtype=torch.float64), 5, (3,)).round(decimals=6)
        tensor([0., 0., 0.], dtype=torch.float64)
    """
    kappa = kappa.reshape((*[1] * (len(size) - kappa.dim()), *kappa.shape))
    fixed = kappa.detach()
    gap = _gap(fixed.expand(size), d)
    if not torch.is_grad_enabled():
        return gap
    if torch.compiler.is_compiling():
        # torch.compile cannot trace the function below; it needs first derivatives only
        return gap - cosine_slope(gap, fixed, d) * (kappa - fixed)
    return _Implicit.apply(kappa, gap, d)


class _Implicit(torch.autograd.Function):
    """`gap` as a function of κ, which has as many dimensions and broadcasts: its functions are expensive."""

    @staticmethod
    def forward(kappa: Tensor, gap: Tensor, d: int) -> Tensor:
        return gap.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kappa, _, ctx.d = inputs
        ctx.save_for_backward(output, kappa)
        ctx.save_for_forward(output, kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        gap, kappa = ctx.saved_tensors
        return (-grad * cosine_slope(gap, kappa, ctx.d)).sum_to_size(kappa.shape), None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], kappa: Tensor, gap: Tensor, d: int
    ) -> tuple[Tensor, int]:
        each = kappa.unsqueeze(0) if dims[0] is None else kappa.movedim(dims[0], 0)
        size = (info.batch_size, *gap.shape)
        draws = gap.expand(size) if dims[1] is None else gap.movedim(dims[1], 0)
        found: Tensor = _Implicit.apply(each, draws, d)
        return found, 0

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        gap, kappa = ctx.saved_tensors
        return -tangent * cosine_slope(gap, kappa, ctx.d)


def _gap(kappa: Tensor, d: int) -> Tensor:
    """A draw of 1 - ω for every κ, a float64 tensor."""
    if torch.compiler.is_compiling():
        return _first_accepted(kappa, d, WITHOUT_LOOP)[0]
    if eager():
        return accepted_gap(kappa, d)
    # a random number is batched wherever draws are to differ, whether κ is batched or not
    token = uniform((), dtype=kappa.dtype, device=kappa.device)
    drawn: Tensor = _Drawn.apply(kappa, token, d)
    return drawn


class _Drawn(torch.autograd.Function):
    """Draws for all members of a vmap at once, in the loop that vmap itself cannot run."""

    @staticmethod
    def forward(kappa: Tensor, token: Tensor, d: int) -> Tensor:
        return accepted_gap(kappa, d)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], kappa: Tensor, token: Tensor, d: int
    ) -> tuple[Tensor, int]:
        size, along = (info.batch_size, *kappa.shape), dims[0]
        if dims[1] is None:  # randomness="same": one set of random numbers for every κ
            assert along is not None
            alike = torch.vmap(
                lambda one: _first_accepted(one, d, WITHOUT_LOOP)[0], along, randomness="same"
            )
            return alike(kappa), 0
        each = kappa.expand(size) if along is None else kappa.movedim(along, 0)
        drawn: Tensor = _Drawn.apply(each, token.select(dims[1], 0), d)
        return drawn, 0


def accepted_gap(kappa: Tensor, d: int) -> Tensor:
    """A draw of 1 - ω for every κ, a float64 tensor without gradients, by as many proposals as it takes."""
    flat = kappa.reshape(-1)
    gap, accepted = _first_accepted(flat, d, AT_ONCE if flat.numel() > FEW else FOR_FEW)
    while not accepted.all():
        left = accepted.logical_not().nonzero().squeeze(-1)
        gap[left], accepted[left] = _first_accepted(flat[left], d, FOR_FEW)
    return gap.view(kappa.shape)


def _first_accepted(kappa: Tensor, d: int, count: int) -> tuple[Tensor, Tensor]:
    """1 - ω of the first accepted one of `count` proposals, or of the closest, and whether there was one.

    A coordinate t of a uniform point on the sphere is moved to ω = (t + c) / (1 + c t), c the mode of
    the proposal, and accepted with probability e^{κ(ω - c)} (1 + c t)^{1-d}.
    """
    kappa = kappa.unsqueeze(-1)
    radial, angular, threshold = uniform(
        (3, *kappa.shape[:-1], count), dtype=kappa.dtype, device=kappa.device
    ).unbind()
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
    log_threshold = torch.log1p(-threshold)
    accepted = (log_ratio < log_threshold).logical_not()
    turn = torch.arange(count, 0, -1, dtype=kappa.dtype, device=kappa.device)
    # the first accepted one; if there is none, the one that came closest
    first = torch.where(accepted, turn, log_ratio - log_threshold).argmax(-1, keepdim=True)
    return gap.gather(-1, first).squeeze(-1), accepted.any(-1)

"""E log(1 + e^u) of normal u, with its derivatives: what a half-Cauchy prior asks of a log-normal radius.

For standard deviations up to 3 by the trapezoid rule: for this function it is more exact than a Gauss-Hermite
rule of its size, because its errors fall with the distance of poles, not with its root. Beyond, the
softplus is max(u, 0), whose mean is known, and a bend around 0 that is narrow beside the density of u.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.fused import anywhere, members
from kasuri.numerics.quadrature import gauss_legendre
from kasuri.numerics.torch_internals import batched_at_most, is_traced

STEP, REACH = 0.3, 22
WIDE = 3.0  # standard deviation from which on the softplus is taken apart
NARROW = 1.2  # up to which a step twice as long does: poles are π / std away
FAR = 38.0  # log(1 + e^-FAR) is nothing

_NODES, _WEIGHTS = gauss_legendre(32)
_PLACES = [FAR * t * t for t in _NODES]  # closer together where the bend is
_SHARES = [2 * FAR * t * w for t, w in zip(_NODES, _WEIGHTS, strict=True)]
_HEIGHTS = [  # of the bend, and of the first and second derivative of softplus without its step
    (
        share * math.log1p(math.exp(-x)),
        share / (1 + math.exp(x)),
        share / ((1 + math.exp(x)) * (1 + math.exp(-x))),
    )
    for share, x in zip(_SHARES, _PLACES, strict=True)
]


def _rule(every: int) -> tuple[list[float], list[tuple[float, float]]]:
    """Nodes x, and weights w and w x."""
    nodes = [STEP * k for k in range(-REACH, REACH + 1, every)]
    total = sum(math.exp(-0.5 * x * x) for x in nodes)
    weights = [math.exp(-0.5 * x * x) / total for x in nodes]
    return nodes, [(w, w * x) for w, x in zip(weights, nodes, strict=True)]


_RULES = {every: _rule(every) for every in (1, 2, 3)}


def mean_softplus(mean: Tensor, std: Tensor, single: bool = False) -> Tensor:
    """E log(1 + e^u), u ~ N(mean, std²), elementwise and to 1e-9.

    Args:
        mean: (...) in float64.
        std: (...) not negative; both broadcast.
        single: whether single precision is enough, which takes a quarter of the time.

    Examples:
        >>> zero = torch.zeros((), dtype=torch.float64)
        >>> mean_softplus(zero, zero), mean_softplus(zero, zero + 100)
        (tensor(0.6931, dtype=torch.float64), tensor(39.9008, dtype=torch.float64))
    """
    mean, std = torch.broadcast_tensors(mean, std)
    if batched_at_most() and not is_traced(mean):
        found: Tensor = _MeanSoftplus.apply(mean, std, single)[0]
        return found
    return _everywhere(mean, std)[0]


class _MeanSoftplus(torch.autograd.Function):
    """The mean and its derivatives; every number by the form that it needs."""

    @staticmethod
    def forward(mean: Tensor, std: Tensor, single: bool) -> tuple[Tensor, Tensor, Tensor]:
        if mean.device.type != "cpu":  # to count would be to wait
            return _everywhere(mean, std)
        narrow, between = (_single(3), _single(1)) if single else (partial(_usual, every=2), _usual)
        is_narrow, is_wide = std <= NARROW, std > WIDE
        if is_narrow.all():  # as a rule, and then there is nothing to sort
            return narrow(mean, std)
        found = mean.new_empty(3, mean.numel())
        mean, std, shape = mean.reshape(-1), std.reshape(-1), mean.shape
        is_narrow, is_wide = is_narrow.reshape(-1), is_wide.reshape(-1)
        for chosen, rule in (
            (is_narrow, narrow),
            (~(is_narrow | is_wide), between),
            (is_wide, _wide),
        ):
            places = chosen.nonzero().squeeze(-1)
            if len(places):
                found[:, places] = torch.stack(rule(mean[places], std[places]))
        first, second, third = found.view(3, *shape).unbind()
        return first, second, third

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        in_mean, in_std = ctx.saved_tensors
        return grad * in_mean, grad * in_std, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], mean: Tensor, std: Tensor, single: bool
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        each = members((mean, std), dims, info.batch_size)
        return _MeanSoftplus.apply(*each, single), (0, 0, 0)


def _everywhere(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All forms for all numbers, wherever one may be needed."""
    usual = _usual(mean, std.clamp(max=WIDE), 1 if anywhere(std > NARROW) else 2)
    is_wide = std > WIDE
    if not anywhere(is_wide):
        return usual
    wide = _wide(mean, std.clamp(min=WIDE))
    first, second, third = (torch.where(is_wide, *both) for both in zip(wide, usual, strict=True))
    return first, second, third


def _usual(mean: Tensor, std: Tensor, every: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The mean and its derivatives, E sigmoid(u) and E sigmoid(u) ε, by all nodes or every second one."""
    x, sums = (torch.tensor(n, dtype=mean.dtype, device=mean.device) for n in _RULES[every])
    points = std.unsqueeze(-1) * x + mean.unsqueeze(-1)
    in_mean, in_std = (torch.sigmoid(points) @ sums).unbind(-1)
    return torch.nn.functional.softplus(points, threshold=40) @ sums[:, 0], in_mean, in_std


def _single(every: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """`_usual` in single precision; for narrow densities every third node is enough."""

    def rule(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second, third = (one.double() for one in _usual(mean.float(), std.float(), every))
        return first, second, third

    return rule


def _wide(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean and its derivatives for a u that is wider than the bend."""
    z = mean / std
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    above = torch.special.ndtr(z)
    places = torch.tensor(_PLACES, dtype=mean.dtype, device=mean.device)
    heights = torch.tensor(_HEIGHTS, dtype=mean.dtype, device=mean.device)
    right, left = (
        ((sign * places - mean.unsqueeze(-1)) / std.unsqueeze(-1)).square().mul(-0.5).exp()
        for sign in (1, -1)
    )
    even = (right + left) @ heights[:, ::2]
    odd = (left - right) @ heights[:, 1]
    per_place = 1 / (std * math.sqrt(2 * math.pi))
    return (
        mean * above + std * density + even[..., 0] * per_place,
        above + odd * per_place,
        even[..., 1] * per_place * std,  # std E f''(u), by parts
    )

"""Normal noise for outputs of layers, and adding it in one autograd node."""

import math
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.torch_internals import eager
from kasuri.streams import normal, normal_like

WINDOW = 16  # a cache line of float32: windows start aligned


def window_noise(like: Tensor) -> Tensor:
    """Normal noise (batch, ...) whose examples are windows of one sequence, 16 numbers apart.

    Every example's noise is N(0, I), and so is every output's over the batch: only different
    outputs of different examples share numbers. An objective that is a sum over examples sees the
    law of each example and nothing else, so its gradient stays unbiased; and a small part of
    the random numbers is enough.
    """
    batch, *rest = like.shape
    size = math.prod(rest)
    step = min(WINDOW, size)
    sequence = normal(((batch - 1) * step + size,), dtype=like.dtype, device=like.device)
    strides = [math.prod(rest[axis + 1 :]) for axis in range(len(rest))]
    return sequence.as_strided(like.shape, (step, *strides))


def normal_noise(like: Tensor, *, examples: bool) -> Tensor:
    """Normal noise shaped like a tensor whose first dimension counts examples, or does not.

    Examples:
        >>> normal_noise(torch.zeros(2, 3), examples=True).shape
        torch.Size([2, 3])
    """
    return window_noise(like) if examples and eager() else normal_like(like)


def add_noise(y: Tensor, variance: Tensor, *, examples: bool) -> Tensor:
    """Y + √variance ⊙ noise.

    Args:
        y: what the noise is added to.
        variance: shaped like y.
        examples: the first dimension counts examples, so that noise may be shared between them in
            the way of `window_noise`.

    Examples:
        >>> add_noise(torch.ones(2, 3), torch.zeros(2, 3), examples=True)
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """
    if not eager() or y.dtype != variance.dtype or not y.is_contiguous():
        return torch.addcmul(y, safe_sqrt(variance).to(y.dtype), normal_like(y))
    return _AddNoise.apply(y, variance, normal_noise(y, examples=examples))


class _AddNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        spread = variance.sqrt()
        noisy = torch.addcmul(y, spread, noise)
        # dy/dvariance = noise / 2√variance; where the variance is 0 its own derivatives are 0
        # as well, and a quotient that stays finite is all that is needed there
        slope = torch.div(noise, spread.add_(torch.finfo(y.dtype).tiny ** 0.5), out=spread)
        ctx.save_for_backward(slope)
        return noisy

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad, (slope * grad).mul_(0.5), None

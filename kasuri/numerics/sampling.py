"""Reparameterised draws: of independent normal weights, and of noise for outputs of layers."""

import math
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.safe import LOG_CEILING, capped_exp, safe_sqrt
from kasuri.numerics.torch_internals import eager
from kasuri.streams import normal, normal_like

WINDOW = 16  # a cache line of float32: windows start aligned


def sample_normal(mean: Tensor, log_scale: Tensor) -> Tensor:
    """A draw of N(mean, capped_exp(log_scale)²)."""
    if eager():
        return _SampleNormal.apply(mean, log_scale)
    return torch.addcmul(mean, capped_exp(log_scale), normal_like(mean))


class _SampleNormal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_scale: Tensor) -> Tensor:
        shift = normal_like(mean).mul_(log_scale.clamp(max=LOG_CEILING).exp_())
        ctx.save_for_backward(shift)
        return mean + shift

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (shift,) = ctx.saved_tensors
        return grad, grad * shift  # d/dlog_scale of mean + e^log_scale · noise is the shift itself


def scaled_draw(mean: Tensor, scale: Tensor) -> Tensor:
    """A draw of N(mean, scale²); where no gradient is wanted, in the memory of its noise."""
    noise = normal_like(mean)
    if torch.is_grad_enabled() or not eager():
        return torch.addcmul(mean, scale, noise)
    return noise.mul_(scale).add_(mean)


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
    """Normal noise like a tensor; if its first dimension counts examples, shared as `window_noise` does."""
    return window_noise(like) if examples and eager() else normal_like(like)


def add_noise(y: Tensor, variance: Tensor, *, examples: bool) -> Tensor:
    """Y + √variance ⊙ noise, see `normal_noise`; the variance broadcasts."""
    noise = normal_noise(y, examples=examples)
    if not torch.is_grad_enabled():
        return torch.addcmul(y, variance.sqrt().to(y.dtype), noise)
    if eager() and variance.shape == y.shape and variance.dtype == y.dtype:
        return _AddNoise.apply(y, variance, noise)
    return torch.addcmul(y, safe_sqrt(variance).to(y.dtype), noise)


class _AddNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        spread = variance.sqrt()
        noisy = torch.addcmul(y, spread, noise)
        # dy/dvariance = noise / 2√variance; where the variance is 0 its own derivatives are 0
        # as well, and any finite quotient will do
        ctx.save_for_backward(noise / spread.add_(torch.finfo(y.dtype).tiny ** 0.5))
        return noisy

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad, (slope * grad).mul_(0.5), None

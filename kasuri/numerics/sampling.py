"""Reparameterised draws: of whole weight matrices, a block at a time, and of noise for outputs of layers.

Several sweeps over a block that stays in the cache cost the memory traffic of one, and without
gradients the draw itself is the only memory that is written.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics.fused import scratch
from kasuri.numerics.low_rank import CEILING, product
from kasuri.numerics.safe import LOG_CEILING, capped_exp, safe_sqrt
from kasuri.numerics.torch_internals import eager
from kasuri.streams import generator, normal, normal_like

BLOCK = 1 << 18  # entries handled at once: a megabyte of float32
WINDOW = 16  # a cache line of float32: windows start aligned


def sample_normal(mean: Tensor, log_scale: Tensor) -> Tensor:
    """A draw of N(mean, capped_exp(log_scale)²)."""
    if not eager() or not (mean.is_contiguous() and log_scale.is_contiguous()):
        return torch.addcmul(mean, capped_exp(log_scale), normal_like(mean))
    if torch.is_grad_enabled() and (mean.requires_grad or log_scale.requires_grad):
        return _SampleNormal.apply(mean, log_scale)
    return _draw_normal(mean, log_scale)[0]


def sample_low_rank(mean: Tensor, log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """A draw of N(mean, (RᵀC)²), see `low_rank` for the factors."""
    tensors = (mean, log_rows, log_columns)
    if not eager() or mean.dim() > 2 or not mean.is_contiguous():
        return torch.addcmul(mean, product(log_rows, log_columns), normal_like(mean))
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _SampleLowRank.apply(*tensors)
    return _draw_low_rank(mean, *_factors(log_rows, log_columns))


def _pieces(tensors: list[Tensor], size: int) -> Iterable[tuple[Tensor, ...]]:
    """All tensors cut along the first dimension into pieces of the same size."""
    if len(tensors[0]) <= size:
        return [tuple(tensors)]
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def _draw_normal(
    mean: Tensor, log_scale: Tensor, shift: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(draw, draw - mean); the second in `shift`, or the draw once more if there is none."""
    draw = torch.empty_like(mean)
    shift = draw if shift is None else shift
    source = generator(mean.device)
    flat = [t.view(-1) for t in (mean, log_scale, shift, draw)]
    for mean_part, log_part, shift_part, draw_part in _pieces(flat, BLOCK):
        scale = scratch("scale", log_part, len(log_part))
        torch.clamp(log_part, max=LOG_CEILING, out=scale).exp_()
        torch.add(mean_part, shift_part.normal_(generator=source).mul_(scale), out=draw_part)
    return draw, shift


class _SampleNormal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_scale: Tensor) -> Tensor:
        draw, shift = _draw_normal(mean, log_scale, torch.empty_like(mean))
        ctx.save_for_backward(shift)
        return draw

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (shift,) = ctx.saved_tensors
        return grad, grad * shift  # d/dlog_scale of mean + e^log_scale · noise is the shift itself


def _factors(log_rows: Tensor, log_columns: Tensor) -> tuple[Tensor, Tensor]:
    """R and C; e^-40 more or less does not show in a draw, so the upper bound is enough."""
    return log_rows.clamp(max=CEILING).exp_(), log_columns.clamp(max=CEILING).exp_()


def _draw_low_rank(
    mean: Tensor, rows: Tensor, columns: Tensor, noise: Tensor | None = None
) -> Tensor:
    """The draw; its noise is left in `noise` if given."""
    draw, tall = torch.empty_like(mean), rows.T.contiguous()
    noise = draw if noise is None else noise
    source = generator(mean.device)
    height = max(1, BLOCK // mean.shape[1])
    for mean_part, tall_part, noise_part, draw_part in _pieces([mean, tall, noise, draw], height):
        scale = torch.mm(tall_part, columns, out=scratch("scale", mean, *mean_part.shape))
        torch.addcmul(mean_part, scale, noise_part.normal_(generator=source), out=draw_part)
    return draw


class _SampleLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_rows: Tensor, log_columns: Tensor) -> Tensor:
        rows, columns = _factors(log_rows, log_columns)
        noise = torch.empty_like(mean)
        draw = _draw_low_rank(mean, rows, columns, noise)
        ctx.save_for_backward(rows, columns, noise)
        return draw

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns, noise = ctx.saved_tensors
        grad_scale = grad * noise
        return grad, rows * F.linear(columns, grad_scale), columns * (rows @ grad_scale)


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
    """Normal noise shaped like a tensor whose first dimension counts examples, or does not."""
    return window_noise(like) if examples and eager() else normal_like(like)


def add_noise(y: Tensor, variance: Tensor, *, examples: bool) -> Tensor:
    """Y + √variance ⊙ noise.

    Args:
        y: what the noise is added to.
        variance: shaped like y.
        examples: the first dimension counts examples, so that noise may be shared between them in
            the way of `window_noise`.
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

"""Reparameterised draws of whole weight matrices, a block at a time.

Several sweeps over a block that stays in the cache cost the memory traffic of one, and without
gradients the draw itself is the only memory that is written.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics.fused import scratch
from kasuri.numerics.low_rank import CEILING, product
from kasuri.numerics.safe import LOG_CEILING, capped_exp
from kasuri.numerics.torch_internals import eager
from kasuri.streams import generator, normal_like

BLOCK = 1 << 18  # entries handled at once: a megabyte of float32


def sample_normal(mean: Tensor, log_scale: Tensor) -> Tensor:
    """A draw of N(mean, capped_exp(log_scale)²).

    Examples:
        >>> sample_normal(torch.zeros(2), torch.full((2,), -200.0))
        tensor([0., 0.])
    """
    if not eager() or not (mean.is_contiguous() and log_scale.is_contiguous()):
        return torch.addcmul(mean, capped_exp(log_scale), normal_like(mean))
    if torch.is_grad_enabled() and (mean.requires_grad or log_scale.requires_grad):
        return _SampleNormal.apply(mean, log_scale)
    return _draw_normal(mean, log_scale)[0]


def sample_low_rank(mean: Tensor, log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """A draw of N(mean, (RᵀC)²), see `low_rank` for the factors.

    Examples:
        >>> minus = torch.full((2, 3), -200.0)
        >>> sample_low_rank(torch.zeros(3, 3), minus, minus).abs().max()
        tensor(0.)
    """
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

"""Local reparameterisation of a linear layer whose variance has low rank, in one autograd node.

y = x Mᵀ + b + √(x² Q Pᵀ + v) ⊙ ε, where P (K, out) and Q (K, in) are the factors of σ² and v is the
variance of the bias. The plain formula takes some forty autograd nodes, whose bookkeeping costs
more than the arithmetic for small layers, and twice as many sweeps over (batch, out).
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.numerics.fused import eager
from weft.numerics.low_rank import CEILING, factor, pairs, square_factors
from weft.numerics.safe import safe_sqrt

SLICE = 1 << 17  # numbers per slice: half a megabyte, a few such buffers fit the second-level cache


def local_linear(
    x: Tensor,
    mean: Tensor,
    log_rows: Tensor,
    log_columns: Tensor,
    bias: Tensor | None,
    bias_variance: Tensor | None,
) -> Tensor:
    """A draw of the layer's output at x (..., in), with fresh weights for every row of x.

    Args:
        x: inputs.
        mean: (out, in) mean of the weight.
        log_rows: (k, out) logarithms of R.
        log_columns: (k, in) logarithms of C; σ = RᵀC.
        bias: (out,) mean of the bias, or None.
        bias_variance: (out,) its variance, or None.

    >>> x, mean = torch.randn(5, 4), torch.randn(3, 4)
    >>> local_linear(x, mean, torch.zeros(1, 3), torch.zeros(1, 4), None, None).shape
    torch.Size([5, 3])
    """
    inputs = (mean, log_rows, log_columns, bias, bias_variance)
    if not eager() or torch.is_autocast_enabled(x.device.type) or x.dtype != mean.dtype:
        return _plain(x, *inputs)
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    y = _LocalLinear.apply(flat, *inputs)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], y.shape[-1])


def _plain(
    x: Tensor,
    mean: Tensor,
    log_rows: Tensor,
    log_columns: Tensor,
    bias: Tensor | None,
    bias_variance: Tensor | None,
) -> Tensor:
    """The formula as it is written, the reference for the fused form."""
    left, right = square_factors(factor(log_rows), factor(log_columns))
    variance = F.linear(x.square(), right) @ left
    if bias_variance is not None:
        variance = variance + bias_variance
    y = F.linear(x, mean, bias)
    return y + safe_sqrt(variance).to(y.dtype) * torch.randn_like(y)


class _LocalLinear(torch.autograd.Function):
    """Elementwise work goes a slice of the batch at a time, in buffers that stay in the cache."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        log_rows: Tensor,
        log_columns: Tensor,
        bias: Tensor | None,
        bias_variance: Tensor | None,
    ) -> Tensor:
        # e^-40 more or less does not show in a variance: the upper bound alone is enough here
        rows, columns = log_rows.clamp(max=CEILING).exp_(), log_columns.clamp(max=CEILING).exp_()
        left, right = square_factors(rows, columns)
        y = F.linear(x, mean, bias)
        slope, hidden = torch.empty_like(y), x.new_empty(len(x), len(left))
        tiny = torch.finfo(y.dtype).tiny ** 0.5
        for part in _slices(x, y):
            squares = x[part].square()
            torch.mm(squares, right.T, out=hidden[part])
            spread = torch.mm(hidden[part], left)
            if bias_variance is not None:
                spread += bias_variance
            noise = slope[part].normal_()
            y[part].addcmul_(spread.sqrt_(), noise)
            # dy/dvariance = noise / 2√variance; where the variance is 0 its own derivatives are 0
            # as well, and a quotient that stays finite is all that is needed there
            noise.div_(spread.add_(tiny).mul_(2))
        ctx.save_for_backward(x, mean, rows, columns, left, right, hidden, slope)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rows, columns, left, right, hidden, slope = ctx.saved_tensors
        needs_x, _, _, _, has_bias, has_variance = ctx.needs_input_grad
        grad = grad.contiguous()
        grad_x = grad @ mean if needs_x else None
        grad_left, grad_right = torch.zeros_like(left), torch.zeros_like(right)
        grad_bias_variance = left.new_zeros(left.shape[1]) if has_variance else None
        for part in _slices(x, grad):
            grad_variance = slope[part] * grad[part]
            grad_hidden = F.linear(grad_variance, left)
            grad_left.addmm_(hidden[part].T, grad_variance)
            grad_right.addmm_(grad_hidden.T, x[part].square())
            if grad_x is not None:
                grad_x[part].addcmul_(x[part], grad_hidden @ right, value=2)
            if grad_bias_variance is not None:
                grad_bias_variance += grad_variance.sum(0)
        return (
            grad_x,
            grad.T @ x,
            _log_gradient(rows, grad_left, weighted=True),
            _log_gradient(columns, grad_right, weighted=False),
            grad.sum(0) if has_bias else None,
            grad_bias_variance,
        )


def _slices(x: Tensor, y: Tensor) -> Iterator[slice]:
    """The batch in pieces of about SLICE numbers of the wider of input and output.

    A whole multiple of 16 rows keeps the stream of noise the same as drawn at once.
    """
    height = max(16, SLICE // max(x.shape[1], y.shape[1]) // 16 * 16)
    for start in range(0, len(x), height):
        yield slice(start, start + height)


def _log_gradient(factors: Tensor, grad: Tensor, weighted: bool) -> Tensor:
    """From the gradient in the K products r_a r_b to that in log r."""
    if factors.shape[0] == 1:
        return 2 * grad * factors.square()
    first, second, weight = pairs(factors)
    each = grad * factors[first] * factors[second]
    each = each * weight if weighted else each
    return torch.zeros_like(factors).index_add_(0, first, each).index_add_(0, second, each)

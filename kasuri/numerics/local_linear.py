"""Local reparameterisation of a linear layer in one autograd node.

For variances of low rank, y = x Mᵀ + b + √(x² Q Pᵀ + v) ⊙ ε, where P (K, out) and Q (K, in) are the
factors of σ² and v is the variance of the bias. For a matrix normal weight the noise alone, ‖x C‖ · R ε with
R and C of the form T diag(d). The plain formulas take some thirty to forty autograd nodes, whose
bookkeeping costs more than the arithmetic for small layers, and twice as many sweeps over (batch, out).
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics.fused import scratch
from kasuri.numerics.low_rank import CEILING, factor, pairs, square_factors
from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.sampling import window_noise
from kasuri.numerics.torch_internals import eager
from kasuri.numerics.triangular import backwards, cut, forwards, outer
from kasuri.streams import normal_like

_repeated = threading.local()

SLICE = 1 << 17  # numbers per slice: half a megabyte, a few such buffers fit the second-level cache


class LowRankLayer(NamedTuple):
    """A linear layer with a k-tied weight.

    Args:
        mean: (out, in) mean of the weight.
        log_rows: (k, out) logarithms of R.
        log_columns: (k, in) logarithms of C; σ = RᵀC.
        bias: (out,) mean of the bias, or None.
        bias_variance: (out,) its variance, or None.
    """

    mean: Tensor
    log_rows: Tensor
    log_columns: Tensor
    bias: Tensor | None = None
    bias_variance: Tensor | None = None


def local_linear(x: Tensor, layer: LowRankLayer) -> Tensor:
    """A draw of the layer's output at x (..., in), with fresh weights for every row of x."""
    if not eager() or torch.is_autocast_enabled(x.device.type) or x.dtype != layer.mean.dtype:
        return _plain(x, layer)
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if flat.data_ptr() in _memory() and not torch.is_grad_enabled():
        centre, spread = _moments_once(flat, layer)
        y = torch.addcmul(centre, spread, _noise(centre, x.dim() == 2))
    else:
        y = _LocalLinear.apply(flat, *layer, x.dim() == 2)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], y.shape[-1])


@contextmanager
def repeating(inputs: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block, layers fed one of these tensors compute mean and variance once only.

    For many draws at the same inputs: the first layer of a network is most of its cost.
    """
    known = _memory()
    added = {tensor.data_ptr() for tensor in inputs} - known.keys()
    known.update({pointer: {} for pointer in added})
    try:
        yield
    finally:
        for pointer in added:
            del known[pointer]


def _memory() -> dict[int, dict[Any, tuple[Tensor, Tensor]]]:
    """What is remembered in this thread, by address of the input."""
    memory: dict[int, dict[Any, tuple[Tensor, Tensor]]]
    memory = _repeated.__dict__.setdefault("memory", {})
    return memory


def _moments_once(x: Tensor, layer: LowRankLayer) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the output, remembered until input or parameters change."""
    known = _memory()[x.data_ptr()]
    key = (x.shape, x.stride(), x._version, *((t.data_ptr(), t._version) for t in layer[:3]))
    if key not in known:
        known[key] = F.linear(x, layer.mean, layer.bias), safe_sqrt(_variance(x, layer))
    return known[key]


def _plain(x: Tensor, layer: LowRankLayer) -> Tensor:
    """The formula as it is written, the reference for the fused form."""
    y = F.linear(x, layer.mean, layer.bias)
    return y + safe_sqrt(_variance(x, layer)).to(y.dtype) * normal_like(y)


def _variance(x: Tensor, layer: LowRankLayer) -> Tensor:
    """Variance of every output."""
    left, right = square_factors(factor(layer.log_rows), factor(layer.log_columns))
    variance = F.linear(x.square(), right) @ left
    return variance if layer.bias_variance is None else variance + layer.bias_variance


class _LocalLinear(torch.autograd.Function):
    """Elementwise work goes a slice of the batch at a time, in memory that stays in the cache."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        log_rows: Tensor,
        log_columns: Tensor,
        bias: Tensor | None,
        bias_variance: Tensor | None,
        examples: bool,
    ) -> Tensor:
        squares = _squares(log_rows, log_columns)
        left, right = squares.tensor_split([len(mean)], 1)
        y = F.linear(x, mean, bias)
        noise, slope = _noise(y, examples), torch.empty_like(y)
        hidden = x.new_empty(len(x), len(left))
        tiny = torch.finfo(y.dtype).tiny ** 0.5
        for part_x, part_y, part_noise, part_slope, part_hidden in _slices(
            x, y, noise, slope, hidden
        ):
            torch.mm(
                torch.square(part_x, out=scratch("input", x, *part_x.shape)),
                right.T,
                out=part_hidden,
            )
            spread = torch.mm(part_hidden, left, out=scratch("output", y, *part_y.shape))
            if bias_variance is not None:
                spread += bias_variance
            part_y.addcmul_(spread.sqrt_(), part_noise)
            # dy/dvariance = noise / 2√variance; where the variance is 0 its own derivatives are 0
            # as well, and a quotient that stays finite is all that is needed there
            torch.div(part_noise, spread.add_(tiny), out=part_slope)
        ctx.rank = len(log_rows)
        ctx.save_for_backward(x, mean, squares, hidden, slope)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, squares, hidden, slope = ctx.saved_tensors
        needs_x, _, _, _, has_bias, has_variance, _ = ctx.needs_input_grad
        left, right = squares.tensor_split([len(mean)], 1)
        grad_x = grad @ mean if needs_x else x  # x where none is wanted: sliced but not written
        grad_squares = torch.zeros_like(squares)
        grad_left, grad_right = grad_squares.tensor_split([len(mean)], 1)
        grad_bias_variance = left.new_zeros(left.shape[1]) if has_variance else None
        for part in _slices(x, grad, slope, hidden, grad_x):
            part_x, part_grad, part_slope, part_hidden, part_grad_x = part
            output = scratch("output", x, *part_grad.shape)
            inputs = scratch("input", x, *part_x.shape)
            twice = torch.mul(part_slope, part_grad, out=output)  # 2 · the gradient in the variance
            twice_hidden = F.linear(twice, left)
            grad_left.addmm_(part_hidden.T, twice)
            grad_right.addmm_(twice_hidden.T, torch.square(part_x, out=inputs))
            if needs_x:
                part_grad_x.addcmul_(part_x, torch.mm(twice_hidden, right, out=inputs))
            if grad_bias_variance is not None:
                grad_bias_variance.add_(twice.sum(0), alpha=0.5)
        # from twice the gradient in the K products r_a r_b to that in log r
        grad_logs = _halves(ctx.rank, grad.dtype, grad.device) @ grad_squares.mul_(squares)
        grad_rows, grad_columns = grad_logs.tensor_split([len(mean)], 1)
        return (
            grad_x if needs_x else None,
            grad.T @ x,
            grad_rows.contiguous(),
            grad_columns.contiguous(),
            grad.sum(0) if has_bias else None,
            grad_bias_variance,
            None,
        )


def _squares(log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """Factors of σ², P and Q side by side: (K, out + in), see `square_factors`."""
    # e^-40 more or less does not show in a variance: the upper bound alone is enough here
    factors = torch.cat([log_rows, log_columns], 1).clamp_(max=CEILING).exp_()
    if len(factors) == 1:
        return factors.square_()
    first, second, weight = pairs(factors)
    squares = factors[first].mul_(factors[second])
    squares[:, : log_rows.shape[1]] *= weight
    return squares


@lru_cache
def _halves(rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(k, K): half of how often each factor is in each product."""
    eye = torch.eye(rank, dtype=dtype, device=device)
    first, second = torch.triu_indices(rank, rank, device=device)
    return 0.5 * (eye[:, first] + eye[:, second])


def _noise(y: Tensor, examples: bool) -> Tensor:
    """Rows that are positions of a sequence, not examples, must not share any noise."""
    return window_noise(y) if examples else normal_like(y)


def _slices(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The batch in pieces of about SLICE numbers of the wider of the first two."""
    height = max(1, SLICE // max(tensors[0].shape[1], tensors[1].shape[1]))
    if len(tensors[0]) <= height:
        return iter((tensors,))
    return zip(*(tensor.split(height) for tensor in tensors), strict=True)


def kronecker_noise(
    x: Tensor,
    columns: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    noise: Tensor,
    top: float,
) -> Tensor:
    """‖x C‖ · R ε for every row of x (batch, in), in eager mode.

    Args:
        x: (batch, in) inputs.
        columns: T of C below its diagonal, folded, and log d (in,).
        rows: the same of R, of size out.
        noise: ε (batch, out).
        top: where log d is held.
    """
    return _KroneckerNoise.apply(x, *columns, *rows, noise, top)


class _KroneckerNoise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        lower_columns: Tensor,
        log_columns: Tensor,
        lower_rows: Tensor,
        log_rows: Tensor,
        noise: Tensor,
        top: float,
    ) -> Tensor:
        *left, half, even = cut(lower_columns)
        *right, half_rows, even_rows = cut(lower_rows)
        scale = log_columns.clamp(max=top).exp_()
        pulled = forwards(x, left, half, even).mul_(scale)
        lengths = torch.linalg.vector_norm(pulled, dim=1, keepdim=True)
        fed = noise * log_rows.clamp(max=top).exp_()
        moved = backwards(fed, right, half_rows, even_rows)
        ctx.save_for_backward(x, pulled, lengths, scale, fed, moved, *left, *right)
        ctx.cuts = half, even, half_rows, even_rows
        return moved * lengths

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, pulled, lengths, scale, fed, moved, *parts = ctx.saved_tensors
        half, even, half_rows, even_rows = ctx.cuts
        work = scratch("output", grad, *grad.shape)
        # lengths have gradient pulled / length; where one is 0, pulled is as well and any finite
        # quotient will do
        slope = torch.mul(grad, moved, out=work).sum(1, keepdim=True)
        slope /= lengths + torch.finfo(grad.dtype).tiny ** 0.5
        wide = torch.mul(pulled, slope, out=scratch("input", x, *x.shape))
        grad_log_columns = (wide * pulled).sum(0)
        wide *= scale
        narrow = torch.mul(grad, lengths, out=work)
        back = forwards(narrow, parts[3:], half_rows, even_rows)
        return (
            backwards(wide, parts[:3], half, even) if ctx.needs_input_grad[0] else None,
            outer(x, wide, half, even),
            grad_log_columns,
            outer(narrow, fed, half_rows, even_rows),
            back.mul_(fed).sum(0),
            None,
            None,
        )

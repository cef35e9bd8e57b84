"""Elementary functions whose values and gradients stay finite where the textbook ones do not.

`normal_sums` has a fused form for eager mode; the plain formula is as fast everywhere else.
"""

from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.torch_internals import eager

LOG_CEILING = 30.0  # e^30 squared and summed still fits float32


def safe_sqrt(value: Tensor) -> Tensor:
    """Square root with gradient 0, not infinity, at 0.

    A variance is exactly zero wherever a layer's input is zero (after a ReLU, at padding), and
    adding a floor instead would put noise where there is none.
    """
    zero = value == 0
    return torch.where(zero, 1.0, value).sqrt().masked_fill(zero, 0.0)


def capped_exp(log: Tensor, top: float = LOG_CEILING) -> Tensor:
    """exp(log), held at e^top (e^30) above top; the gradient still points back from there."""
    return held(log, top).exp()


def normal_sums(loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ log s, Σ (loc² + s²)) for s = capped_exp(log_scale): what a normal's KL needs, in one node."""
    if eager():
        both: tuple[Tensor, Tensor] = _NormalSums.apply(loc, log_scale)
        return both
    logs = held(log_scale, LOG_CEILING)
    return logs.sum(), sum_squares(loc) + sum_squares(logs.exp())


def sum_squares(x: Tensor) -> Tensor:
    """Σ x² in one sweep forwards and one backwards (`x.square().sum()` takes two and three)."""
    return _SumSquares.apply(x) if eager() else x.square().sum()


def held(logs: Tensor, top: float) -> Tensor:
    """Logarithms, held at `top` above it; the gradient still points back from there.

    Examples:
        >>> held(torch.tensor([0.0, 100.0]), 10.0)
        tensor([ 0., 10.])
    """
    return logs - (logs.detach() - top).clamp(min=0)  # also right at -inf


def soft_min(value: Tensor, ceiling: float) -> Tensor:
    """Half the harmonic mean, 1 / (1/value + 1/ceiling): below both, smooth, never flat.

    Examples:
        >>> soft_min(torch.tensor([1e-3, 1e3]), 0.2)
        tensor([0.0010, 0.2000])
    """
    return value / (1 + value / ceiling)


def soft_min_inverse(bounded: Tensor, ceiling: float) -> Tensor:
    """The value that `soft_min` maps to `bounded` (which must be below the ceiling)."""
    return bounded / (1 - bounded / ceiling)


class _NormalSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
        held = log_scale.clamp(max=LOG_CEILING)
        total = held.sum()
        squares = held.mul_(2).exp_()
        ctx.save_for_backward(loc, squares)
        flat = loc.reshape(-1)
        return total, torch.dot(flat, flat).add_(squares.sum())

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_squares: Tensor) -> tuple[Tensor, Tensor]:
        loc, squares = ctx.saved_tensors
        twice = 2 * grad_squares
        return loc * twice, torch.addcmul(grad, squares, twice)


class _SumSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        flat = x.reshape(-1)
        return torch.dot(flat, flat)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (2 * grad)


def bounded_logs(logs: Tensor, top: float = LOG_CEILING, ceiling: float | None = None) -> Tensor:
    """Logarithms held at `top` (the gradient ignores it), softly below the ceiling's."""
    logs = held(logs, top)
    return logs if ceiling is None else logs - torch.log1p(logs.exp() / ceiling)


def unbounded_logs(logs: Tensor, ceiling: float | None) -> Tensor:
    """What `bounded_logs` maps to these logarithms."""
    if ceiling is None:
        return logs
    return soft_min_inverse(logs.exp().clamp(max=0.99 * ceiling), ceiling).log()

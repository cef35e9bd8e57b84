"""Elementary functions whose values and gradients stay finite where the textbook ones do not.

Each has a fused form for eager mode and the plain formula for everything else.
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
    if eager():
        return _SafeSqrt.apply(value)
    positive = value > 0
    return torch.where(positive, value, 1.0).sqrt() * positive


def capped_exp(log: Tensor, top: float = LOG_CEILING) -> Tensor:
    """exp(log), held at e^top (e^30) above top; the gradient still points back from there."""
    if eager():
        return _CappedExp.apply(log, top)
    return held(log, top).exp()


def normal_sums(loc: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ log s, Σ (loc² + s²)) for s = capped_exp(log_scale): what a normal's KL needs, in one node."""
    if eager():
        both: tuple[Tensor, Tensor] = _NormalSums.apply(loc, log_scale)
        return both
    squares = loc.square().sum() + capped_exp(log_scale).square().sum()
    return log_scale.clamp(max=LOG_CEILING).sum(), squares


def sum_squares(x: Tensor) -> Tensor:
    """Σ x² in one sweep forwards and one backwards (`x.square().sum()` takes two and three)."""
    return _SumSquares.apply(x) if eager() else x.square().sum()


def held(logs: Tensor, top: float) -> Tensor:
    """Logarithms, held at `top` above it; the gradient still points back from there.

    Examples:
        >>> held(torch.tensor([0.0, 100.0]), 10.0)
        tensor([ 0., 10.])
    """
    return logs + (logs.clamp(max=top) - logs).detach()


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


class _SafeSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        root = value.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return torch.where(root > 0, grad / (2 * root), 0.0)


class _CappedExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log: Tensor, top: float) -> Tensor:
        value = log.clamp(max=top).exp_()
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (value,) = ctx.saved_tensors
        return grad * value, None  # also above the ceiling, so that nothing gets stuck there


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

"""Elementary functions whose values and gradients stay finite where the textbook ones do not.

Each has a fused form for eager mode and the plain formula, which torch.compile fuses itself.
"""

from typing import Any

import torch
from torch import Tensor

LOG_CEILING = 30.0
"""Largest logarithm `capped_exp` exponentiates: e^30 squared and summed still fits float32."""


class _SafeSqrt(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor) -> Tensor:
        return value.sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return torch.where(root > 0, grad / (2 * root), 0.0)


def safe_sqrt(value: Tensor) -> Tensor:
    """Square root with gradient 0, not infinity, at 0.

    A variance is exactly zero wherever a layer's input is zero (after a ReLU, at padding), and
    adding a floor instead would put noise where there is none.

    >>> x = torch.zeros(1, requires_grad=True)
    >>> safe_sqrt(x).sum().backward(); x.grad
    tensor([0.])
    """
    if torch.compiler.is_compiling():
        positive = value > 0
        return torch.where(positive, value, 1.0).sqrt() * positive
    return _SafeSqrt.apply(value)


class _CappedExp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(log: Tensor) -> Tensor:
        return log.clamp(max=LOG_CEILING).exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        return grad * value  # also above the ceiling, so that nothing gets stuck there


def capped_exp(log: Tensor) -> Tensor:
    """exp(log), held at e^30 above 30; the gradient still points back from there.

    >>> capped_exp(torch.tensor([0.0, 100.0]))
    tensor([1.0000e+00, 1.0686e+13])
    """
    if torch.compiler.is_compiling():
        return (log + (log.clamp(max=LOG_CEILING) - log).detach()).exp()
    return _CappedExp.apply(log)


def soft_min(value: Tensor, ceiling: float) -> Tensor:
    """Half the harmonic mean, 1 / (1/value + 1/ceiling): below both, smooth, never flat.

    >>> soft_min(torch.tensor([1e-3, 1e3]), 0.2)
    tensor([0.0010, 0.2000])
    """
    return value / (1 + value / ceiling)


def soft_min_inverse(bounded: Tensor, ceiling: float) -> Tensor:
    """The value that `soft_min` maps to `bounded` (which must be below the ceiling)."""
    return bounded / (1 - bounded / ceiling)


class _SumSquares(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        return torch.dot(flat, flat)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * (2 * grad)


def sum_squares(x: Tensor) -> Tensor:
    """Σ x² in one sweep forwards and one backwards (`x.square().sum()` takes two and three).

    >>> sum_squares(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """
    return x.square().sum() if torch.compiler.is_compiling() else _SumSquares.apply(x)

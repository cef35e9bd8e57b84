"""Convolutions, slices and joins inside vmap, with any batch size.

torch's own rules for vmap, and for derivatives inside it, make a constant of the batch size when a program is
traced. Here a linear operation says itself what it does with more dimensions in front.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Linear = Callable[[Tensor, int], Tensor]  # of a tensor with so many more dimensions in front


def linear(function: Linear, x: Tensor) -> Tensor:
    """`function(x, 0)`, which is linear in x; inside vmap it is called with more dimensions in front."""
    return _Forward.apply(x, function, 0)


def convolve(op: Any, x: Tensor, weight: Tensor, options: Sequence[Any]) -> Tensor:
    """A convolution without bias; the weight is the same for all examples."""

    def pictures(x: Tensor, lead: int) -> Tensor:
        shape = x.shape[: lead + 1]
        result: Tensor = op(x.flatten(0, lead), weight, None, *options)
        return result.unflatten(0, shape) if lead else result

    return linear(pictures, x)


def part(op: Any, x: Tensor, dim: int, *where: Any) -> Tensor:
    """torch.select or a slice along one dimension."""
    dim = dim % x.dim()
    return linear(lambda x, lead: op(x, dim + lead, *where), x)


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """torch.cat of tensors that have one number of dimensions."""
    if len(parts) == 1:
        return parts[0]
    return _Join.apply(dim % parts[0].dim(), *parts)


def _in_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, function: Linear, lead: int) -> Tensor:
        return function(x, lead)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.function, ctx.lead = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return _Backward.apply(slope, *ctx.saved_tensors, ctx.function, ctx.lead), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, function: Linear, lead: int) -> Any:
        return _Forward.apply(x.movedim(in_dims[0], 0), function, lead + 1), 0


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(slope: Tensor, x: Tensor, function: Linear, lead: int) -> Tensor:
        with torch.enable_grad():
            zeros = torch.zeros_like(x).requires_grad_()
            (gradient,) = torch.autograd.grad(function(zeros, lead), zeros, slope)
        return gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, slope: Tensor, x: Tensor, function: Linear, lead: int) -> Any:
        size = info.batch_size
        slope, x = _in_front(slope, in_dims[0], size), _in_front(x, in_dims[1], size)
        return _Backward.apply(slope, x, function, lead + 1), 0


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(dim: int, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.dim, *parts = inputs
        ctx.sizes = [part.shape[ctx.dim] for part in parts]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return None, *slope.split(ctx.sizes, ctx.dim)

    @staticmethod
    def vmap(info: Any, in_dims: Any, dim: int, *parts: Tensor) -> Any:
        moved = [
            _in_front(part, at, info.batch_size)
            for part, at in zip(parts, in_dims[1:], strict=True)
        ]
        return _Join.apply(dim + 1, *moved), 0

"""Convolutions, slices and joins inside vmap, with any batch size.

torch's own rules for vmap, and for derivatives inside it, make a constant of the batch size when a program is
traced. Here a linear operation says itself what it does with more dimensions in front.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Linear = Callable[..., Tensor]  # of a number of dimensions in front, and of tensors that have them


def linear(function: Linear, *parts: Tensor) -> Tensor:
    """`function(0, *parts)`, which is linear in its parts; inside vmap they have more dimensions in front."""
    return _Forward.apply(function, 0, *parts)


def convolve(op: Any, x: Tensor, weight: Tensor, options: Sequence[Any]) -> Tensor:
    """A convolution without bias; the weight is the same for all examples."""

    def pictures(lead: int, x: Tensor) -> Tensor:
        shape = x.shape[: lead + 1]
        result: Tensor = op(x.flatten(0, lead), weight, None, *options)
        return result.unflatten(0, shape) if lead else result

    return linear(pictures, x)


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """torch.cat of tensors that have one number of dimensions."""
    dim = dim % parts[0].dim()
    return linear(lambda lead, *parts: torch.cat(parts, dim + lead), *parts)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(function: Linear, lead: int, *parts: Tensor) -> Tensor:
        return function(lead, *parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.function, ctx.lead, *parts = inputs
        ctx.save_for_backward(*parts)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return None, None, *_Backward.apply(ctx.function, ctx.lead, slope, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Linear, lead: int, *parts: Tensor) -> Any:
        return _Forward.apply(function, lead + 1, *_in_front(info, in_dims, parts)), 0


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(function: Linear, lead: int, slope: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            zeros = [torch.zeros_like(part).requires_grad_() for part in parts]
            return torch.autograd.grad(function(lead, *zeros), zeros, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Linear, lead: int, *tensors: Tensor) -> Any:
        gradients = _Backward.apply(function, lead + 1, *_in_front(info, in_dims, tensors))
        return gradients, (0,) * len(gradients)


def _in_front(info: Any, in_dims: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with the dimension of vmap as their first; in_dims begins with two that are no tensors."""
    return [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, in_dims[2:], strict=True)
    ]

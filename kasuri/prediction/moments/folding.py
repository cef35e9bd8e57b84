"""Convolutions, slices and joins inside vmap, with any batch size.

torch's own rules for vmap, and for derivatives inside it, make a constant of the batch size when a program is
traced. Here a linear operation says itself what it does with more dimensions in front.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

Linear = Callable[..., Any]  # of a number of dimensions in front, and of tensors that have them


def linear(function: Linear, *parts: Tensor) -> Any:
    """`function(0, *parts)`, which is linear in its parts; inside vmap they have more dimensions in front."""
    return _Linear.apply(function, 0, *parts)


def convolve(op: Any, x: Tensor, weight: Tensor, options: Sequence[Any]) -> Tensor:
    """A convolution without bias; the weight is the same for all examples."""

    def pictures(lead: int, x: Tensor) -> Tensor:
        shape = x.shape[: lead + 1]
        result: Tensor = op(x.flatten(0, lead), weight, None, *options)
        return result.unflatten(0, shape) if lead else result

    result: Tensor = linear(pictures, x)
    return result


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """torch.cat of tensors that have one number of dimensions."""
    dim = dim % parts[0].dim()
    joined: Tensor = linear(lambda lead, *parts: torch.cat(parts, dim + lead), *parts)
    return joined


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(function: Linear, lead: int, *parts: Tensor) -> Any:
        result = function(lead, *parts)
        return tuple(result) if isinstance(result, list) else result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.lead, *parts = inputs
        ctx.save_for_backward(*parts)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        adjoint = partial(_adjoint, ctx.function, len(slopes))
        return None, None, *_Linear.apply(adjoint, ctx.lead, *slopes, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Linear, lead: int, *parts: Tensor) -> Any:
        in_front = [
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(parts, in_dims[2:], strict=True)
        ]
        return _Linear.apply(function, lead + 1, *in_front), 0


def _adjoint(function: Linear, results: int, lead: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Derivatives in parts, linear in the slopes of the results; of the parts only the shapes matter."""
    slopes, parts = tensors[:results], tensors[results:]
    with torch.enable_grad():
        zeros = [torch.zeros_like(part).requires_grad_() for part in parts]
        return torch.autograd.grad(function(lead, *zeros), zeros, slopes)

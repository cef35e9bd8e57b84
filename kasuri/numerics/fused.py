"""When the fused forms of this package may run, and the memory they work in.

They are autograd Functions that write into buffers: fast in eager mode, opaque to torch.compile
(which fuses the plain formula better) and to the transforms of torch.func.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.torch_internals import is_traced

_kept = threading.local()


def anywhere(condition: Tensor) -> bool:
    """Whether a condition may hold for some element, of any member of a vmap.

    For functions of two parts of which one is seldom needed. True where it cannot be known, because a
    program is made that will run on other numbers, and on devices that work ahead of the program.

    Examples:
        >>> anywhere(torch.arange(3) > 2), anywhere(torch.arange(3) > 1)
        (False, True)
    """
    if condition.device.type != "cpu" or is_traced(condition):
        return True
    found: list[bool] = []
    _Look.apply(condition.detach(), found.append)
    return found[0]


class _Look(torch.autograd.Function):
    """Sees all members of a vmap, which the program inside does not."""

    @staticmethod
    def forward(condition: Tensor, tell: Callable[[bool], None]) -> Tensor:
        tell(bool(condition.any()))
        return condition.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], condition: Tensor, tell: Callable[[bool], None]
    ) -> tuple[Tensor, None]:
        return _Look.apply(condition, tell), None


def members(
    tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> tuple[Tensor, ...]:
    """What a vmap rule is given, with the members of the batch first, for all that has none the same.

    Examples:
        >>> [one.shape[0] for one in members((torch.ones(2, 3), torch.ones(2)), (1, None), 3)]
        [3, 3]
    """
    return tuple(
        one.expand(count, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip(tensors, dims, strict=False)
    )


def scratch(slot: str, like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor for intermediate values, the same memory at every call.

    Fresh memory of this size comes from the operating system page by page, which takes longer than
    the arithmetic done in it. The caller must be finished with a slot before it is asked for again;
    each thread has its own.
    """
    pool: dict[tuple[str, torch.dtype, torch.device], Tensor]
    pool = _kept.__dict__.setdefault("pool", {})
    key, size = (slot, like.dtype, like.device), math.prod(shape)
    kept = pool.get(key)
    if kept is None or kept.numel() < size:
        kept = pool[key] = torch.empty(size, dtype=like.dtype, device=like.device)
    return kept[:size].view(shape)

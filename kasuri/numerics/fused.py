"""When the fused forms of this package may run, and the memory they work in.

They are autograd Functions that write into buffers: fast in eager mode, opaque to torch.compile
(which fuses the plain formula better) and to the transforms of torch.func.
"""

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_kept = threading.local()


def members(
    tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> tuple[Tensor, ...]:
    """What a vmap rule is given, with the members of the batch first, for all that has none the same."""
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

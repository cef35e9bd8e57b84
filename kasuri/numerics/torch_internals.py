"""Private interfaces of torch, all of them in this one place.

tests/numerics/test_torch_internals.py says what breaks when torch changes one of them.

- Which transforms of torch.func are active (`torch._C._are_functorch_transforms_active`,
  `retrieve_all_functorch_interpreters`, `VmapInterpreter`): fused forms are switched off inside them, except
  where they have rules for vmap.
- Whether a backward pass is under way (`torch._C._current_graph_task_id`): forward code then runs for
  gradient checkpointing, and draws that cannot be replayed are refused.
- `torch.compiler.is_exporting`, which torch 2.6 does not have.
"""

from collections.abc import Callable

import torch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters

is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)  # False in 2.6


def eager() -> bool:
    """Neither compiling nor inside vmap, grad or another transform of torch.func."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def batched_apart() -> bool:
    """Neither compiling nor inside a transform but vmap, whose members have random numbers of their own."""
    if torch.compiler.is_compiling():
        return False
    levels = retrieve_all_functorch_interpreters()
    return all(
        isinstance(level, VmapInterpreter) and level.randomness() == "different" for level in levels
    )


def is_recomputing() -> bool:
    """Whether a backward pass is under way: forward code then runs for gradient checkpointing only."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1

"""Private interfaces of torch, all of them in this one place.

tests/numerics/test_torch_internals.py says what breaks when torch changes one of them.

- Whether a transform of torch.func is active (`torch._C._are_functorch_transforms_active`): fused forms are
  switched off inside them.
- Whether a backward pass is under way (`torch._C._current_graph_task_id`): forward code then runs for
  gradient checkpointing, and draws that cannot be replayed are refused.
- `torch.compiler.is_exporting`, which torch 2.6 does not have.
"""

from collections.abc import Callable

import torch

is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)  # False in 2.6


def eager() -> bool:
    """Neither compiling nor inside vmap, grad or another transform of torch.func."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def is_recomputing() -> bool:
    """Whether a backward pass is under way: forward code then runs for gradient checkpointing only."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1

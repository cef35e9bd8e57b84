"""Private interfaces of torch, all of them in this one place.

tests/numerics/test_torch_internals.py says what breaks when torch changes one of them.

- Which transforms of torch.func are active (`torch._C._are_functorch_transforms_active`,
  `retrieve_all_functorch_interpreters`, `TransformType`, `VmapInterpreter`): fused forms are switched off
  inside them, except where they have rules for vmap.
- Whether a program is being traced (`torch.jit._trace.is_tracing`, `_get_current_dispatch_mode`): then no
  branch may depend on numbers.
- Whether a backward pass is under way (`torch._C._current_graph_task_id`): forward code then runs for
  gradient checkpointing, and draws that cannot be replayed are refused.
"""

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters
from torch.utils._python_dispatch import _get_current_dispatch_mode


def eager() -> bool:
    """Neither compiling nor inside vmap, grad or another transform of torch.func."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def batched_at_most() -> bool:
    """Neither compiling nor inside a transform of torch.func but vmap, for which there are rules."""
    if torch.compiler.is_compiling():
        return False
    return all(one.key() == TransformType.Vmap for one in retrieve_all_functorch_interpreters())


def batched_apart() -> bool:
    """As `batched_at_most`, and members of a vmap are to have random numbers of their own."""
    if torch.compiler.is_compiling():
        return False
    levels = retrieve_all_functorch_interpreters()
    return all(
        isinstance(one, VmapInterpreter) and one.randomness() == "different" for one in levels
    )


def is_traced(tensor: Tensor) -> bool:
    """Whether a program is being made that will run on other numbers than these."""
    if torch.compiler.is_compiling() or torch.jit._trace.is_tracing():
        return True
    if type(tensor) is not Tensor or _get_current_dispatch_mode() is not None:
        return True  # tensors without numbers, or operations that are written down
    levels = retrieve_all_functorch_interpreters()
    return any(one.key() == TransformType.Functionalize for one in levels)


def is_recomputing() -> bool:
    """Whether a backward pass is under way: forward code then runs for gradient checkpointing only."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1

"""When the fused forms of this package may run.

They are autograd Functions that write into their own buffers: fast in eager mode, opaque to
torch.compile (which fuses the plain formula better) and to the transforms of torch.func.
"""

import torch


def eager() -> bool:
    """Neither compiling nor inside vmap, grad or another transform of torch.func."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())

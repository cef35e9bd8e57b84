"""A second tree of modules over the same tensors: a copy to change without touching the original."""

from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)
Kinds = type[nn.Module] | tuple[type[nn.Module], ...]


def shadow(module: Module, *, keep: Kinds = ()) -> Module:
    """A copy of the tree of modules in evaluation mode, with the same parameters, buffers and hooks.

    What occurs twice in the tree remains one module. Setting an attribute or a parameter of the copy
    leaves the original alone, which other threads may be using. Compiled modules are copied as they were
    before torch.compile, whose programs run the originals.

    Args:
        module: root of the tree.
        keep: modules of these classes are not copied but used as they are.

    Examples:
        >>> net = nn.Sequential(nn.Linear(2, 2))
        >>> copy = shadow(net)
        >>> net.training, copy.training, copy[0].weight is net[0].weight
        (True, False, True)
    """
    known: dict[int, Any] = {}

    def walk(module: Any) -> Any:
        if module is None or isinstance(module, keep):
            return module
        module = module.__dict__["_modules"].get("_orig_mod", module)
        if id(module) not in known:
            new = known[id(module)] = module.__class__.__new__(module.__class__)
            new.__dict__ = {
                **module.__dict__,
                "_compiled_call_impl": None,  # which would run the original
                "_parameters": dict(module._parameters),
                "_buffers": dict(module._buffers),
                "training": False,
            }
            children = {name: walk(child) for name, child in module._modules.items()}
            new.__dict__["_modules"] = children
        return known[id(module)]

    copied: Module = walk(module)
    return copied

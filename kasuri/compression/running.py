"""Running a plain network: at an example, and in double precision throughout."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kasuri.objectives.elbo import Objective

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def run(net: nn.Module, example: Any) -> Any:
    """The network at an example: a tensor, a tuple of arguments, or a mapping of named ones.

    A network in double precision stays in it: where its code asks for another floating-point type, or makes
    tensors of the usual one, it gets doubles.

    Examples:
        >>> class Scaled(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x.float() / 255)
        >>> run(Scaled(2, 1).double(), torch.ones(1, 2, dtype=torch.uint8)).dtype
        torch.float64
    """
    double = any(one.dtype == torch.float64 for one in net.parameters())
    with _doubles() if double else nullcontext():
        return call(net, example)


def call(net: nn.Module, example: Any) -> Any:
    """The network at an example, as it is."""
    if isinstance(example, Mapping):
        return net(**example)
    return net(*example) if isinstance(example, tuple | list) else net(example)


def uncompiled(model: nn.Module) -> nn.Module:
    """The network that torch.compile wraps, whose layers can be taken apart; any other as it is.

    Examples:
        >>> net = nn.Linear(2, 1)
        >>> uncompiled(torch.compile(net, backend="eager")) is net
        True
    """
    if isinstance(model, Objective) and hasattr(model.net, "_orig_mod"):
        raise ValueError(
            "the network of this objective is compiled, and cannot be taken apart: give the objective the "
            "network itself; kasuri.fit(compile=True) compiles it for as long as it trains"
        )
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def in_double(example: Any) -> Any:
    """Floating-point tensors of an example in double precision."""

    def convert(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return torch.utils._pytree.tree_map(convert, example)


@contextmanager
def _doubles() -> Iterator[None]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widening():
            yield
    finally:
        torch.set_default_dtype(usual)


class _Widening(TorchFunctionMode):
    """Puts double precision in the place of every other floating-point type that is asked for."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function on what it should have been asked for."""
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        wide = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(_widened, args), **wide)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def places(net: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """For every module, by id, each (parent, attribute) it hangs at."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in net.modules():
        for name, child in parent._modules.items():
            if child is not None:
                found.setdefault(id(child), []).append((parent, name))
    return found

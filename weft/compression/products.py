"""Products of matrices that a network's code makes itself, without a layer of torch's.

Attention written by hand, a decoder that uses the weights of an embedding, convolutions by function: torch's
own formulas (torch.utils.flop_counter) count them, whatever they are called.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

_aten = torch.ops.aten
_BIAS = {_aten.addmm: 0, _aten.baddbmm: 0, _aten.addmv: 0, _aten.convolution: 2}  # its place
# those that torch has no formula for: of vectors, by the place of the matrix; attention on the processor
_VECTORS = {_aten.mv: 0, _aten.dot: 0, _aten.addmv: 1}
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu

Seen = Callable[[float, float, list[Tensor]], None]


@contextmanager
def products(net: nn.Module, layers: tuple[type[nn.Module], ...], seen: Seen) -> Iterator[None]:
    """Tell of products that are made inside the block and outside of layers.

    Args:
        net: that runs inside the block.
        layers: kinds of modules whose products are not told of.
        seen: is told the number of multiply-accumulates, that of biases added, and the tensors multiplied.
    """
    mode = _Products(seen)

    def begin(*_: Any) -> None:
        mode.layers += 1

    def end(*_: Any) -> None:
        mode.layers -= 1

    handles = []
    for module in net.modules():
        if isinstance(module, layers):
            handles.append(module.register_forward_pre_hook(begin))
            handles.append(module.register_forward_hook(end))
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Products(TorchDispatchMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.layers = 0  # that are at work now

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        macs = None if self.layers else _macs(func.overloadpacket, args, kwargs, out)
        if macs is not None:
            place = _BIAS.get(func.overloadpacket)
            biases = 0 if place is None or args[place] is None else out.numel()
            self.seen(macs, float(biases), [one for one in args if isinstance(one, Tensor)])
        return out


def _macs(kind: Any, args: tuple[Any, ...], kwargs: Any, out: Any) -> float | None:
    """Multiply-accumulates of an operation; None if it is no product."""
    if kind in _VECTORS:
        return float(args[_VECTORS[kind]].numel())
    if kind is _ATTENTION:
        return sdpa_flop_count(*(one.shape for one in args[:3])) / 2
    formula = flop_registry.get(kind)
    return None if formula is None else formula(*args, **kwargs, out_val=out) / 2


def whole(tensor: Tensor) -> Tensor:
    """The tensor that another is a view of, or itself.

    Examples:
        >>> matrix = torch.zeros(2, 3)
        >>> whole(matrix[0]) is matrix, whole(matrix) is matrix
        (True, True)
    """
    return tensor if tensor._base is None else tensor._base

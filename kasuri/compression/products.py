"""Products of matrices that a network's code makes itself, without a layer of torch's.

Attention written by hand, a decoder that uses the weights of an embedding, convolutions by function: torch's
own formulas (torch.utils.flop_counter) count them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

_aten = torch.ops.aten
# operations that add something, and where: a bias if it is a parameter
_ADDED = {_aten.addmm: 0, _aten.baddbmm: 0, _aten.addbmm: 0, _aten.addmv: 0, _aten.convolution: 2}
# those that torch has no formula for: of vectors, by the place of the matrix; attention on the processor
_VECTORS = {_aten.mv: 0, _aten.dot: 0, _aten.addmv: 1}
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_COPIES = (_aten.clone, _aten._to_copy)  # of a parameter, which are multiplied in its place

Seen = Callable[[float, float, list[Tensor]], None]


@contextmanager
def products(net: nn.Module, layers: Iterable[nn.Module], seen: Seen) -> Iterator[None]:
    """Tell of products that are made inside the block and outside of layers.

    Args:
        net: that runs inside the block.
        layers: modules of it whose products are not told of.
        seen: is told the number of multiply-accumulates, that of biases added, and the parameters multiplied
            with.
    """
    mode = _Products(net, seen)

    def begin(*_: Any) -> None:
        mode.layers += 1

    def end(*_: Any) -> None:
        mode.layers -= 1

    handles = []
    for module in layers:
        handles.append(module.register_forward_pre_hook(begin))
        # also if the layer fails, which the network may catch
        handles.append(module.register_forward_hook(end, always_call=True))
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Products(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, net: nn.Module, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.layers = 0  # that are at work now
        self.owners: dict[int, Tensor] = {_place(p): p for p in net.parameters()}
        self.copies: list[Tensor] = []  # held, so that nothing else comes to lie where they are

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, kind = kwargs or {}, getattr(func, "overloadpacket", None)
        if self.layers or kind is None:
            return func(*args, **kwargs)
        if kind not in flop_registry and kind not in _VECTORS and kind is not _ATTENTION:
            with self:  # in inference mode products arrive whole
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        out = func(*args, **kwargs)
        if kind in _COPIES and (owner := self.owner(args[0])) is not None:
            self.copies.append(out)
            self.owners[_place(out)] = owner
        elif kind is _aten.add:
            vectors = [p for one in args[:2] if (p := self.owner(one)) is not None and p.dim() == 1]
            if vectors and out.dim() > 1:
                self.seen(0.0, float(out.numel()), [])
        elif (macs := _macs(kind, args, kwargs, out)) is not None:
            self.tell(kind, macs, args, out)
        return out

    def tell(self, kind: Any, macs: float, args: tuple[Any, ...], out: Any) -> None:
        """Report a product."""
        place = _ADDED.get(kind)
        factors = [one for number, one in enumerate(args) if number != place]
        parameters = [p for one in factors if (p := self.owner(one)) is not None]
        is_biased = place is not None and self.owner(args[place]) is not None
        self.seen(macs, float(out.numel()) if is_biased else 0.0, parameters)

    def owner(self, value: Any) -> Tensor | None:
        """The parameter of which a value is a view or a copy."""
        return self.owners.get(_place(value)) if isinstance(value, Tensor) else None


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _macs(kind: Any, args: tuple[Any, ...], kwargs: Any, out: Any) -> float | None:
    """Multiply-accumulates of an operation; None if it is no product."""
    if kind in _VECTORS:
        return float(args[_VECTORS[kind]].numel())
    if kind is _aten.addbmm:
        return float(args[1].numel() * args[2].shape[-1])
    if kind is _ATTENTION:
        return sdpa_flop_count(*(one.shape for one in args[:3])) / 2
    formula = flop_registry.get(kind)
    return None if formula is None else formula(*args, **kwargs, out_val=out) / 2

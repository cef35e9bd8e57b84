"""Counting: parameters and operations of a plain network.

A multiply-accumulate (MAC) is one weight used at one position for one example; FLOPs are two per MAC and
one per bias that is added. Tables of pruned networks often count MACs plus biases and call them FLOPs.
Weights that are 0 take part in a dense computation, and do not in a sparse one: both are counted.

Products are seen as torch carries them out, so that those of a network's own code (attention written by hand,
a decoder that uses the weights of an embedding, convolutions by function) count like those of layers; torch's
own formulas (torch.utils.flop_counter) count them.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from kasuri.compression.probes import run
from kasuri.network.contexts import plain_path

_aten = torch.ops.aten
# operations that add something, and where: a bias if it is a parameter
_ADDED = {_aten.addmm: 0, _aten.baddbmm: 0, _aten.addbmm: 0, _aten.addmv: 0, _aten.convolution: 2}
# those that torch has no formula for: of vectors, by the place of the matrix; attention on the processor
_VECTORS = {_aten.mv: 0, _aten.dot: 0, _aten.addmv: 1}
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_COPIES = (_aten.clone, _aten._to_copy)  # of a parameter, which are multiplied in its place
_OPAQUE = (nn.RNNBase, nn.Bilinear)  # whose products torch carries out in one operation of its own
_LAYERS = (*_OPAQUE, nn.Linear, _ConvNd, nn.RNNCellBase, nn.MultiheadAttention)


@dataclass(frozen=True)
class Counts:
    """What a network holds and does, for one example.

    Args:
        parameters: numbers in it.
        weights: of them in matrices.
        nonzero: of these not 0.
        macs: multiply-accumulates of the dense computation.
        biases: biases added.
        sparse_macs: multiply-accumulates with weights that are not 0.
    """

    parameters: int
    weights: int
    nonzero: int
    macs: int = 0
    biases: int = 0
    sparse_macs: int = 0

    @property
    def flops(self) -> int:
        """2 per multiply-accumulate, 1 per bias."""
        return 2 * self.macs + self.biases

    @property
    def table_flops(self) -> int:
        """As tables count: weights that are not 0, and biases, once each."""
        return self.sparse_macs + self.biases

    def as_dict(self) -> dict[str, int]:
        """All of them."""
        return asdict(self) | {"flops": self.flops, "table_flops": self.table_flops}


def ratios(before: Counts, after: Counts) -> Mapping[str, float]:
    """How many times smaller, by every count."""
    pairs = zip(before.as_dict().items(), after.as_dict().values(), strict=True)
    return {name: old / new if new else math.inf for (name, old), new in pairs}


def count(net: nn.Module, example: Any = None) -> Counts:
    """Parameters and operations of a plain network.

    Counted are products of matrices, and biases; what works on single numbers (activations, norms, pooling)
    is not.

    Args:
        net: plain.
        example: a batch of inputs; operations are divided by its size. Without one none are counted.

    Examples:
        >>> found = count(nn.Linear(3, 2), torch.zeros(5, 3))
        >>> found.parameters, found.macs, found.flops
        (8, 6, 14)
    """
    weights = [p for p in net.parameters() if p.dim() >= 2]
    operations = [] if example is None else _operations(net, example)
    return Counts(
        sum(p.numel() for p in net.parameters()),
        sum(p.numel() for p in weights),
        sum(int(p.count_nonzero()) for p in weights),
        round(sum(operation.macs for operation in operations)),
        round(sum(operation.biases for operation in operations)),
        round(sum(operation.macs * operation.nonzero for operation in operations)),
    )


def uses(net: nn.Module, example: Any) -> dict[str, float]:
    """How often each weight of a matrix is multiplied with, for one example.

    Examples:
        >>> uses(nn.Conv2d(1, 2, 3), torch.zeros(5, 1, 6, 6))
        {'weight': 16.0}
    """
    found: dict[int, float] = {}
    for operation in _operations(net, example):
        for matrix in operation.matrices:
            found[id(matrix)] = found.get(id(matrix), 0.0) + operation.macs / matrix.numel()
    return {name: found[id(p)] for name, p in net.named_parameters() if id(p) in found}


@dataclass(frozen=True)
class _Operation:
    """A product: its multiply-accumulates and biases for one example, the matrices that are parameters.

    `nonzero` is the share of entries of such a matrix that are not 0.
    """

    macs: float
    biases: float = 0.0
    matrices: tuple[Tensor, ...] = ()
    nonzero: float = 1.0


@torch.no_grad()
def _operations(net: nn.Module, example: Any) -> list[_Operation]:
    """All products of one run in evaluation mode.

    What compiles itself, as torch's flex_attention does, cannot be looked into: then those of layers alone.
    """
    was = net.training
    net.eval()
    try:
        with plain_path():
            try:
                return _watched(net, example, everything=True)
            except Exception:
                torch.compiler.reset()  # which has noted that it cannot compile this
                return _watched(net, example, everything=False)
    finally:
        net.train(was)


def _watched(net: nn.Module, example: Any, *, everything: bool) -> list[_Operation]:
    mode, size = _Products(net), _Batch(example)

    def begin(module: nn.Module, *_: Any) -> None:
        mode.opaque += isinstance(module, _OPAQUE)
        if not everything:
            mode.__enter__()

    def end(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        if not everything:
            mode.__exit__(None, None, None)
        mode.opaque -= isinstance(module, _OPAQUE)
        given = [*args, *kwargs.values()]
        size.look(module, next((value for value in given if isinstance(value, Tensor)), None))
        if isinstance(module, _OPAQUE) and out is not None:
            mode.found += _opaque(module, given[0], out)

    handles = []
    for module in net.modules():
        if isinstance(module, _LAYERS):
            handles.append(module.register_forward_pre_hook(begin))
            # also if the layer fails, which the network may catch
            hook = module.register_forward_hook(end, with_kwargs=True, always_call=True)
            handles.append(hook)
    try:
        with mode if everything else nullcontext():
            run(net, example)
    finally:
        for handle in handles:
            handle.remove()
    return [
        _Operation(one.macs / size.examples, one.biases / size.examples, one.matrices, one.nonzero)
        for one in mode.found
    ]


def _opaque(module: nn.Module, x: Any, out: Any) -> list[_Operation]:
    """Products of a recurrent or bilinear layer."""
    if isinstance(module, nn.Bilinear):
        positions = out.numel() / out.shape[-1]
        biases = 0 if module.bias is None else out.numel()
        return [_of_matrix(module.weight, positions, biases)]
    assert isinstance(module, nn.RNNBase)
    x = x.data if isinstance(x, nn.utils.rnn.PackedSequence) else x
    steps = x.numel() / x.shape[-1]
    return [
        _of_matrix(weight, steps, steps * len(weight) if module.bias and "hr" not in name else 0.0)
        for name, weight in module.named_parameters(recurse=False)
        if name.startswith("weight")
    ]


def _of_matrix(weight: Tensor, positions: float, biases: float) -> _Operation:
    share = int(weight.count_nonzero()) / weight.numel()
    return _Operation(positions * weight.numel(), biases, (weight,), share)


class _Batch:
    """How many examples a batch has: its first dimension, or the second of sequences with time first."""

    def __init__(self, example: Any) -> None:
        leaves = [t for t in torch.utils._pytree.tree_leaves(example) if isinstance(t, Tensor)]
        self.shape = leaves[0].shape if leaves else torch.Size()
        self.examples = self.shape[0] if self.shape else 1

    def look(self, module: nn.Module, x: Tensor | None) -> None:
        """A layer that wants time first tells which dimension of the batch is which."""
        if not isinstance(module, nn.RNNBase | nn.MultiheadAttention) or module.batch_first:
            return
        if x is not None and x.dim() == 3 and x.shape[:2] == self.shape[:2]:
            self.examples = x.shape[1]


class _Products(TorchDispatchMode):
    """Finds the products that torch carries out under it, outside of opaque layers."""

    supports_higher_order_operators = True

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.found: list[_Operation] = []
        self.opaque = 0  # opaque layers that are at work now
        self.owners: dict[int, Tensor] = {_address(p): p for p in net.parameters()}
        self.copies: list[Tensor] = []  # held, so that nothing else comes to lie where they are

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, kind = kwargs or {}, getattr(func, "overloadpacket", None)
        if self.opaque or kind is None:
            return func(*args, **kwargs)
        if kind not in flop_registry and kind not in _VECTORS and kind is not _ATTENTION:
            with self:  # in inference mode products arrive whole
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        out = func(*args, **kwargs)
        if kind in _COPIES and (owner := self.owner(args[0])) is not None:
            self.copies.append(out)
            self.owners[_address(out)] = owner
        elif kind is _aten.add:
            owners = [self.owner(value) for value in args[:2]]
            if out.dim() > 1 and any(one is not None and one.dim() == 1 for one in owners):
                self.found.append(_Operation(0.0, float(out.numel())))
        elif (macs := _macs(kind, args, kwargs, out)) is not None:
            place = _ADDED.get(kind)
            is_biased = place is not None and self.owner(args[place]) is not None
            factors = [value for number, value in enumerate(args) if number != place]
            owned = [(value, one) for value in factors if (one := self.owner(value)) is not None]
            matrices = [(value, one) for value, one in owned if one.dim() >= 2 and value.numel()]
            share = 1.0
            if matrices:
                share = int(matrices[0][0].count_nonzero()) / matrices[0][0].numel()
            biases = float(out.numel()) if is_biased else 0.0
            self.found.append(_Operation(macs, biases, tuple(m for _, m in matrices), share))
        return out

    def owner(self, value: Any) -> Tensor | None:
        """The parameter of which a value is a view or a copy."""
        return self.owners.get(_address(value)) if isinstance(value, Tensor) else None


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _macs(kind: Any, args: tuple[Any, ...], kwargs: Any, out: Any) -> float | None:
    """Multiply-accumulates of an operation; None if it is no product."""
    if kind in _VECTORS:
        return float(args[_VECTORS[kind]].numel())
    if kind is _aten.addbmm:
        return float(args[1].numel() * args[2].shape[-1])
    if kind is _ATTENTION:
        return sdpa_flop_count(*(value.shape for value in args[:3])) / 2
    formula = flop_registry.get(kind)
    return None if formula is None else formula(*args, **kwargs, out_val=out) / 2

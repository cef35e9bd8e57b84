"""Counting: parameters and operations of a plain network.

A multiply-accumulate (MAC) is one weight used at one position for one example; FLOPs are two per MAC and
one per bias that is added. Tables of pruned networks often count MACs plus biases and call them FLOPs.
Weights that are 0 take part in a dense computation, and do not in a sparse one: both are counted.

Products are seen as torch carries them out, so that those of a network's own code (attention written by hand,
a decoder that uses the weights of an embedding, convolutions by function) count like those of layers; torch's
own formulas (torch.utils.flop_counter) count them. The network runs in double precision on the processor,
where torch makes recurrent layers of products like any others.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kasuri.compression.probes import in_double, tensors, watched

_aten = torch.ops.aten
# products that add something, and where: a bias if it is a parameter
_ADDED = {_aten.addmm: 0, _aten.baddbmm: 0, _aten.convolution: 2}
# products of vectors, for which torch has no formula: every number of the first factor is used once
_VECTORS = (_aten.mv, _aten.dot)
_COPIES = (_aten.clone, _aten._to_copy)  # of a parameter, which are multiplied in its place


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
    operations: tuple[float, ...] = ()
    if example is not None:
        products = _products(net, example)
        totals = products.macs, products.biases, products.sparse_macs
        operations = tuple(total / products.examples for total in totals)
    return Counts(
        sum(p.numel() for p in net.parameters()),
        sum(p.numel() for p in weights),
        sum(int(p.count_nonzero()) for p in weights),
        *map(round, operations),
    )


def uses(net: nn.Module, example: Any) -> dict[str, float]:
    """How often each weight of a matrix is multiplied with, for one example.

    Examples:
        >>> uses(nn.Conv2d(1, 2, 3), torch.zeros(5, 1, 6, 6))
        {'weight': 16.0}
    """
    products = _products(net, example)
    return {
        name: macs / products.examples / net.get_parameter(name).numel()
        for name, macs in products.by_matrix.items()
    }


def _products(net: nn.Module, example: Any) -> "_Products":
    """All products of one run in evaluation mode."""
    net, example = in_double(net, example)
    shape = next(leaf.shape for leaf in tensors(example) if leaf.dim())
    products = _Products(net, shape[0])

    def look(name: str, module: nn.Module, inputs: list[Any]) -> None:
        """Where a layer has time before the batch, count the examples along the other dimension."""
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first:
            x = inputs[0]
            if isinstance(x, Tensor) and x.dim() == 3 and x.shape[:2] == shape[:2]:
                products.examples = x.shape[1]

    with sdpa_kernel(SDPBackend.MATH), products:
        watched(net, example, look)
    return products


class _Products(TorchDispatchMode):
    """Sums over the products that torch carries out under it, for all examples together.

    `by_matrix` has the multiply-accumulates with every matrix that is a parameter.
    """

    supports_higher_order_operators = True

    def __init__(self, net: nn.Module, examples: int) -> None:
        super().__init__()
        self.examples = examples
        self.macs = self.biases = self.sparse_macs = 0.0
        self.by_matrix: dict[str, float] = {}
        self.owners = {_address(p): (name, p.dim()) for name, p in net.named_parameters()}
        self.copies: list[Tensor] = []  # held, so that nothing else comes to lie where they are

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        kind: Any = getattr(func, "overloadpacket", None)
        if kind is not None and kind not in flop_registry:
            with self:  # in inference mode products arrive whole
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        out = func(*args, **kwargs)
        if kind in _COPIES and self.owner(args[0])[0]:
            self.copies.append(out)
            self.owners[_address(out)] = self.owner(args[0])
        elif kind is _aten.add:
            if out.dim() > 1 and any(self.owner(value)[1] == 1 for value in args[:2]):
                self.biases += out.numel()
        elif kind in flop_registry:
            macs = flop_registry[kind](*args, **kwargs, out_val=out) / 2
            self.add(macs, args, out, _ADDED.get(kind))
        elif kind in _VECTORS:
            self.add(args[0].numel(), args, out)
        return out

    def add(self, macs: float, args: Any, out: Tensor, place: int | None = None) -> None:
        """Note a product; the argument at `place`, if it is a parameter, is its bias."""
        if place is not None and self.owner(args[place])[0]:
            self.biases += out.numel()
        nonzero = 1.0  # of the sparsest matrix that is a parameter
        for number, value in enumerate(args):
            name, dims = self.owner(value)
            if number != place and dims >= 2 and value.numel():
                self.by_matrix[name] = self.by_matrix.get(name, 0.0) + macs
                nonzero = min(nonzero, int(value.count_nonzero()) / value.numel())
        self.macs += macs
        self.sparse_macs += macs * nonzero

    def owner(self, value: Any) -> tuple[str, int]:
        """Name and dimensions of the parameter of which a value is a view or a copy, or ("", 0)."""
        is_tensor = isinstance(value, Tensor)
        return self.owners.get(_address(value), ("", 0)) if is_tensor else ("", 0)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

"""Counting: parameters and operations of a plain network.

A multiply-accumulate (MAC) is one weight used at one position for one example; FLOPs are two per MAC and
one per bias that is added. Tables of pruned networks often count MACs plus biases and call them FLOPs.
Weights that are 0 take part in a dense computation, and do not in a sparse one: both are told.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from kasuri.compression.products import Seen, products
from kasuri.compression.running import run
from kasuri.network.contexts import plain_path

_LAYERS = (nn.Linear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.MultiheadAttention)


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
    macs: int
    biases: int
    sparse_macs: int

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


@torch.no_grad()
def count(net: nn.Module, example: Any) -> Counts:
    """Parameters and operations of a plain network.

    Counted are linear and bilinear layers, convolutions, recurrent layers and cells, attention, and products
    of matrices in the network's own code; what works on single numbers (activations, norms, pooling) is not.

    Args:
        net: plain.
        example: a batch of inputs; operations are divided by its size.

    Examples:
        >>> found = count(nn.Linear(3, 2), torch.zeros(5, 3))
        >>> found.parameters, found.macs, found.flops
        (8, 6, 14)
    """
    total, size = [0.0, 0.0, 0.0], _Batch(example)

    def add(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        size.look(module, args, kwargs)
        for weight, bias, positions in _uses(module, args, kwargs, out):
            total[0] += positions * weight.numel()
            total[1] += positions * bias
            total[2] += positions * int(weight.count_nonzero())
        if isinstance(module, nn.MultiheadAttention):
            query, key = _given(args, kwargs)[:2]
            pairs = query.numel() / query.shape[-1] * _length(module, key)
            total[0] += 2 * pairs * module.embed_dim
            total[2] += 2 * pairs * module.embed_dim

    def add_product(macs: float, biases: float, parameters: list[Tensor]) -> None:
        held = next((p for p in parameters if p.dim() >= 2), None)
        share = 1.0 if held is None else int(held.count_nonzero()) / max(1, held.numel())
        total[0] += macs
        total[1] += biases
        total[2] += macs * share

    def reset() -> None:
        total[:] = [0.0, 0.0, 0.0]

    _observe(net, example, add, add_product, reset)
    weights = [p for p in net.parameters() if p.dim() >= 2]
    return Counts(
        sum(p.numel() for p in net.parameters()),
        sum(p.numel() for p in weights),
        sum(int(p.count_nonzero()) for p in weights),
        *(round(value / size.examples) for value in total),
    )


def _observe(
    net: nn.Module,
    example: Any,
    layer: Callable[..., None],
    product: Seen,
    reset: Callable[[], None],
) -> None:
    """Run a network, and tell of its layers and of products outside of them.

    What compiles itself, as torch's flex_attention does, cannot be looked into: then of layers alone.
    """
    try:
        with watching(net, layer), products(net, _layers(net), product):
            run(net, example)
    except Exception:
        reset()
        torch.compiler.reset()  # which has noted that it cannot compile this
        with watching(net, layer):
            run(net, example)


@contextmanager
def watching(net: nn.Module, seen: Callable[..., None]) -> Iterator[None]:
    """Call a hook after every layer, in evaluation mode; attention counts as one layer."""
    inside = {
        id(child)
        for module in net.modules()
        if isinstance(module, nn.MultiheadAttention)
        for child in module.modules()
        if child is not module
    }
    handles = [
        module.register_forward_hook(seen, with_kwargs=True)
        for module in net.modules()
        if id(module) not in inside
    ]
    was = net.training
    net.eval()
    try:
        with plain_path():
            yield
    finally:
        net.train(was)
        for handle in handles:
            handle.remove()


@torch.no_grad()
def uses(net: nn.Module, example: Any) -> dict[str, float]:
    """How often each weight of a matrix is multiplied with, for one example.

    Args:
        net: plain.
        example: a batch of inputs.

    Examples:
        >>> uses(nn.Conv2d(1, 2, 3), torch.zeros(5, 1, 6, 6))
        {'weight': 16.0}
    """
    found: dict[int, float] = {}
    size = _Batch(example)

    def add(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        size.look(module, args, kwargs)
        for weight, _, positions in _uses(module, args, kwargs, out):
            matrix = weight if weight._base is None else weight._base
            if weight.numel():  # one of three maps in a matrix counts a third of the matrix
                share = weight.numel() / matrix.numel()
                found[id(matrix)] = found.get(id(matrix), 0.0) + positions * share

    def add_product(macs: float, biases: float, parameters: list[Tensor]) -> None:
        for matrix in parameters:
            if matrix.dim() >= 2 and matrix.numel():
                found[id(matrix)] = found.get(id(matrix), 0.0) + macs / matrix.numel()

    _observe(net, example, add, add_product, found.clear)
    each = size.examples
    return {name: found[id(p)] / each for name, p in net.named_parameters() if id(p) in found}


class _Batch:
    """How many examples a batch has: its first dimension, or the second of sequences with time first."""

    def __init__(self, example: Any) -> None:
        leaves = [t for t in torch.utils._pytree.tree_leaves(example) if isinstance(t, Tensor)]
        self.shape = leaves[0].shape if leaves else torch.Size()
        self.examples = self.shape[0] if self.shape else 1

    def look(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A layer that wants time first tells which dimension of the batch is which."""
        if not isinstance(module, nn.RNNBase | nn.MultiheadAttention) or module.batch_first:
            return
        x = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        if x is not None and x.dim() == 3 and x.shape[:2] == self.shape[:2]:
            self.examples = x.shape[1]


def _length(module: nn.MultiheadAttention, key: Tensor) -> int:
    return key.shape[1 if module.batch_first and key.dim() == 3 else 0]


def _uses(
    module: nn.Module, args: Any, kwargs: Any, out: Any
) -> Iterator[tuple[Tensor, float, float]]:
    """(weight, biases per position, positions) of every matrix a layer multiplies with."""
    if not _has_own_code(module):
        yield from _uses_of_layer(module, args, kwargs, out)


def _uses_of_layer(
    module: nn.Module, args: Any, kwargs: Any, out: Any
) -> Iterator[tuple[Tensor, float, float]]:
    if isinstance(module, nn.Linear):
        yield module.weight, _biases(module), out.numel() / out.shape[-1]
    elif isinstance(module, _ConvNd):
        x = args[0] if args else kwargs["input"]
        where = x if isinstance(module, _ConvTransposeNd) else out
        channels = module.in_channels if where is x else module.out_channels
        yield module.weight, 0, where.numel() / channels
        yield module.weight.new_zeros(0), _biases(module), out.numel() / module.out_channels
    elif isinstance(module, nn.RNNBase):
        x = args[0] if args else kwargs["input"]
        x = x.data if isinstance(x, nn.utils.rnn.PackedSequence) else x
        steps = x.numel() / x.shape[-1]
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("weight"):
                bias = parameter.shape[0] if module.bias and "hr" not in name else 0
                yield parameter, bias, steps
    elif isinstance(module, nn.RNNCellBase):
        x = args[0] if args else kwargs["input"]
        for weight in (module.weight_ih, module.weight_hh):
            bias = weight.shape[0] if module.bias else 0
            yield weight, bias, x.numel() / x.shape[-1]
    elif isinstance(module, nn.Bilinear):
        yield module.weight, _biases(module), out.numel() / out.shape[-1]
    elif isinstance(module, nn.MultiheadAttention):
        yield from _attention(module, args, kwargs)


def _layers(net: nn.Module) -> list[nn.Module]:
    """Modules whose products `_uses` knows."""
    return [one for one in net.modules() if isinstance(one, _LAYERS) and not _has_own_code(one)]


def _has_own_code(module: nn.Module) -> bool:
    """Whether a linear layer or convolution may multiply with more than its weight."""
    is_simple = isinstance(module, nn.Linear | _ConvNd)
    return is_simple and not type(module).forward.__module__.startswith("torch.")


def _attention(
    module: nn.MultiheadAttention, args: Any, kwargs: Any
) -> Iterator[tuple[Tensor, float, float]]:
    query, key, value = _given(args, kwargs)[:3]
    packed = module.in_proj_weight
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    maps: Sequence[Tensor | None] = separate if packed is None else packed.chunk(3)
    for weight, x in zip(maps, (query, key, value), strict=True):
        assert weight is not None
        bias = 0 if module.in_proj_bias is None else len(weight)
        yield weight, bias, x.numel() / x.shape[-1]
    yield module.out_proj.weight, _biases(module.out_proj), query.numel() / query.shape[-1]


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Query, key and value of a call, by place or by name."""
    named = [kwargs[name] for name in ("query", "key", "value") if name in kwargs]
    return [*args, *named]


def _biases(module: nn.Module) -> int:
    bias = module._parameters.get("bias")
    return 0 if bias is None else bias.numel()


def ratios(before: Counts, after: Counts) -> Mapping[str, float]:
    """How many times smaller, by every count."""
    pairs = zip(before.as_dict().items(), after.as_dict().values(), strict=True)
    return {name: old / new if new else math.inf for (name, old), new in pairs}

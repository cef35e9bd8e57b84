"""Torch-Pruning's dependency graph: everything in kasuri that knows its insides.

Its tracer says which operations read what others make, and how indices change on the way. Two things are
ours. First, concatenations: the tracer knows operands that have a gradient only, looks at dimension 1 only,
and takes a concatenation that is then flattened for one along another dimension; so what is
concatenated is watched while the network runs. Second, following units through the graph: each index is
followed once, where Torch-Pruning's own way takes exponentially long in grouped-query attention.

Interfaces that are not public, as of 1.6: `module2node`, `ops._ConcatOp`, `ops._OutputOp`, nodes
(`dependencies`, `inputs`, `grad_fn`, `module`), dependencies (`target`, `handler`, `index_mapping`),
`_ConcatIndexMapping`, `_HybridIndex`, `infer_channels_between`. A test says what breaks when they change.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

ROOTS = (nn.Linear, _ConvNd, nn.Embedding)
OUTPUT = "output"
_CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)


@dataclass(frozen=True)
class Coupled:
    """One operation that makes or reads the units of a root layer.

    Args:
        target: a module, a parameter that no module of torch's holds, or OUTPUT.
        makes: whether the units are among what it makes.
        units: for every index of the target the unit it belongs to.
    """

    target: nn.Module | nn.Parameter | str
    makes: bool
    units: Mapping[int, int]


@dataclass(frozen=True)
class CoupledUnits:
    """Units of a layer, and all that are the same ones.

    Args:
        root: the layer.
        size: number of units.
        members: the root first.
        resolved: False if the indices came to no end, or their units were lost on the way.
    """

    root: nn.Module
    size: int
    members: Sequence[Coupled]
    resolved: bool


def coupled_units(
    net: nn.Module,
    example: Any,
    forward: Callable[..., Any],
    outputs: Callable[[Any], list[Tensor]],
) -> list[CoupledUnits]:
    """The units of all layers of a network, those that are coupled together.

    Args:
        net: whose parameters need gradients.
        example: an input.
        forward: calls the network with the example.
        outputs: the tensors in what the network returns.
    """
    try:
        import torch_pruning
    except ImportError:
        raise ImportError(
            "kasuri.compress needs Torch-Pruning for its dependency graph: pip install kasuri[compress]"
        ) from None
    graph = torch_pruning.DependencyGraph()
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _Watch() as concatenations:
            graph.build_dependency(
                net, example, forward_fn=forward, output_transform=outputs, verbose=False
            )
        _set_concatenations(graph, concatenations.seen)
        return list(_followed(graph, _widest(net)))


def _widest(net: nn.Module) -> int:
    """No layer has an index as large as this."""
    sizes = [size for parameter in net.parameters() for size in parameter.shape]
    return max(sizes, default=0)


def _followed(graph: Any, widest: int) -> Iterator[CoupledUnits]:
    done: set[Any] = set()
    for module in list(graph.module2node):
        pruner = graph.get_pruner_of_module(module) if isinstance(module, ROOTS) else None
        size = None if pruner is None else pruner.get_out_channels(module)
        if size is None or module in done:
            continue
        found = _follow(graph, module, pruner, size, widest)
        done |= {member.target for member in found.members if member.makes}
        yield found


def _follow(graph: Any, root: nn.Module, pruner: Any, size: int, widest: int) -> CoupledUnits:
    """Every index of every operation once, with the unit it belongs to."""
    from torch_pruning._helpers import _HybridIndex

    function = pruner.prune_out_channels
    start = graph.module2node[root]
    known: dict[tuple[Any, Any], dict[int, int]] = {(start, function): {i: i for i in range(size)}}
    waiting = [(start, function, [_HybridIndex(idx=i, root_idx=i) for i in range(size)])]
    resolved = True
    while waiting:
        node, function, indices = waiting.pop()
        for dependency in node.dependencies:
            if not dependency.is_triggered_by(function):
                continue
            mapped = indices
            for mapping in dependency.index_mapping:
                mapped = mapped if mapping is None else mapping(mapped)
            units = known.setdefault((dependency.target, dependency.handler), {})
            sound = [one for one in mapped if one.root_idx is not None and 0 <= one.idx < widest]
            resolved &= len(sound) == len(mapped)
            new = [one for one in sound if one.idx not in units]
            units.update({one.idx: one.root_idx for one in reversed(new)})
            if new:
                waiting.append((dependency.target, dependency.handler, new))
    members = [
        Coupled(
            OUTPUT if type(node.module) is graph.ops._OutputOp else node.module,
            graph.is_out_channel_pruning_fn(function),
            units,
        )
        for (node, function), units in known.items()
        if units
    ]
    return CoupledUnits(root, size, members, resolved)


@dataclass(frozen=True)
class _Concatenation:
    """One that happened: along which dimension, of how many, and where each operand begins and ends.

    Operands without a gradient, which the graph does not know, are left out.
    """

    dim: int
    dims: int
    spans: tuple[tuple[int, int], ...]

    def of_units(self, channels: Sequence[int | None]) -> bool:
        """Whether units were put side by side, rather than time steps or positions.

        Args:
            channels: units of the operands, as the graph infers them.
        """
        if self.dims != 3:  # of images dimension 1, of (batch, features) the same
            return self.dim == 1
        sizes = [last - first for first, last in self.spans]
        return self.dim in (1, 2) and list(channels) == sizes


class _Watch(TorchFunctionMode):
    """Remembers the concatenations of whatever runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, _Concatenation] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _CONCATENATIONS and out.grad_fn is not None:
            self._remember(out, args, kwargs)
        elif func is torch.hstack and out.grad_fn is not None:
            self._remember(out, args, {**kwargs, "dim": min(1, out.dim() - 1)})
        return out

    def _remember(self, out: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        operands = args[0] if args else kwargs["tensors"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
        spans, start = [], 0
        for operand in operands:
            # torch lets empty vectors pass
            size = operand.shape[dim] if operand.dim() == out.dim() else 0
            if operand.grad_fn is not None:
                spans.append((start, start + size))
            start += size
        self.seen[out.grad_fn] = _Concatenation(dim % out.dim(), out.dim(), tuple(spans))


def _set_concatenations(graph: Any, seen: Mapping[Any, _Concatenation]) -> None:
    """Put every operand of a concatenation of units where it is."""
    from torch_pruning.dependency.index_mapping import _ConcatIndexMapping
    from torch_pruning.dependency.shape_infer import infer_channels_between

    for node in graph.module2node.values():
        made = seen.get(node.grad_fn) if type(node.module) is graph.ops._ConcatOp else None
        if made is None or len(node.inputs) != len(made.spans):
            continue
        channels = [infer_channels_between(graph, source, node) for source in node.inputs]
        if not made.of_units(channels):
            continue
        node.module.concat_sizes = [last - first for first, last in made.spans]
        node.module.offsets = [0, *(last for _, last in made.spans)]
        for source, span in zip(node.inputs, made.spans, strict=True):
            for dependency in node.dependencies:
                if dependency.target is source:
                    dependency.index_mapping[1] = _ConcatIndexMapping(offset=span, reverse=True)
            for dependency in source.dependencies:
                if dependency.target is node:
                    dependency.index_mapping[1] = _ConcatIndexMapping(offset=span, reverse=False)

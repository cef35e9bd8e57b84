"""Concatenations in Torch-Pruning's graph: which operand is where.

The graph knows operands that have a gradient. It does not know of an input of the network among them, takes a
concatenation that is then flattened for one along another dimension, and looks at dimension 1 only. What is
concatenated is therefore watched while the network runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FUNCTIONS = (torch.cat, torch.concat, torch.concatenate)


@dataclass(frozen=True)
class Made:
    """A concatenation that happened.

    Args:
        dim: along which.
        dims: of the result.
        spans: first and last index + 1 of every operand that the graph knows.
    """

    dim: int
    dims: int
    spans: tuple[tuple[int, int], ...]

    def of_units(self, channels: Sequence[int | None]) -> bool:
        """Whether units were put side by side, rather than time steps or positions.

        Args:
            channels: units of the operands, as the graph infers them.
        """
        if self.dim != 1 and self.dim != self.dims - 1:
            return False
        if self.dims != 3:  # of images dimension 1, of (batch, features) the same
            return self.dim == 1
        sizes = [last - first for first, last in self.spans]
        return list(channels) == sizes


class Watch(TorchFunctionMode):
    """Remembers the concatenations of whatever runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, Made] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function, and look at it if it concatenates."""
        out = func(*args, **(kwargs or {}))
        if func in _FUNCTIONS and out.grad_fn is not None:
            self._remember(out, args, kwargs or {})
        elif func is torch.hstack and out.grad_fn is not None:
            self._remember(out, args, {**(kwargs or {}), "dim": min(1, out.dim() - 1)})
        return out

    def _remember(self, out: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        operands = args[0] if args else kwargs["tensors"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
        spans, start = [], 0
        for one in operands:
            size = one.shape[dim] if one.dim() == out.dim() else 0  # torch lets empty vectors pass
            if one.grad_fn is not None:
                spans.append((start, start + size))
            start += size
        self.seen[out.grad_fn] = Made(dim % out.dim(), out.dim(), tuple(spans))


def mend(graph: Any, seen: Mapping[Any, Made]) -> None:
    """Put every operand of a concatenation of units where it is.

    Args:
        graph: Torch-Pruning's, built.
        seen: by a `Watch`, while it was built.
    """
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
            for dep in node.dependencies:
                if dep.target is source:
                    dep.index_mapping[1] = _ConcatIndexMapping(offset=span, reverse=True)
            for dep in source.dependencies:
                if dep.target is node:
                    dep.index_mapping[1] = _ConcatIndexMapping(offset=span, reverse=False)

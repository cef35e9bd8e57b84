"""Inputs of a network: a tensor, a tuple of tensors, or a mapping of named ones, examples first."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

_SEQUENCES = (tuple, list)  # not `tuple | list`, which torch.compile knows from torch 2.7 on


@runtime_checkable
class Labelled(Protocol):
    """Anything with inputs `x` and targets `y`, row by row."""

    x: Any
    y: Tensor


def call(net: nn.Module, x: Any) -> Any:
    """What the network returns for its inputs."""
    if isinstance(x, Mapping):
        return net(**x)
    return net(*x) if isinstance(x, _SEQUENCES) else net(x)


def run(net: nn.Module, x: Any, output: Callable[[Any], Tensor] | None = None) -> Tensor:
    """The network's output tensor; `output` takes it out of what the network returns."""
    out = call(net, x)
    out = output(out) if output is not None else out
    if not isinstance(out, Tensor):
        raise TypeError(
            f"the network returned {type(out).__name__}, not a tensor; say which part is the "
            "prediction, e.g. output=lambda out: out[0] or output=lambda out: out.logits"
        )
    return out


def tensors(x: Any) -> list[Tensor]:
    """All tensors of the inputs.

    Examples:
        >>> len(tensors({"ids": torch.zeros(2), "mask": torch.zeros(2)}))
        2
    """
    if isinstance(x, Mapping):
        return list(x.values())
    return list(x) if isinstance(x, _SEQUENCES) else [x]


def each(x: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same kind of inputs with a function applied to every tensor."""
    if isinstance(x, Mapping):
        return {name: function(part) for name, part in x.items()}
    return tuple(map(function, x)) if isinstance(x, _SEQUENCES) else function(x)


def take(x: Any, rows: slice | Tensor) -> Any:
    """Some of the examples."""
    return each(x, lambda part: part[rows])


def to_device(x: Any, device: torch.device) -> Any:
    """The inputs on a device."""
    return each(x, lambda part: part.to(device))


def count(x: Any, y: Tensor | None = None) -> int:
    """How many examples there are; refuse parts with different numbers of rows."""
    lengths = [len(part) for part in (*tensors(x), *([] if y is None else [y]))]
    if len(set(lengths)) != 1:
        raise ValueError(f"inputs and targets have different numbers of rows: {lengths}")
    return lengths[0]


def split(x: Any, size: int | None) -> list[Any]:
    """Pieces of at most so many examples."""
    if size is None:
        return [x]
    return [take(x, slice(start, start + size)) for start in range(0, count(x), size)]


def batches(data: Any) -> Iterator[Any]:
    """Inputs without targets, batch by batch: of inputs themselves, or of a loader.

    The first element of a batch is the input if a loader's batches are tuples or lists.
    """
    if isinstance(data, Labelled):
        yield data.x
    elif isinstance(data, Tensor | Mapping | tuple):
        yield data
    elif isinstance(data, Iterable):
        for batch in data:
            yield batch[0] if isinstance(batch, _SEQUENCES) else batch
    else:
        raise TypeError(
            f"no inputs can be taken from {type(data).__name__}: give a tensor, a tuple or mapping of "
            "tensors, or a loader"
        )

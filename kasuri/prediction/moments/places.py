"""Where a value counts examples, also when reshaping has folded the batch into another dimension."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten
_RESHAPES = (
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten._unsafe_view.default,
)


@dataclass(frozen=True)
class Place:
    """Dimension `dim` of a value has size before · batch · after, in this order.

    Examples:
        >>> folded = Place(dim=0, before=2, after=1)  # (time · batch, features)
        >>> folded.split(torch.zeros(6, 4)).shape
        torch.Size([3, 2, 1, 4])
        >>> folded.repeat(torch.zeros(6, 4), 5).shape
        torch.Size([30, 4])
    """

    dim: int
    before: int = 1
    after: int = 1

    @property
    def alone(self) -> bool:
        """Whether the dimension counts examples and nothing else."""
        return self.before == self.after == 1

    def split(self, value: Tensor) -> Tensor:
        """The value with its examples first."""
        if self.alone:
            return value.movedim(self.dim, 0)
        return value.unflatten(self.dim, (self.before, -1, self.after)).movedim(self.dim + 1, 0)

    def join(self, value: Tensor) -> Tensor:
        """`split` undone."""
        if self.alone:
            return value.movedim(0, self.dim)
        return value.movedim(0, self.dim + 1).flatten(self.dim, self.dim + 2)

    def repeat(self, value: Tensor, times: int) -> Tensor:
        """The value of so many copies of the batch, one after the other."""
        first = self.split(value)
        return self.join(first.unsqueeze(0).expand(times, *first.shape).flatten(0, 1))


def find_places(graph: fx.Graph, first_input: str) -> dict[fx.Node, Place]:
    """The place of every node whose value has a batch; folds that are not understood are left out."""
    start = next(node for node in graph.nodes if node.name == first_input)
    batch = start.meta["val"].shape[0].node.expr
    places: dict[fx.Node, Place] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            continue
        sizes = [_in_batches(size, batch) for size in value.shape]
        dims = [dim for dim, (_, has) in enumerate(sizes) if has]
        if len(dims) != 1:
            continue
        found = _place_of(node, dims[0], sizes, batch, places)
        if found is not None:
            places[node] = found
    return places


def _place_of(
    node: fx.Node, dim: int, sizes: Any, batch: Any, places: dict[fx.Node, Place]
) -> Place | None:
    folded = sizes[dim][0]
    if folded == 1:
        return Place(dim)
    sources = [one for one in node.all_input_nodes if one in places]
    if node.target in _RESHAPES:
        source = places[sources[0]]
        shape = [_in_batches(size, batch)[0] for size in sources[0].meta["val"].shape]
        ahead = math.prod(shape[: source.dim]) * source.before
        before, rest = divmod(ahead, math.prod(size for size, _ in sizes[:dim]))
        return Place(dim, before, folded // before) if rest == 0 and before else None
    same = [one for one in sources if places[one].before * places[one].after == folded]
    return Place(dim, places[same[0]].before, places[same[0]].after) if same else None


def _in_batches(size: Any, batch: Any) -> tuple[int, bool]:
    """(k, True) for a size of k batches, (size, False) for a size without."""
    if not isinstance(size, torch.SymInt):
        return int(size), False
    share = size.node.expr / batch
    return (int(share), True) if share.is_number and share == int(share) else (0, True)

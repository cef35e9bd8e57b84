"""Batches of many members by one operation, instead of one for each member."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kasuri.training.batches import Batches


class Gathered:
    """Batches of members whose data are tensors of the same shapes, stacked: (members, batch, ...).

    Data sets that several members share are held once; different ones are copied into one tensor.

    Args:
        sources: one for each member, with the same number of rows and without augmentation.
    """

    def __init__(self, sources: Sequence[Batches[Tensor]]) -> None:
        self.sources = sources
        places: dict[tuple[int, int], int] = {}
        distinct: list[Batches[Tensor]] = []
        owners = []
        for source in sources:
            key = (id(source.x), id(source.y))
            if key not in places:
                places[key] = len(distinct)
                distinct.append(source)
            owners.append(places[key])
        self.x = _joined([source.x for source in distinct])
        self.y = _joined([source.y for source in distinct])
        self.offsets = (torch.tensor(owners) * len(sources[0].y)).unsqueeze(1)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, every member's in its own order."""
        orders = torch.stack([source.order(number) for source in self.sources])
        rows = (orders + self.offsets).to(self.y.device)
        for index in rows.split(self.sources[0].batch_size, 1):
            yield _rows(self.x, index), _rows(self.y, index)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _rows(data: Tensor, index: Tensor) -> Tensor:
    return data.index_select(0, index.flatten()).reshape(*index.shape, *data.shape[1:])

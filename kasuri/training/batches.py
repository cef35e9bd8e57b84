"""Batches: tensors in memory, cut into batches by indexing, in an order that can be replayed.

The batches of epoch i depend on (seed, i) alone: not on torch's global generator, and not on what
was drawn before. A run that is resumed in the middle of an epoch sees the very same batches.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...], Mapping[str, Tensor])


class Batches(Generic[Inputs]):
    """The batches of one data set, epoch after epoch.

    With several processes (`world` > 1) all share one order and each takes every world-th row of
    it, so that the batches number k of all of them together are one large batch. If the rows do not
    divide evenly the order wraps around (or, with `drop_last`, is cut short): every process has the
    same number of batches.

    Args:
        x: inputs (N, ...), or a tuple or mapping of such tensors.
        y: targets (N, ...).
        batch_size: rows per batch and process.
        seed: of order and augmentation.
        shuffle: a new order in every epoch; else always the given one.
        drop_last: leave out a last batch that is not full.
        augment: function of (x, generator), applied to the inputs of every batch.
        rank: number of this process.
        world: number of processes.

    Examples:
        >>> batches = Batches(torch.arange(5.0), torch.arange(5), batch_size=2, shuffle=False)
        >>> [y.tolist() for x, y in batches]
        [[0, 1], [2, 3], [4]]
        >>> [y.tolist() for x, y in batches.epoch(7, start=1)]
        [[2, 3], [4]]
    """

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        augment: Callable[[Inputs, torch.Generator], Inputs] | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        _require_rows(x, y)
        if batch_size < 1 or not 0 <= rank < world:
            raise ValueError(
                f"Batches(batch_size={batch_size}, rank={rank}, world={world}): batch_size at least "
                "1, and rank one of 0, ..., world - 1"
            )
        self.x: Inputs = x
        self.y = y
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.augment: Callable[[Inputs, torch.Generator], Inputs] | None = augment
        self.rank = rank
        self.world = world
        share = len(y) // world if drop_last else -(-len(y) // world)
        self._length = share // batch_size if drop_last else -(-share // batch_size)
        self._rows = min(share, self._length * batch_size)
        if not self._length:
            raise ValueError(
                f"Batches(batch_size={batch_size}, drop_last=True, world={world}): {len(y)} rows "
                "do not fill one batch"
            )
        self.next_epoch = 0  # number of the epoch that iteration gives next

    @property
    def num_data(self) -> int:
        """Number of rows, on all processes together."""
        return len(self.y)

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._length

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches of epoch `next_epoch`, which then counts up."""
        number = self.next_epoch
        self.next_epoch += 1
        return self.epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches of one epoch, beginning with batch `start`; those before cost nothing."""
        if number < 0 or not 0 <= start <= len(self):
            raise ValueError(
                f"epoch({number}, start={start}): epochs count from 0, and start is at most the "
                f"{len(self)} batches of an epoch"
            )
        return self._run(number, start)

    def _run(self, number: int, start: int) -> Iterator[tuple[Inputs, Tensor]]:
        rows = self.order(number).to(self.y.device)
        for batch in range(start, len(self)):
            index = rows[batch * self.batch_size : (batch + 1) * self.batch_size]
            x = _take(self.x, index)
            if self.augment is not None:
                x = self.augment(x, _generator(self.seed, number, batch, self.rank))
            yield x, self.y.index_select(0, index)

    def order(self, number: int) -> Tensor:
        """Rows of this process in the order of an epoch."""
        n = len(self.y)
        order = torch.arange(n)
        if self.shuffle:
            order = torch.randperm(n, generator=_generator(self.seed, number))
        if self.world == 1:
            return order[: self._rows]
        places = torch.arange(self.rank, self._rows * self.world, self.world)
        return order[places % n]


def _generator(*numbers: int) -> torch.Generator:
    """A generator seeded by several numbers; hashed, so that no two lists give related streams."""
    told = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(told, "little") >> 1)


def _take(x: Inputs, index: Tensor) -> Inputs:
    if isinstance(x, tuple):
        return tuple(part.index_select(0, index) for part in x)
    if isinstance(x, Mapping):
        return {key: part.index_select(0, index) for key, part in x.items()}
    return x.index_select(0, index)


def _require_rows(x: Tensor | tuple[Tensor, ...] | Mapping[str, Tensor], y: Tensor) -> None:
    parts = tuple(x.values()) if isinstance(x, Mapping) else x if isinstance(x, tuple) else (x,)
    tensors = (*parts, y)
    if not tensors[:-1] or any(one.dim() == 0 or len(one) != len(y) for one in tensors):
        shapes = [tuple(one.shape) for one in tensors]
        raise ValueError(f"Batches: x and y must have the same number of rows, got shapes {shapes}")
    if not len(y):
        raise ValueError("Batches: x and y have no rows")
    if len({one.device for one in tensors}) > 1:
        devices = [str(one.device) for one in tensors]
        raise ValueError(f"Batches: x and y must be on one device, got {devices}")

"""Batches: tensors in memory cut into batches by indexing, or a DataLoader made repeatable.

The batches of epoch i depend on (seed, i) alone: not on torch's global generator, and not on what
was drawn before. A run that is resumed in the middle of an epoch sees the very same batches.
"""

import copy
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from kasuri import inputs
from kasuri.streams import Stream, mix
from kasuri.training import defaults
from kasuri.training.distributed import Processes


class Batches:
    """The batches of one data set, in a new order in every epoch.

    Args:
        x: inputs (N, ...), or a tuple or mapping of such tensors.
        y: targets (N, ...).
        batch_size: rows per batch; by default 128, or 256 if there are 10,000 rows or more.
        seed: of order and augmentation.
        augment: function of (x, generator), applied to the inputs of every batch.

    Examples:
        >>> batches = Batches(torch.arange(5.0), torch.arange(5), batch_size=2)
        >>> [len(y) for x, y in batches]
        [2, 2, 1]
        >>> [len(y) for x, y in batches.epoch(7, start=1)]
        [2, 1]
    """

    def __init__(
        self,
        x: Any,
        y: Tensor,
        batch_size: int | None = None,
        *,
        seed: int = 0,
        augment: Callable[[Any, torch.Generator], Any] | None = None,
    ) -> None:
        _check_rows(x, y)
        batch_size = defaults.batch_size(len(y)) if batch_size is None else batch_size
        if batch_size < 1:
            raise ValueError(f"Batches: batch_size must be at least 1, got {batch_size}")
        self.x, self.y = x, y
        self.batch_size, self.seed, self.augment = batch_size, seed, augment
        self.group = Processes()
        self.next_epoch = 0  # number of the epoch that iteration gives next

    @property
    def num_data(self) -> int:
        """Number of rows, on all processes together."""
        return len(self.y)

    def __len__(self) -> int:
        return -(-self._share() // self.batch_size)

    def _share(self) -> int:
        """Rows of each process."""
        return -(-len(self.y) // self.group.world)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        """The batches of epoch `next_epoch`, which then counts up."""
        number = self.next_epoch
        self.next_epoch += 1
        return self.epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of one epoch, beginning with batch `start`; those before cost nothing."""
        rows = self.order(number).to(self.y.device)
        for batch in range(start, len(self)):
            index = rows[batch * self.batch_size : (batch + 1) * self.batch_size]
            # faster than x[index]
            x = inputs.each(self.x, partial(torch.index_select, dim=0, index=index))
            if self.augment is not None:
                x = self.augment(x, _generator(self.seed, number, batch, self.group.rank))
            yield x, self.y.index_select(0, index)

    def order(self, number: int) -> Tensor:
        """Rows of this process in the order of an epoch.

        All processes share one order and each takes every world-th row of it, so that the batches number k
        of all of them are one large batch. If rows do not divide evenly the order wraps around: every process
        has the same number of batches.
        """
        count = len(self.y)
        order = torch.randperm(count, generator=_generator(self.seed, number))
        places = torch.arange(self.group.rank, self._share() * self.group.world, self.group.world)
        return order[places % count]

    def shared(self, group: Processes) -> Self:
        """The batches of one of several processes; together they have as many rows as one has here."""
        if self.batch_size % group.world:
            raise ValueError(
                f"batch_size must be a multiple of {group.world}, the number of processes, got "
                f"{self.batch_size}"
            )
        mine = copy.copy(self)
        mine.group, mine.batch_size = group, self.batch_size // group.world
        return mine


class Loader:
    """A DataLoader whose shuffling and in-process augmentation follow from (seed, epoch)."""

    def __init__(self, loader: "DataLoader[Any]", seed: int) -> None:
        self.loader, self.seed, sampler = loader, seed, loader.sampler
        try:
            self.batches, self.num_data = len(loader), len(cast(Sized, loader.dataset))
        except TypeError:
            raise ValueError(
                "the training data has no length (an IterableDataset): kasuri.fit needs the number of "
                "examples for the weight of the KL; write your own loop with kasuri.ELBO(num_data=...)"
            ) from None
        if isinstance(sampler, Sized) and not isinstance(sampler, DistributedSampler):
            self.num_data = min(self.num_data, len(sampler))  # a sampler of a subset

    def __len__(self) -> int:
        return self.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of an epoch; the first `start` are fetched and dropped."""
        if start >= self.batches:
            return
        self._seed(Stream.ORDER, number)
        if isinstance(self.loader.sampler, DistributedSampler):
            self.loader.sampler.set_epoch(number)
        for owner in (self.loader, self.loader.sampler):
            if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
                generator.manual_seed(mix(self.seed, Stream.ORDER, number))
        batches = iter(self.loader)
        for place in range(self.batches):
            self._seed(Stream.FETCH, number, place)
            batch = next(batches, None)
            if batch is not None and place >= start:
                yield _pair(batch)

    def _seed(self, *place: int) -> None:
        number = mix(self.seed, *place)
        torch.default_generator.manual_seed(number)
        random.seed(number)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(number % 2**32)


Source = Batches | Loader


def as_source(data: Any, batch_size: int | None, seed: int, group: Processes) -> Source:
    """Batches of (x, y) tensors, of an object with .x and .y, or of a DataLoader."""
    if isinstance(data, Batches | DataLoader) and batch_size is not None:
        raise ValueError(
            f"fit(batch_size={batch_size}): this {type(data).__name__} has its own; leave it out"
        )
    if isinstance(data, DataLoader):
        if group.world > 1 and not isinstance(data.sampler, DistributedSampler):
            raise ValueError(
                f"{group.world} processes would all see the whole of this DataLoader: give it "
                "sampler=torch.utils.data.DistributedSampler(dataset), or give kasuri.fit the tensors"
            )
        return Loader(data, seed)
    if not isinstance(data, Batches):
        x, y = tensors(data)
        data = Batches(x, y, batch_size, seed=seed)
    return data.shared(group)


def tensors(data: Any) -> tuple[Any, Tensor]:
    """(x, y) of a pair, of an object with .x and .y, or of a whole DataLoader."""
    if isinstance(data, DataLoader):
        with torch.random.fork_rng():
            xs, ys = zip(*Loader(data, seed=0).epoch(0), strict=True)
        if not isinstance(xs[0], Tensor):
            raise TypeError("validation data with several inputs: give ((x1, x2), y), not a loader")
        return torch.cat(xs), torch.cat(ys)
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    elif hasattr(data, "x") and hasattr(data, "y"):
        x, y = data.x, data.y
    else:
        raise TypeError(
            f"data of type {type(data).__name__}: give (x, y), an object with .x and .y, or a DataLoader"
        )
    if not isinstance(y, Tensor):
        raise TypeError(f"targets are a {type(y).__name__}: give tensors, torch.as_tensor(y)")
    return tuple(x) if isinstance(x, list) else x, y


def rows_of(valid: Any) -> tuple[Any, Tensor] | None:
    """(x, y) of validation data; None if there are none, or not a single row."""
    pair = None if valid is None else tensors(valid)
    return pair if pair is not None and len(pair[1]) else None


def hold_out(data: Any, share: float, seed: int) -> tuple[tuple[Any, Tensor], tuple[Any, Tensor]]:
    """(the rest, a random share of the examples)."""
    x, y = tensors(data)
    count = max(1, round(share * len(y)))
    generator = torch.Generator().manual_seed(mix(seed, Stream.SPLIT))
    order = torch.randperm(len(y), generator=generator)
    held, rest = order[:count].sort().values, order[count:].sort().values
    return (inputs.take(x, rest), y[rest]), (inputs.take(x, held), y[held])


def _pair(batch: Any) -> tuple[Any, Tensor]:
    """(x, y) of what a loader yields."""
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        return batch[0] if len(batch) == 2 else tuple(batch[:-1]), batch[-1]
    raise TypeError(
        f"a batch is a {type(batch).__name__}: kasuri.fit takes loaders that yield (x, y) or (x1, x2, y)"
    )


def _generator(*numbers: int) -> torch.Generator:
    """A generator seeded by several numbers; hashed, so that no two lists give related streams."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def _check_rows(x: Any, y: Tensor) -> None:
    parts = [*inputs.tensors(x), y]
    if len(parts) < 2 or any(part.dim() == 0 or len(part) != len(y) for part in parts):
        shapes = [tuple(part.shape) for part in parts]
        raise ValueError(f"Batches: x and y must have the same number of rows, got shapes {shapes}")
    if not len(y):
        raise ValueError("Batches: x and y have no rows")

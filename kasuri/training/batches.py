"""Batches: tensors in memory cut into batches by indexing, or a DataLoader made repeatable.

The batches of epoch i depend on (seed, i) alone: not on torch's global generator, and not on what
was drawn before. A run that is resumed in the middle of an epoch sees the very same batches.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from kasuri import inputs
from kasuri.streams import Stream, mix
from kasuri.training import defaults
from kasuri.training.distributed import Processes

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...], Mapping[str, Tensor])


class Source(Protocol):
    """Batches whose order is a function of the epoch's number alone."""

    @property
    def num_data(self) -> int:
        """Number of examples, on all processes together."""

    def __len__(self) -> int:
        """Batches per epoch."""

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of an epoch from number `start` on."""


class Batches(Generic[Inputs]):
    """The batches of one data set, epoch after epoch.

    With several processes (`world` > 1) all share one order and each takes every world-th row of
    it, so that the batches number k of all of them together are one large batch. If the rows do not
    divide evenly the order wraps around (or, with `drop_last`, is cut short): every process has the
    same number of batches. `kasuri.fit` shares out batches that were made for one process.

    Args:
        x: inputs (N, ...), or a tuple or mapping of such tensors.
        y: targets (N, ...).
        batch_size: rows per batch and process; by default 128, or 256 if there are 10,000 rows or more.
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
        batch_size: int | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        augment: Callable[[Inputs, torch.Generator], Inputs] | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        _check_rows(x, y)
        if batch_size is None:
            batch_size = min(defaults.batch_size(len(y)), len(y))
        if batch_size < 1 or not 0 <= rank < world:
            raise ValueError(
                f"Batches(batch_size={batch_size}, rank={rank}, world={world}): batch_size must be at "
                "least 1, and rank one of 0, ..., world - 1"
            )
        self.x: Inputs = x
        self.y = y
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
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
                f"epoch({number}, start={start}): epochs count from 0, and start must be at most "
                f"{len(self)}, the batches of an epoch"
            )
        return self._run(number, start)

    def _run(self, number: int, start: int) -> Iterator[tuple[Inputs, Tensor]]:
        rows = self.order(number).to(self.y.device)
        for batch in range(start, len(self)):
            index = rows[batch * self.batch_size : (batch + 1) * self.batch_size]
            x: Inputs = _select(self.x, index)
            if self.augment is not None:
                x = self.augment(x, _generator(self.seed, number, batch, self.rank))
            yield x, self.y.index_select(0, index)

    def order(self, number: int) -> Tensor:
        """Rows of this process in the order of an epoch."""
        count = len(self.y)
        order = torch.arange(count)
        if self.shuffle:
            order = torch.randperm(count, generator=_generator(self.seed, number))
        if self.world == 1:
            return order[: self._rows]
        places = torch.arange(self.rank, self._rows * self.world, self.world)
        return order[places % count]

    def shared(self, group: Processes) -> "Batches[Inputs]":
        """The batches of one of several processes; together they have as many rows as one has here."""
        if group.world in (1, self.world):
            return self
        if self.batch_size % group.world:
            raise ValueError(
                f"batch_size must be a multiple of {group.world}, the number of processes, got "
                f"{self.batch_size}"
            )
        return Batches(
            self.x,
            self.y,
            self.batch_size // group.world,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            augment=self.augment,
            rank=group.rank,
            world=group.world,
        )


class Loader:
    """A DataLoader whose shuffling and in-process augmentation follow from (seed, epoch)."""

    def __init__(self, loader: "DataLoader[Any]", seed: int) -> None:
        self.loader, self.seed = loader, seed
        try:
            self.batches, self.num_data = len(loader), len(cast(Sized, loader.dataset))
            if isinstance(loader.sampler, Sized) and not isinstance(
                loader.sampler, DistributedSampler
            ):
                self.num_data = min(self.num_data, len(loader.sampler))  # a sampler of a subset
        except TypeError:
            raise ValueError(
                "the training data has no length (an IterableDataset): kasuri.fit needs the number of "
                "examples for the weight of the KL; write your own loop with kasuri.ELBO(num_data=...)"
            ) from None

    def __len__(self) -> int:
        return self.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of an epoch; the first `start` are fetched and dropped."""
        if start >= self.batches:
            return
        self._seed(Stream.ORDER, number)
        sampler, generators = self.loader.sampler, [self.loader.generator]
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(number)
        if isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
            generators.append(sampler.generator)
        for generator in generators:
            if generator is not None:
                generator.manual_seed(mix(self.seed, Stream.ORDER, number))
        batches = iter(self.loader)
        for place in range(self.batches):
            self._seed(Stream.FETCH, number, place)
            try:
                batch = next(batches)
            except StopIteration:
                return
            if place >= start:
                yield _pair(batch)

    def _seed(self, *place: int) -> None:
        number = mix(self.seed, *place)
        torch.default_generator.manual_seed(number)
        random.seed(number)
        if "numpy" in sys.modules:
            import numpy as np

            np.random.seed(number % 2**32)


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
        data = Batches(x, y, None if batch_size is None else min(batch_size, len(y)), seed=seed)
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
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, tuple | list) and len(batch) > 2:
        return tuple(batch[:-1]), batch[-1]
    raise TypeError(
        f"a batch is a {type(batch).__name__}: kasuri.fit takes loaders that yield (x, y) or (x1, x2, y)"
    )


def _select(x: Any, index: Tensor) -> Any:
    """Some rows, several times faster than by x[index]."""
    return inputs.each(x, lambda part: part.index_select(0, index))


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
    if len({part.device for part in parts}) > 1:
        devices = [str(part.device) for part in parts]
        raise ValueError(f"Batches: x and y must be on one device, got {devices}")

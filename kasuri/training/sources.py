"""Where batches come from: tensors in memory, or a DataLoader made repeatable."""

import random
import sys
from collections.abc import Iterator, Sized
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from kasuri.inputs import take
from kasuri.streams import mix
from kasuri.training import defaults
from kasuri.training.augment import Augmentation
from kasuri.training.batches import Batches
from kasuri.training.distributed import Processes

_ORDER, _FETCH = 1, 2  # streams of random numbers, kept apart from the noise of the weights


class Source(Protocol):
    """Batches whose order is a function of the epoch's number alone."""

    @property
    def num_data(self) -> int:
        """Number of examples, on all processes together."""

    def __len__(self) -> int:
        """Batches per epoch."""

    def epoch(self, index: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of an epoch from number `start` on."""


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
        """Batches per epoch."""
        return self.batches

    def epoch(self, index: int, start: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """The batches of an epoch; the first `start` are fetched and dropped."""
        if start >= self.batches:
            return
        self._seed(_ORDER, index)
        sampler, generators = self.loader.sampler, [self.loader.generator]
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(index)
        if isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
            generators.append(sampler.generator)
        for generator in generators:
            if generator is not None:
                generator.manual_seed(mix(self.seed, _ORDER, index))
        batches = iter(self.loader)
        for number in range(self.batches):
            self._seed(_FETCH, index, number)
            try:
                batch = next(batches)
            except StopIteration:
                return
            if number >= start:
                yield pair(batch)

    def _seed(self, *place: int) -> None:
        number = mix(self.seed, *place)
        torch.default_generator.manual_seed(number)
        random.seed(number)
        if "numpy" in sys.modules:
            import numpy as np

            np.random.seed(number % 2**32)


def as_source(
    data: Any, batch_size: int | None, augment: Augmentation | None, seed: int, group: Processes
) -> Source:
    """Batches of (x, y) tensors, of an object with .x and .y, or of a DataLoader."""
    for name, given in (("batch_size", batch_size), ("augment", augment)):
        if isinstance(data, Batches | DataLoader) and given is not None:
            told = given if isinstance(given, int) else "..."
            raise ValueError(
                f"fit({name}={told}): this {type(data).__name__} has its own; leave it out"
            )
    if isinstance(data, Batches):
        if (data.rank, data.world) != (group.rank, group.world):
            raise ValueError(
                f"Batches(rank={data.rank}, world={data.world}) in process {group.rank} of "
                f"{group.world}: give kasuri.fit the tensors (x, y), and it will share them out"
            )
        return data
    if isinstance(data, DataLoader):
        if group.world > 1 and not isinstance(data.sampler, DistributedSampler):
            raise ValueError(
                f"{group.world} processes would all see the whole of this DataLoader: give it "
                "sampler=torch.utils.data.DistributedSampler(dataset), or give kasuri.fit the tensors"
            )
        return Loader(data, seed)
    x, y = tensors(data)
    size = min(batch_size or defaults.batch_size(len(y)), len(y))
    if size % group.world:
        raise ValueError(
            f"batch_size={size} cannot be shared by {group.world} processes equally; "
            f"take a multiple of {group.world}"
        )
    size //= group.world
    return Batches(x, y, size, seed=seed, augment=augment, rank=group.rank, world=group.world)


def tensors(data: Any) -> tuple[Any, Tensor]:
    """(x, y) of a pair, of an object with .x and .y, or of a whole DataLoader."""
    if isinstance(data, DataLoader):
        with torch.random.fork_rng():
            xs, ys = zip(*Loader(data, seed=0).epoch(0), strict=True)
        if not isinstance(xs[0], Tensor):
            raise TypeError("validation data with several inputs: give ((x1, x2), y), not a loader")
        return torch.cat(xs), torch.cat(ys)
    if isinstance(data, Batches):
        return data.x, data.y
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        try:
            x, y = data.x, data.y
        except AttributeError:
            raise TypeError(
                f"data of type {type(data).__name__}: give (x, y), an object with .x and .y, or a DataLoader"
            ) from None
    x = tuple(x) if isinstance(x, list) else x
    if not isinstance(y, Tensor):
        raise TypeError(f"targets are a {type(y).__name__}: give tensors, torch.as_tensor(y)")
    return x, y


def pair(batch: Any) -> tuple[Any, Tensor]:
    """(x, y) of what a loader yields."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, tuple | list) and len(batch) > 2:
        return tuple(batch[:-1]), batch[-1]
    raise TypeError(
        f"a batch is a {type(batch).__name__}: kasuri.fit takes loaders that yield (x, y) or (x1, x2, y)"
    )


def hold_out(data: Any, share: float, seed: int) -> tuple[tuple[Any, Tensor], tuple[Any, Tensor]]:
    """(the rest, a random share of the examples)."""
    x, y = tensors(data)
    count = max(1, round(share * len(y)))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(mix(seed, 3)))
    held, rest = order[:count].sort().values, order[count:].sort().values
    return (take(x, rest), y[rest]), (take(x, held), y[held])

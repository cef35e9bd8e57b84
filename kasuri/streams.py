"""Random numbers: seeds of independent streams, and the noise of this thread.

Every random number of a posterior comes from `normal`, `uniform` or `signs`. Inside `seeded` they
come from a generator of this thread's own; elsewhere from torch's global one, as dropout does.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """What a stream of random numbers is for: streams of one seed are independent of each other."""

    START = 0
    ORDER = 1
    FETCH = 2
    SPLIT = 3
    NOISE = 4
    VALIDATION = 5
    STACK = 6
    EVALUATION = 7
    CURVE = 8
    DROPOUT = 9
    ROWS = 11
    WEIGHTS = 12
    DRAWS = 13
    FUNCTIONS = 14
    TARGETS = 15
    SCORES = 16
    FOLDS = 17


def mix(*numbers: int) -> int:
    """A 63-bit seed that depends on every number and on their order (splitmix64 finaliser).

    Plain addition would make seed 0, draw 1 and seed 1, draw 0 the same stream.

    Examples:
        >>> mix(0, 1) == mix(1, 0)
        False
    """
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def fresh() -> int:
    """A seed taken from torch's global generator, so that torch.manual_seed governs it."""
    return int(torch.randint(1 << 62, ()).item())


class seeded:
    """Inside the block the noise of this thread depends on the seed alone.

    torch's global generator is neither read nor changed, so other threads are not disturbed.

    Examples:
        >>> with seeded(3):
        ...     first = normal((2,))
        >>> with seeded(3):
        ...     torch.equal(normal((2,)), first)
        True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}  # one for each device that asks
        self.outer: seeded | None = None

    def __enter__(self) -> None:
        self.outer, _local.source = _local.source, self

    def __exit__(self, *error: object) -> None:
        _local.source = self.outer


class _Local(threading.local):
    source: seeded | None = None


_local = _Local()


def _source(device: torch.device | None) -> dict[str, Any]:
    """Where noise on a device comes from, as torch's functions take it; nothing for the global generator.

    Compiled code knows no generators: there noise is torch's own.
    """
    source = _local.source
    if source is None or torch.compiler.is_compiling():
        return {}
    device = torch.device("cpu") if device is None else device
    found = source.generators.get(device)
    if found is None:
        found = source.generators[device] = torch.Generator(device).manual_seed(source.seed)
    return {"generator": found}


def normal(
    shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Independent N(0, 1)."""
    return torch.randn(shape, dtype=dtype, device=device, **_source(device))


def normal_like(like: Tensor) -> Tensor:
    """Independent N(0, 1), shaped like a tensor."""
    return normal(like.shape, dtype=like.dtype, device=like.device)


def uniform(
    shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Independent numbers, uniform between 0 and 1."""
    return torch.rand(shape, dtype=dtype, device=device, **_source(device))


def signs(shape: Sequence[int], like: Tensor) -> Tensor:
    """Independent ±1, in the type and on the device of a tensor."""
    coins = torch.randint(2, shape, device=like.device, **_source(like.device))
    return coins.to(like.dtype).mul(2).sub(1)


def reseed_global(seed: int, device: torch.device) -> None:
    """Set torch's global generator, which dropout and a network's own randomness use."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def globally_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run the body with torch's global generator at a seed, for code that draws from it.

    It is as before afterwards. Other threads share it: use `seeded` wherever noise is drawn by this module.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        reseed_global(seed, device)
        yield

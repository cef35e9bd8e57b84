"""Seeds: many independent streams out of one number, and noise drawn from one of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1


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


def reseed(seed: int, device: torch.device) -> None:
    """Set the generator that noise on this device comes from."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def restored(device: torch.device) -> Iterator[None]:
    """Leave every generator as it was before the body."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run the body with the generator of `device` at `seed`; leave every generator as it was."""
    with restored(device):
        reseed(seed, device)
        yield

"""Data sets are read once for all experiments, and cut: smoke runs use a few hundred rows."""

import functools

import pytest
import torch

from experiments import data
from experiments.data import pictures


def _noise(name, scale="unit", flat=False):
    """Noise in the place of CIFAR's pictures, which take seconds to decode."""
    classes = 100 if name == "cifar-100" else 10
    parts = tuple(
        (torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8), torch.randint(classes, (n,)))
        for n in (3000, 500)
    )
    names = tuple(map(str, range(classes)))
    read = (parts, names, "")
    return pictures.picture_set(name, lambda _: read, scale=scale, valid=1000, flat=flat)


@functools.lru_cache
def _load(name, options):
    load = functools.partial(_noise if name in pictures.CIFAR else data.catalog.load, name)
    return load(**dict(options)).small(2000)


@pytest.fixture(autouse=True)
def _data_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", lambda name, **options: _load(name, tuple(options.items())))

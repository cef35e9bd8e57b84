"""Data sets are read once for all experiments, and cut: smoke runs use a few hundred rows."""

import functools

import pytest

from experiments import data
from experiments.data import pictures

_read_strips = functools.lru_cache(maxsize=1)(pictures._read_strips)


@functools.lru_cache
def _load(name, options):
    return data.catalog.load(name, **dict(options)).small(2000)


@pytest.fixture(autouse=True)
def _data_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pictures, "_read_strips", lambda name, paths: _read_strips(name, tuple(paths))
    )
    monkeypatch.setattr(data, "load", lambda name, **options: _load(name, tuple(options.items())))

"""Data sets are read once for all experiments."""

import functools

import pytest

from experiments import data

_load = functools.lru_cache(maxsize=None)(
    lambda name, options: data.catalog.load(name, **dict(options))
)


@pytest.fixture(autouse=True)
def _data_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", lambda name, **options: _load(name, tuple(options.items())))

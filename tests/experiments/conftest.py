"""Data sets are read once for all experiments; of large ones only the last few are kept."""

import functools

import pytest

from experiments import data


@functools.lru_cache(maxsize=4)
def _load(name, options):
    return data.catalog.load(name, **dict(options))


@pytest.fixture(autouse=True)
def _data_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", lambda name, **options: _load(name, tuple(options.items())))

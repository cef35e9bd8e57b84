"""Writing files: old or new, and nothing left lying about."""

import json
import os
import time

import pytest

import kasuri
from kasuri.storage import STALE, build, describe, write_atomically


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_swept_up_but_nothing_else(tmp_path):
    path = tmp_path / "check[1].pt"
    stale, fresh = (tmp_path / f".check[1].pt.123.{name}" for name in ("0000aaaa", "0000bbbb"))
    other = tmp_path / ".checkpoint.pt.123.0000cccc"
    for one in (stale, fresh, other):
        one.write_bytes(b"half")
    long_ago = time.time() - STALE - 10
    for one in (stale, other):
        os.utime(one, (long_ago, long_ago))
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert set(tmp_path.iterdir()) == {path, fresh, other}


def test_options_are_the_attributes_named_like_arguments_of_the_constructor():
    class Laplace(kasuri.Prior):
        def __init__(self, width, base=None):
            super().__init__()
            self.width, self.base, self.half = width, base, width / 2

        def log_prob(self, weight):
            return -weight.abs() / self.width

        def expected_log_prob(self, *posteriors):
            raise NotImplementedError

    again = build(json.loads(json.dumps(describe(Laplace(0.3, kasuri.HeNormal(gain=1.0))))))
    assert (type(again), again.width, again.base.gain) == (Laplace, 0.3, 1.0)

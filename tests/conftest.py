"""Settings of the test run: one thread per worker (the workers use the cores), a fixed seed."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts its pool

import pytest
import torch

from kasuri.training import checkpoint


@pytest.fixture(autouse=True)
def _seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _usual_checkpoints(monkeypatch):
    """Put back the time between checkpoints, which tests set to 0 to have one after every epoch."""
    monkeypatch.setattr(checkpoint, "EVERY", checkpoint.EVERY)

"""What every test of training begins with."""

import pytest

from kasuri.training import checkpoint


@pytest.fixture(autouse=True)
def _usual_checkpoints(monkeypatch):
    """Tests that want a checkpoint after every epoch set EVERY to 0."""
    monkeypatch.setattr(checkpoint, "EVERY", checkpoint.EVERY)

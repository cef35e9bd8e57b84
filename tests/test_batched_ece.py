"""The calibration error of batches, for comparison with numbers that were made like that."""

import pytest
import torch

from kasuri.prediction.metrics import calibration_bins, ece


def calibrated(count=20_000):
    """A model that is right as often as it says, with mean confidence 0.8."""
    generator = torch.Generator().manual_seed(0)
    stated = 0.6 + 0.4 * torch.rand(count, generator=generator)
    y = (torch.rand(count, generator=generator) > stated).long()
    return torch.stack([stated, 1 - stated], 1), y


def test_a_calibrated_model_looks_ten_times_worse_in_batches():
    probs, y = calibrated()
    assert ece(probs, y) < 0.01
    assert 0.06 < ece(probs, y, batch=128) < 0.11


def test_it_is_the_mean_over_batches():
    probs, y = calibrated(300)
    parts = [
        calibration_bins(p.max(1).values, (p.argmax(1) == t).float()).error
        for p, t in zip(probs.split(128), y.split(128), strict=True)
    ]
    assert ece(probs, y, batch=128) == pytest.approx(sum(parts) / 3)
    assert ece(probs, y, batch=300) == pytest.approx(ece(probs, y))
    assert ece(probs, y, batch=300, classwise=True) == pytest.approx(ece(probs, y, classwise=True))
    with pytest.raises(ValueError, match="at least one"):
        ece(probs, y, batch=0)

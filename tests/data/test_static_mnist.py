"""Statically binarised MNIST: the published files where they are, a stored seed where they are not."""

import hashlib

import pytest
import torch

from experiments import data as datasets
from experiments.data import DataError, static_mnist
from tests.data.conftest import put


def text(pixels):
    return "\n".join(" ".join(str(int(p)) for p in row) for row in pixels).encode() + b"\n"


@pytest.fixture
def published(folder, monkeypatch):
    """Small files in the published form, with their own checksums."""
    parts, pictures = {}, {}
    for number, part in enumerate(static_mnist.PARTS):
        x = (torch.rand(12, 784, generator=torch.Generator().manual_seed(number)) > 0.8).byte()
        pictures[part] = x
        parts[part] = (12, hashlib.md5(bytes(x[:10].flatten().tolist())).hexdigest())
        put(folder, f"static-mnist/binarized_mnist_{part}.amat", text(x))
    monkeypatch.setattr(static_mnist, "PARTS", parts)
    return folder, pictures


def test_pixels_are_drawn_with_their_brightness_as_probability():
    bright = torch.tensor([0, 51, 128, 204, 255]).byte().repeat_interleave(20_000)
    pictures = bright.reshape(1, 1, -1, 1)
    raw = ((pictures, torch.tensor([3])), (pictures, torch.tensor([4])))
    (train, label), (test, _) = static_mnist.binarised(raw)
    for pixels in (train, test):
        share = pixels.reshape(5, 20_000).float().mean(1)
        # √(0.25/20,000) = 0.0035
        torch.testing.assert_close(
            share, torch.tensor([0, 0.2, 128 / 255, 0.8, 1]), atol=0.015, rtol=0
        )
    assert not torch.equal(train, test)
    assert label.item() == 3
    again = static_mnist.binarised(raw)
    assert torch.equal(again[0][0], train)


def test_published_files_are_used_and_said_so(published):
    folder, pictures = published
    data = datasets.load("static-mnist", valid=12)
    assert data.note == static_mnist.THEIRS
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(data, part).x, pictures[part].float())
    assert datasets.load("static-mnist", flat=False, valid=1).test.x.shape == (12, 1, 28, 28)
    assert datasets.status()["static-mnist"] == str(folder / "static-mnist")


@pytest.mark.parametrize("harm", ["shorter", "other"])
def test_published_files_that_are_damaged_are_refused(published, harm):
    folder, pictures = published
    x = pictures["valid"].clone()
    content = text(x[:-1]) if harm == "shorter" else text(1 - x)
    put(folder, "static-mnist/binarized_mnist_valid.amat", content)
    with pytest.raises(DataError, match=r"binarized_mnist_valid\.amat"):
        datasets.load("static-mnist")


def test_without_the_files_a_stored_seed_decides_and_it_is_said(real, monkeypatch):
    data = datasets.load("static-mnist")
    assert "seed" in data.note
    assert [len(part) for part in (data.train, data.valid, data.test)] == [50_000, 10_000, 10_000]
    assert set(data.test.x.unique().tolist()) == {0.0, 1.0}
    grey = datasets.load("mnist", scale="unit")
    assert torch.equal(data.valid.y, grey.valid.y)
    assert (data.test.x[grey.test.x == 0] == 0).all()
    assert (data.test.x[grey.test.x == 1] == 1).all()
    assert abs(float(data.train.x.mean() - grey.train.x.mean())) < 1e-3
    monkeypatch.setattr(static_mnist, "SEED", 1)
    with pytest.raises(DataError, match="seed 1 "):
        datasets.load("static-mnist")

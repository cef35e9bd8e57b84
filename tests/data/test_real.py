"""The real files: numbers of their SOURCE.md, partitions, damage. Skipped where there are none."""

import numpy as np
import pytest
import torch

from experiments import data as datasets
from experiments.data import DataError, pictures, tables
from experiments.data.files import FILES
from tests.data.conftest import REAL

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="real data: set KASURI_DATA")

COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
# rows, features, splits, train, test, mean and standard deviation of the target
UCI = {
    "boston": (506, 13, 20, 455, 51, 22.5328, 9.1880),
    "concrete": (1030, 8, 20, 927, 103, 35.8180, 16.6976),
    "energy": (768, 8, 20, 691, 77, 22.3072, 10.0836),
    "kin8nm": (8192, 8, 20, 7373, 819, 0.7143, 0.2636),
    "naval": (11934, 16, 20, 10741, 1193, 0.9750, 0.0147),
    "power": (9568, 4, 20, 8611, 957, 454.3650, 17.0661),
    "protein": (45730, 9, 5, 41157, 4573, 7.7485, 6.1182),
    "wine": (1599, 11, 20, 1439, 160, 5.6360, 0.8073),
    "yacht": (308, 6, 20, 277, 31, 10.4954, 15.1359),
}


PIXELS = {  # of train and test: means of the channels, and their standard deviations
    "mnist": ([0.13066], [0.30811], [0.13251], [0.31048]),
    "fashion-mnist": ([0.28604], [0.35302], [0.28685], [0.35244]),
    "cifar-10": (
        *([0.491400, 0.482158, 0.446531], [0.247032, 0.243485, 0.261588]),
        *([0.494214, 0.485131, 0.450409], [0.246653, 0.242892, 0.261592]),
    ),
    "cifar-100": (
        *([0.507075, 0.486549, 0.440918], [0.267334, 0.256438, 0.276150]),
        *([0.508796, 0.487393, 0.441942], [0.268252, 0.257364, 0.277096]),
    ),
}
LAST = {"cifar-10": "truck", "cifar-100": "worm", "fashion-mnist": "Ankle boot", "mnist": "9"}


@pytest.mark.parametrize("name", PIXELS)
def test_pictures(real, name):
    """Known numbers of labels, and known means and standard deviations of pixels by channel."""
    data = datasets.load(name, scale="unit", valid=0)
    classes = len(data.classes)
    assert data.classes[-1] == LAST[name]
    assert bool(data.note) == (name == "cifar-100"), "whose prepared copy is in another order"
    even = [[len(part) // classes] * classes for part in (data.train, data.test)]
    counts = [part.y.bincount().tolist() for part in (data.train, data.test)]
    assert counts == ([COUNTS, TEST_COUNTS] if name == "mnist" else even)
    train, test = PIXELS[name][:2], PIXELS[name][2:]
    for part, (means, deviations) in ((data.train, train), (data.test, test)):
        digits = 6e-6 if len(means) == 1 else 6e-7
        pixels = part.x.reshape(-1, *data.pictures).transpose(0, 1)
        for channel, mean, deviation in zip(pixels, means, deviations, strict=True):
            found = torch.std_mean(channel.double(), correction=0)
            assert found == pytest.approx((deviation, mean), abs=digits)


@pytest.mark.parametrize("name", ["class_names.txt", "train-003.webp", "test-007.webp"])
def test_strips_of_cifar_that_are_damaged_or_missing(folder, monkeypatch, name):
    """A damaged one is refused; if one is missing, the archive is downloaded instead."""
    (folder / "cifar-10").mkdir()
    for path in (REAL / "cifar-10").iterdir():
        if path.name != name:
            (folder / "cifar-10" / path.name).symlink_to(path)
        elif not name.startswith("test"):
            (folder / "cifar-10" / name).write_bytes(path.read_bytes()[:-8])
    archive = pictures.CIFAR["cifar-10"].archive
    monkeypatch.setitem(FILES, archive, ("http://127.0.0.1:9/c.tar.gz", None))
    expected = r"http://127\.0\.0\.1:9/c\.tar\.gz" if name.startswith("test") else str(folder)
    with pytest.raises(DataError, match=expected):
        datasets.load("cifar-10")


@pytest.mark.parametrize("name", list(UCI))
def test_uci(real, name):
    n, d, splits, n_train, n_test, mean, std = UCI[name]
    x, y, trains, tests = tables.read_uci(name)
    assert x.shape == (n, d)
    assert (trains.shape, tests.shape) == ((splits, n_train), (splits, n_test))
    assert y.mean().item() == pytest.approx(mean, abs=6e-5)
    assert y.std(correction=0).item() == pytest.approx(std, abs=6e-5)
    joined = torch.cat([trains, tests], 1).sort(1)[0]
    assert torch.equal(joined, torch.arange(n).expand(splits, n)), "each split is a partition"
    split = splits - 1
    data = datasets.load(f"uci/{name}", split=split)
    parts = (data.train, data.valid, data.test)
    assert len(data.train) + len(data.valid) == n_train
    assert len(data.valid) == round(0.1 * n_train)
    raw = torch.cat([p.y for p in parts]).double() * data.target_scale + data.target_mean
    rows = torch.cat([trains[split], tests[split]])
    assert torch.allclose(raw[:, 0], y[rows], atol=1e-4 * std, rtol=1e-6)
    assert data.train.x.mean(0).abs().max() < 1e-5
    spread = data.train.x.std(0, correction=0)
    assert torch.allclose(spread[spread > 0.5], torch.ones(()), atol=1e-5)
    assert (spread < 1e-6).sum() == (2 if name == "naval" else 0), "constant columns stay harmless"


def test_imdb(real):
    data = datasets.load("imdb")
    assert [len(part) for part in (data.train, data.valid, data.test)] == [20_000, 5_000, 25_000]
    labels = torch.cat([data.train.y, data.valid.y])
    assert labels.bincount().tolist() == data.test.y.bincount().tolist() == [12_500, 12_500]
    assert data.train.x.dtype == data.train.y.dtype == torch.long
    assert data.train.x.max() < 20_000
    with np.load(REAL / "imdb" / "imdb.npz", allow_pickle=False) as file:
        tokens, offsets = file["train_tokens"], file["train_offsets"]
    for i in (0, 5, 19_999):
        review = tokens[offsets[i] : offsets[i + 1]].tolist()[-80:]
        assert data.train.x[i].tolist() == [0] * (80 - len(review)) + review

"""Splits, data sets, scaling by statistics of the training part, and data sets by name."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from experiments import data as datasets
from experiments.data import Dataset, Split, pictures
from experiments.data.pictures import picture_set
from experiments.data.tables import standardised
from tests.data.conftest import put


def split(n: int) -> Split:
    return Split(torch.arange(3.0 * n).view(n, 3), torch.arange(n))


def test_rows_pair_up():
    for x, y in [(torch.ones(3, 2), torch.ones(4)), (torch.tensor(1.0), torch.tensor(1.0))]:
        with pytest.raises(ValueError, match="rows"):
            Split(x, y)


def test_subsets_and_joined_parts():
    part = split(5)
    assert part.subset(2).y.tolist() == [0, 1]
    assert part.subset(torch.tensor([4, 1])).x[0].tolist() == [12, 13, 14]
    assert part.subset(part.y > 2).y.tolist() == [3, 4]
    data = Dataset("d", split(6), split(3), split(4), classes=("a", "b"))
    small = data.small(3)
    assert [len(p) for p in (small.train, small.valid, small.test)] == [3, 3, 3]
    assert torch.equal(small.train.x, data.train.x[:3])
    joined = data.everything()
    assert joined.train.y.tolist() == [*range(6), *range(3)]
    assert joined.valid.x.shape == (0, 3)


def test_constant_columns_are_only_centred():
    train = torch.full((49, 2), 0.998, dtype=torch.float64)
    train[0, 1] = 1.0
    _, scale, (a, b) = standardised(train, torch.full((1, 2), 1.998, dtype=torch.float64))
    assert scale[0] == 1
    assert a[:, 0].abs().max() < 1e-12
    assert b[0, 0] == pytest.approx(1)
    assert 0 < scale[1] < 1


def raw_pictures(*counts: int):
    return tuple(
        (torch.randint(256, (n, 3, 4, 5), dtype=torch.uint8), torch.arange(n) % 10) for n in counts
    )


@pytest.mark.parametrize("scale", ["signed", "unit", "standard"])
def test_pixel_scales_against_numpy(scale):
    raw = raw_pictures(2500, 7)
    data = picture_set("p", lambda _: (raw, ("a",), ""), scale=scale, valid=400, flat=False)
    train, test = raw[0][0], raw[1][0]
    fit = train[:2100].numpy() / 255
    mean, std = fit.mean((0, 2, 3), keepdims=True), fit.std((0, 2, 3), keepdims=True)
    expected = {
        "signed": lambda p: 2 * p - 1,
        "unit": lambda p: p,
        "standard": lambda p: (p - mean) / std,
    }[scale]
    parts = ((data.train, train[:2100]), (data.valid, train[2100:]), (data.test, test))
    for part, pixels in parts:
        assert part.x.dtype == torch.float32
        assert np.allclose(part.x.numpy(), expected(pixels.numpy() / 255), atol=2e-6)
    assert data.pictures == (3, 4, 5)


def test_picture_sets_flat_split_and_refusals():
    raw = raw_pictures(30, 7)
    data = picture_set("p", lambda _: (raw, ("a",), ""), scale="unit", valid=10, flat=True)
    assert data.train.x.shape == (20, 60)
    assert torch.equal(torch.cat([data.train.y, data.valid.y]), raw[0][1])
    for valid in (30, -1):
        with pytest.raises(ValueError, match=f"valid={valid}"):
            picture_set("p", lambda _: (raw, ("a",), ""), scale="unit", valid=valid, flat=True)
    with pytest.raises(ValueError, match="'tiny'"):
        picture_set("p", lambda _: (raw, ("a",), ""), scale="tiny", valid=0, flat=True)
    grey = ((torch.full((10, 2, 3, 3), 17, dtype=torch.uint8), torch.zeros(10)),) * 2
    data = picture_set("p", lambda _: (grey, ("a",), ""), scale="standard", valid=0, flat=False)
    assert data.train.x.abs().max() < 1e-6, "a channel of one colour is only centred"


def test_digits_are_in_a_fixed_shuffle():
    data, table = datasets.load("digits"), load_digits()
    shuffle = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(table.data, dtype=torch.float32) / 8 - 1)[shuffle]
    parts = (data.train, data.valid, data.test)
    assert [len(part) for part in parts] == [1000, 297, 500]
    assert torch.equal(torch.cat([part.x for part in parts]), x)
    assert torch.equal(torch.cat([part.y for part in parts]), torch.tensor(table.target)[shuffle])
    assert data.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("name", "table", "sizes"),
    [
        ("diabetes", load_diabetes, (265, 88, 89)),
        ("breast-cancer", load_breast_cancer, (341, 113, 115)),
        ("wine", load_wine, (106, 35, 37)),
    ],
)
def test_tables_of_scikit_learn(name, table, sizes):
    data, raw = datasets.load(name), table()
    parts = (data.train, data.valid, data.test)
    assert tuple(map(len, parts)) == sizes
    assert data.train.x.mean(0).abs().max() < 1e-5
    assert torch.allclose(data.train.x.std(0, correction=0), torch.ones(raw.data.shape[1]))
    assert data.test.x.mean(0).abs().max() > 1e-3, "statistics of train, not of all"
    y = torch.cat([part.y for part in parts])
    if data.classes is None:
        y = y[:, 0] * data.target_scale + data.target_mean
        assert torch.allclose(y.sort()[0].double(), torch.tensor(raw.target).sort()[0], atol=1e-3)
    else:
        assert torch.equal(y.bincount(), torch.tensor(raw.target).bincount()), "rows partitioned"
        assert len(data.classes) == len(raw.target_names)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("minst", "mnist"), ("uci/yach", "uci/yacht"), ("breast_cancer", "breast-cancer")],
)
def test_unknown_names(asked, nearest):
    assert len(datasets.status()) == 19
    with pytest.raises(ValueError, match=f"'{nearest}'"):
        datasets.load(asked)


def test_options_are_those_of_the_set():
    with pytest.raises(TypeError, match="colour"):
        datasets.load("mnist", colour=True)
    for valid in (1.0, -0.1):
        with pytest.raises(ValueError, match=str(valid)):
            datasets.load("uci/yacht", valid=valid)
    for options in ({"vocabulary": 3}, {"vocabulary": 20_001}, {"length": 0}):
        with pytest.raises(ValueError, match="from 4 to 20000"):
            datasets.load("imdb", **options)


def test_status_sees_complete_sets_only(folder, cache):
    def present():
        places = datasets.status().items()
        return {name: place for name, place in places if place not in ("", "scikit-learn")}

    assert not present()
    for name in pictures.IDX_FILES:
        assert "mnist" not in present()
        put(folder, f"mnist/{name}", b"12345")
    put(cache, "imdb/imdb.npz", b"1")
    assert present().keys() == {"mnist", "static-mnist", "imdb"}
    assert present()["mnist"] == str(folder / "mnist")

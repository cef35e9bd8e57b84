"""Splits, data sets, and scaling by statistics of the training part."""

import dataclasses

import numpy as np
import pytest
import torch

from experiments.data import Dataset, Split
from experiments.data.scaling import picture_set, regression, standardise


def split(n: int) -> Split:
    return Split(torch.arange(3.0 * n).view(n, 3), torch.arange(n))


def test_split_refuses_rows_that_do_not_pair():
    for x, y in [(torch.ones(3, 2), torch.ones(4)), (torch.tensor(1.0), torch.tensor(1.0))]:
        with pytest.raises(ValueError, match="same number of rows"):
            Split(x, y)


def test_subset():
    part = split(5)
    assert len(part) == 5
    assert part.subset(2).y.tolist() == [0, 1]
    assert len(part.subset(0)) == 0
    assert part.subset(torch.tensor([4, 1])).x[0].tolist() == [12, 13, 14]
    assert part.subset(part.y > 2).y.tolist() == [3, 4]
    for n in (6, -1):
        with pytest.raises(ValueError, match="5 rows"):
            part.subset(n)


def test_dataset_small_and_everything():
    data = Dataset("d", split(6), split(3), split(4), classes=("a", "b"))
    small = data.small(3)
    assert [len(p) for p in (small.train, small.valid, small.test)] == [3, 3, 3]
    assert small.classes == data.classes
    assert torch.equal(small.train.x, data.train.x[:3])
    assert len(data.small(100).train) == 6
    joined = data.everything()
    assert joined.train.y.tolist() == [*range(6), *range(3)]
    assert len(joined.valid) == 0
    assert joined.valid.x.shape[1:] == data.valid.x.shape[1:]
    assert joined.test is data.test
    assert len(joined.everything().train) == 9
    with pytest.raises(ValueError, match="at least one"):
        data.small(0)


def test_dataset_is_frozen_and_of_one_shape():
    data = Dataset("d", split(6), split(3), split(4), classes=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "e"
    with pytest.raises(ValueError, match="different shape"):
        Dataset("d", split(6), split(3), Split(torch.ones(2, 4), torch.ones(2)), classes=None)
    assert len(repr(data)) < 400, "tensors are not printed"


def test_standardise_against_numpy():
    rng = np.random.default_rng(0)
    train, test = (rng.normal(1e4, 0.1, (n, 3)) for n in (50, 7))
    mean, scale, (a, b) = standardise(torch.tensor(train), torch.tensor(test))
    expected = (test - train.mean(0)) / train.std(0)
    assert np.allclose(b.numpy(), expected, atol=1e-6)  # float32 statistics would be off by 1e-2
    assert a.dtype == b.dtype == torch.float32
    assert mean.dtype == scale.dtype == torch.float64
    assert a.mean(0).abs().max() < 1e-6
    assert torch.allclose(a.std(0, correction=0), torch.ones(3))


def test_constant_columns_are_only_centred():
    train = torch.full((49, 2), 0.998, dtype=torch.float64)
    train[0, 1] = 1.0
    _, scale, (a, b) = standardise(train, torch.full((1, 2), 1.998, dtype=torch.float64))
    assert scale[0] == 1
    assert a[:, 0].abs().max() < 1e-12
    assert b[0, 0] == pytest.approx(1)
    assert 0 < scale[1] < 1


def test_statistics_of_regression_come_from_train_alone():
    parts = [(torch.randn(n, 2), torch.randn(n)) for n in (20, 5, 6)]
    other = [parts[0], *((x + 100, y - 100) for x, y in parts[1:])]
    one, two = regression("r", parts), regression("r", other)
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.train.y, two.train.y)
    assert (one.target_mean, one.target_scale) == (two.target_mean, two.target_scale)
    assert one.test.y.shape == (6, 1)
    back = one.test.y[:, 0] * one.target_scale + one.target_mean
    assert torch.allclose(back, parts[2][1], atol=1e-6)


def test_regression_with_an_empty_validation_part():
    data = regression("r", [(torch.randn(n, 2), torch.randn(n)) for n in (20, 0, 6)])
    assert data.valid.x.shape == (0, 2)
    assert data.valid.y.shape == (0, 1)


def pictures(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(256, (n, 3, 4, 5), dtype=torch.uint8), torch.arange(n) % 10


@pytest.mark.parametrize("scale", ["signed", "unit", "standard", "centred"])
def test_pixel_scales_against_numpy(scale):
    train, test = pictures(2500), pictures(7)
    data = picture_set("p", train, test, classes=("a",), scale=scale, valid=400, flat=False)
    fit = train[0][:2100].numpy() / 255
    mean, std = fit.mean((0, 2, 3), keepdims=True), fit.std((0, 2, 3), keepdims=True)
    expected = {
        "signed": lambda p: 2 * p - 1,
        "unit": lambda p: p,
        "standard": lambda p: (p - mean) / std,
        "centred": lambda p: p - fit.mean(0),
    }[scale]
    for part, raw in (
        (data.train, train[0][:2100]),
        (data.valid, train[0][2100:]),
        (data.test, test[0]),
    ):
        assert part.x.dtype == torch.float32
        assert np.allclose(part.x.numpy(), expected(raw.numpy() / 255), atol=2e-6)
    low, high = data.pixel_range
    assert low - 1e-6 <= data.train.x.min() <= data.train.x.max() <= high + 1e-6
    ends = expected(np.zeros((1, 3, 4, 5))).min(), expected(np.ones((1, 3, 4, 5))).max()
    assert (low, high) == pytest.approx(ends)
    assert data.pictures == (3, 4, 5)


def test_picture_sets_flat_split_and_refusals():
    train, test = pictures(30), pictures(7)
    options = {"classes": ("a",), "scale": "unit"}
    data = picture_set("p", train, test, valid=10, flat=True, **options)
    assert data.train.x.shape == (20, 60)
    assert torch.equal(torch.cat([data.train.y, data.valid.y]), train[1])
    assert len(picture_set("p", train, test, valid=0, flat=True, **options).valid) == 0
    for valid in (30, -1):
        with pytest.raises(ValueError, match="30 training pictures"):
            picture_set("p", train, test, valid=valid, flat=True, **options)
    with pytest.raises(ValueError, match=r"scale='tiny'.*'standard'"):
        picture_set("p", train, test, valid=0, flat=True, classes=("a",), scale="tiny")


def test_a_channel_of_one_colour_is_only_centred():
    x = torch.full((10, 2, 3, 3), 17, dtype=torch.uint8)
    data = picture_set(
        "p",
        (x, torch.zeros(10)),
        (x, torch.zeros(10)),
        classes=("a",),
        scale="standard",
        valid=0,
        flat=False,
    )
    assert data.train.x.abs().max() < 1e-6

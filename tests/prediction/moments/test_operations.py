"""Pooling of independent normal numbers in one and two dimensions, against draws."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kasuri
from kasuri.prediction.moments.operations import Gauss, apply

aten = torch.ops.aten
SHAPES = {1: (2, 3, 7), 2: (2, 3, 5, 6)}
AVERAGES = {1: aten.avg_pool1d, 2: aten.avg_pool2d}
ADAPTIVE = {1: aten.adaptive_avg_pool1d, 2: aten.adaptive_avg_pool2d}
MAXIMA = {1: aten.max_pool1d, 2: aten.max_pool2d}


def moments(shape, draws=20_000):
    torch.manual_seed(0)
    x = Gauss(torch.randn(shape).double(), torch.rand(shape).double() + 0.1)
    noise = torch.randn(draws, *shape, dtype=torch.float64)
    return x, (x.mean + x.variance.sqrt() * noise)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("options", [(2,), (2, 1), (3, 2, 1)])
def test_averages(dims, options):
    x, draws = moments(SHAPES[dims])
    op = AVERAGES[dims].default
    given = [[one] * dims for one in options]
    found = apply(op, (x, *given), {}).variance
    true = op(draws.flatten(0, 1), *given).unflatten(0, draws.shape[:2]).var(0)
    assert (found / true - 1).abs().max() < 0.06  # standard error 0.01


@pytest.mark.parametrize("dims", [1, 2])
def test_adaptive_averages(dims):
    x, draws = moments(SHAPES[dims])
    op = ADAPTIVE[dims].default
    found = apply(op, (x, [1] * dims), {}).variance
    true = draws.flatten(3).mean(-1).var(0).reshape(found.shape)
    assert (found / true - 1).abs().max() < 0.06


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_maxima_of_two_are_exact(dims, padding):
    """A window of two along the first dimension, padded there, with every second place left out."""
    x, draws = moments(SHAPES[dims])
    op = MAXIMA[dims].default
    rest = [1] * (dims - 1)
    given = ([2, *rest], [2, *rest], [padding, *[0] * (dims - 1)], [2, *rest])
    found = apply(op, (x, *given), {})
    pool = {1: F.max_pool1d, 2: F.max_pool2d}[dims]
    true = pool(draws.flatten(0, 1), *given).unflatten(0, draws.shape[:2])
    assert found.mean.shape == true.shape[1:]
    assert ((found.mean - true.mean(0)) / true.std(0)).abs().max() < 0.04  # standard error 0.007
    assert (found.variance / true.var(0) - 1).abs().max() < 0.06
    certain = apply(op, (x.mean, *given), {})
    torch.testing.assert_close(certain, pool(x.mean, *given))


def test_a_network_of_sequences():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(2, 6, 3),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05))
    x = torch.randn(8, 2, 10)
    drawn = kasuri.predict(bnn, x, 1000, seed=0)
    found = kasuri.predict_moments(bnn, x)
    assert (found.mean - drawn.mean).abs().max() < 0.1 * drawn.std.mean()
    assert 0.9 < (found.std / drawn.std).mean() < 1.1

"""Predictions without draws: layers with a rule but no linearisation, and what is refused in which words."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri
from kasuri.prediction.moments.moment_network import MomentNetwork


def moments(bnn: nn.Module, x: Tensor, draws: int = 1_500) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the outputs by drawing."""
    prediction = kasuri.predict(bnn, x, samples=draws, seed=0)
    return prediction.mean, prediction.std


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 2, 5), marks=pytest.mark.thorough),
        (nn.ConvTranspose2d(2, 4, 3, groups=2, padding=1), (2, 2, 4, 4)),
        (nn.ConvTranspose3d(2, 2, 2), (2, 2, 3, 3, 3)),
    ],
)
def test_transposed_convolutions(layer, shape):
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(layer.double(), kasuri.MeanField(scale=0.3))
    x = torch.randn(shape).double()
    found = kasuri.predict_moments(bnn, x, covariance="diagonal")
    mean, std = moments(bnn, x)
    assert (found.mean - mean).abs().max() < 0.08  # five standard errors of the draws
    torch.testing.assert_close(found.std, std, rtol=0.08, atol=0)


@pytest.mark.parametrize("slopes", [1, 4])
def test_slopes_that_are_random(slopes):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.PReLU(slopes, init=0.3))
    bnn = kasuri.bayesianize(net.double(), kasuri.MeanField(scale=0.4))
    x = torch.randn(6, 3).double()
    network = MomentNetwork(bnn, (x,), "diagonal")
    mean, variance = network(x)
    drawn, std = moments(bnn, x)
    assert (mean - drawn).abs().max() < 0.08
    torch.testing.assert_close(variance.sqrt(), std, rtol=0.08, atol=0)


def test_advice_is_what_works():
    transposed = kasuri.bayesianize(nn.ConvTranspose1d(2, 3, 3), kasuri.MeanField())
    with pytest.raises(ValueError, match='linearised; use covariance="diagonal"'):
        kasuri.predict_moments(transposed, torch.randn(2, 2, 5))

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.linalg.matrix_exp(self.weight)

    odd = kasuri.bayesianize(Odd(), kasuri.MeanField())
    for covariance in ("full", "diagonal"):
        with pytest.raises(ValueError, match=r"; use kasuri\.predict with draws"):
            kasuri.predict_moments(odd, torch.randn(2, 3), covariance=covariance)
    sorting = kasuri.bayesianize(nn.Sequential(nn.Linear(3, 3), Sorted()), kasuri.MeanField())
    with pytest.raises(ValueError, match='; use covariance="full"'):
        kasuri.predict_moments(sorting, torch.randn(2, 3), covariance="diagonal")


class Sorted(nn.Module):
    """A layer without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


class Choosing(nn.Linear):
    """A network with an `if` on values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


def test_inputs_and_options_are_refused_in_words():
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    with pytest.raises(ValueError, match="float32"):
        kasuri.predict_moments(bnn, torch.randn(4, 5))
    with pytest.raises(ValueError, match="empty"):
        kasuri.predict_moments(bnn, torch.randn(0, 3))
    for chunk in ("a", 1.5, 0):
        with pytest.raises(ValueError, match="chunk"):
            kasuri.predict_moments(bnn, torch.randn(4, 3), chunk=chunk)


def test_what_cannot_be_traced_is_said():
    bnn = kasuri.bayesianize(Choosing(3, 2), kasuri.MeanField())
    with pytest.raises(RuntimeError, match=r"torch\.export cannot make a graph"):
        kasuri.predict_moments(bnn, torch.randn(4, 3))
    with pytest.raises(kasuri.exporting.ExportError, match=r"torch\.export cannot make a graph"):
        kasuri.export(bnn, torch.randn(4, 3), kind="variance")


class Tied(nn.Module):
    """Words in, words out, by the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.words(ids).mean(1)), self.words.weight)


@pytest.mark.parametrize("family", [kasuri.MeanField(scale=0.02), kasuri.MatrixNormal(scale=0.02)])
def test_an_embedding_that_makes_outputs_as_well(family):
    """Small noise, where the linearisation is exact to first order."""
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(Tied().double(), family)
    ids = torch.randint(9, (4, 5))
    mean, std = moments(bnn, ids, draws=2_500)
    found = kasuri.predict_moments(bnn, ids)
    torch.testing.assert_close(found.mean, mean, rtol=0, atol=0.003)
    torch.testing.assert_close(found.std, std, rtol=0.08, atol=1e-6)

"""Predictions without draws: what is refused in which words, and a matrix that is used twice."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri


def moments(bnn: nn.Module, x: Tensor, draws: int = 1_500) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the outputs by drawing."""
    prediction = kasuri.predict(bnn, x, samples=draws, seed=0)
    return prediction.mean, prediction.std


class Choosing(nn.Linear):
    """A network with an `if` on values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


def test_inputs_are_refused_in_words():
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    with pytest.raises(ValueError, match="float32"):
        kasuri.predict_moments(bnn, torch.randn(4, 5))
    with pytest.raises(ValueError, match="empty"):
        kasuri.predict_moments(bnn, torch.randn(0, 3))


def test_what_cannot_be_traced_is_said():
    bnn = kasuri.bayesianize(Choosing(3, 2), kasuri.MeanField())
    with pytest.raises(RuntimeError, match=r"torch\.export .* graph"):
        kasuri.predict_moments(bnn, torch.randn(4, 3))
    with pytest.raises(kasuri.exporting.ExportError, match=r"torch\.export .* graph"):
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

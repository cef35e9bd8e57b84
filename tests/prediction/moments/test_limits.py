"""Predictions without draws: what is refused in which words, and a matrix that is used twice."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri


class Choosing(nn.Linear):
    """A network with an `if` on values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


def test_what_cannot_be_traced_is_said():
    bnn = kasuri.bayesianize(Choosing(3, 2), kasuri.MeanField())
    with pytest.raises(RuntimeError, match=r"torch\.export .* graph"):
        kasuri.predict_moments(bnn, torch.randn(4, 3))


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
    drawn = kasuri.predict(bnn, ids, 2_500, seed=0)
    found = kasuri.predict_moments(bnn, ids)
    torch.testing.assert_close(found.mean, drawn.mean, rtol=0, atol=0.003)
    torch.testing.assert_close(found.std, drawn.std, rtol=0.08, atol=1e-6)

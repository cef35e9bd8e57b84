"""The estimator that chooses between drawing outputs and drawing weights."""

import pytest
import torch
from torch import nn

import kasuri
from kasuri.network.estimators import auto, local, preferred, shared
from kasuri.network.random import named_layers
from kasuri.network.views import op_of, view_of


def choice(family, layer, x):
    bnn = kasuri.bayesianize(layer, family)
    op = op_of(bnn, view_of(layer, layer.weight, False), None, bnn)
    return preferred(bnn.posteriors.weight, op, x)


@pytest.mark.parametrize(
    "family", [kasuri.MeanField(), kasuri.KTied(rank=2), kasuri.Point()], ids=type
)
def test_independent_weights_take_local_where_that_is_exact(family):
    assert choice(family, nn.Linear(6, 5), torch.zeros(1000, 6)) is local
    assert choice(family, nn.Linear(6, 5), torch.zeros(6)) is local
    assert choice(family, nn.Linear(6, 5), torch.zeros(7, 9, 6)) is shared, "a sequence"
    assert choice(family, nn.Conv1d(6, 5, 2), torch.zeros(7, 6, 9)) is shared


def test_for_a_matrix_normal_the_batch_decides():
    """B (in² + out²) against in · out (in + out): 361 for a layer 300 x 784, 300 for 300 x 300."""
    for ins, outs, limit in ((784, 300, 361), (300, 300, 300)):
        few, many = torch.zeros(limit - 1, ins), torch.zeros(limit + 1, ins)
        assert choice(kasuri.MatrixNormal(), nn.Linear(ins, outs), few) is local
        assert choice(kasuri.MatrixNormal(), nn.Linear(ins, outs), many) is shared
    diagonal = kasuri.MatrixNormal(rows="diagonal", columns="diagonal")
    assert choice(diagonal, nn.Linear(30, 30), torch.zeros(29, 30)) is local


@pytest.mark.parametrize("family", [kasuri.FullNormal(), kasuri.ScaledMatrixNormal()], ids=type)
def test_families_that_must_draw_weights_do(family):
    assert choice(family, nn.Linear(4, 3), torch.zeros(1, 4)) is shared


def test_it_runs_on_everything_and_is_saved(tmp_path):
    net = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)
    )
    bnn = kasuri.bayesianize(net, kasuri.MatrixNormal(), estimator="auto")
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=10)
    elbo(torch.randn(4, 2, 5), torch.randint(2, (4,))).loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in bnn.parameters())
    kasuri.save(bnn, tmp_path / "a.safetensors")
    again = kasuri.load(tmp_path / "a.safetensors", net)
    assert {conversion.estimator for _, _, conversion in named_layers(again)} == {auto}
    lstm = kasuri.bayesianize(nn.LSTM(3, 4), kasuri.MatrixNormal(), estimator="auto")
    lstm(torch.randn(5, 2, 3))


def test_where_it_draws_weights_they_are_those_of_the_call():
    """A layer called twice in one forward pass has one weight."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 2, 1, bias=False)

        def forward(self, x):
            return self.conv(x), self.conv(x)

    bnn = kasuri.bayesianize(Twice(), kasuri.MeanField(scale=1.0), estimator="auto")
    first, second = bnn(torch.randn(3, 2, 4))
    assert torch.equal(first, second)
    with kasuri.using(bnn, "auto"):
        assert not torch.equal(bnn(torch.ones(3, 2, 4))[0], bnn(torch.ones(3, 2, 4))[0])

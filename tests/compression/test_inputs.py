"""Columns go without anybody's consent only where a layer reads the inputs of the network itself."""

import pytest
import torch
from torch import nn

import kasuri
from kasuri.compression.coupling import inputs_of
from kasuri.compression.units import masked_net
from tests.compression.networks import Attending

DEAD = [0, 1, 2]


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.LSTMCell(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.last(state[0])


def posterior(net, dead):
    """Every weight is sure, but for some columns of one layer, which nobody needs."""
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.01, noise=0.0), bias=False)
    for name, q in kasuri.named_posteriors(bnn):
        q.loc.data.uniform_(0.8, 1.2)
        if name == dead:
            q.loc.data[:, DEAD] = 1e-6
    return bnn


@pytest.mark.parametrize(
    ("net", "dead", "shape"),
    [
        (Attending(), "layer.self_attn.out_proj.weight", (3, 5, 4)),
        (Cell(), "last.weight", (3, 5, 4)),
    ],
    ids=["attention", "cell"],
)
def test_hidden_columns_stay_while_their_makers_disagree(net, dead, shape):
    bnn = posterior(net, dead)
    small, report = kasuri.compress(bnn, torch.randn(shape), structure="both", threshold=0.05)
    assert report.masks == {}
    kept = dict(small.named_parameters())[dead]
    assert torch.equal(kept, dict(kasuri.collapse(bnn).named_parameters())[dead])


def test_columns_of_inputs_go():
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    _, report = kasuri.compress(posterior(net, "1.weight"), torch.randn(3, 2, 3), threshold=0.05)
    unread = ~report.masks["1.weight"].any(0)
    assert unread.nonzero().flatten().tolist() == DEAD


def test_columns_of_inputs_are_found_whatever_is_done_to_the_inputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(5, 3)

        def forward(self, x):
            h = self.one(x.square() + 1)
            with torch.no_grad():  # no gradient tells that this is no input
                hidden = self.two(h)
            return self.three(torch.cat([x[:, :2], hidden], 1))

    groups = inputs_of(Twice(), torch.randn(2, 3))
    columns = {group.name: group.readers[0].units.tolist() for group in groups}
    assert columns == {"one": [0, 1, 2], "three": [0, 1, 2, 2, 2]}, "2 is none of the inputs"


def test_columns_of_inputs_beside_hidden_units_go():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(7, 2)

        def forward(self, x):
            return self.last(torch.cat([self.first(x), x], 1))

    bnn = posterior(Beside(), "")
    bnn.last.posteriors.weight.loc.data[:, 2:5] = 1e-6
    x = torch.randn(5, 4)
    for structure in ("both", "either"):
        small, report = kasuri.compress(bnn, x, structure=structure, threshold=0.05)
        unread = (~report.masks["last.weight"].any(0)).nonzero().flatten().tolist()
        assert [column for column in unread if column > 2] == [3, 4]
        assert small.first.out_features == (3 if structure == "both" else 2)
        masked = masked_net(kasuri.collapse(bnn), report.masks)
        torch.testing.assert_close(small(x), masked(x))

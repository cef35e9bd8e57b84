"""The example that a user gives: inputs that vary too little, and what cannot be one."""

import pytest
import torch
from torch import nn

import kasuri
from kasuri.compression.probes import probes
from kasuri.compression.units import masked_net


class Gated(nn.Module):
    """Hidden units times a mask: a unit that reads nothing is constant only while the mask is."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, mask):
        return self.last(torch.relu(self.first(x)) * mask.unsqueeze(-1).to(x.dtype)).sum(1)


class Lengths(Gated):
    """A mask from lengths, which must be positive."""

    def forward(self, x, lengths):
        if not bool((lengths > 0).all()):
            raise ValueError("empty sequences")
        return super().forward(x, torch.arange(x.shape[1]) < lengths[:, None])


class Chosen(Gated):
    """A number that may be 3 only."""

    def forward(self, x, number):
        if not bool((number == 3).all()):
            raise IndexError("no such thing")
        return super().forward(x, torch.ones(x.shape[:2]))


def half_dead(net):
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(net.double(), kasuri.MeanField(scale=0.01))
    bnn.first.posteriors.weight.loc.data[4:] = 0
    bnn.first.posteriors.bias.loc.data.fill_(1.0)
    return bnn


def compressed(bnn, *example):
    return kasuri.compress(bnn, example, structure="rows", threshold=1e-6)


def difference(bnn, small, report, *inputs):
    masked = masked_net(kasuri.collapse(bnn).eval(), report.masks)
    return (small(*inputs) - masked(*inputs)).abs().max().item()


X = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float64])
def test_a_mask_of_ones_does_not_make_units_constant(kind):
    bnn = half_dead(Gated())
    small, report = compressed(bnn, X, torch.ones(5, 6, dtype=kind))
    mask = (torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) < 0.5).to(kind)
    assert difference(bnn, small, report, X, mask) < 1e-10
    assert report.notes != ()  # why the dead ones stay
    assert small.first.out_features == 8


def test_lengths_vary_as_far_as_the_network_allows():
    bnn = half_dead(Lengths())
    small, report = compressed(bnn, X, torch.full((5,), 6))
    assert difference(bnn, small, report, X, torch.tensor([1, 6, 3, 2, 5])) < 1e-10


def test_what_cannot_vary_is_told():
    bnn = half_dead(Chosen())
    small, report = compressed(bnn, X, torch.full((5,), 3))
    assert small.first.out_features == 4
    assert any("tensor 2" in note and "varies" in note for note in report.notes)


def test_indices_stay_those_of_the_example():
    net = nn.Embedding(10, 2)
    ids = torch.tensor([[7, 9, 9]])
    for one in probes(net, ids):
        assert set(one.flatten().tolist()) == {7, 9}


def network():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return kasuri.bayesianize(net, kasuri.MeanField())


@pytest.mark.parametrize(
    ("example", "error", "says"),
    [
        (torch.randn(3, 4).double(), ValueError, r"float64 \(3, 4\)"),
        (torch.randn(3, 5), ValueError, "does not run"),
        (torch.randn(3, 4).numpy(), TypeError, "no tensor"),
        (torch.randn(0, 4), ValueError, "empty"),
        (torch.randn(4), ValueError, "unsqueeze"),
    ],
)
def test_what_is_no_example_is_refused(example, error, says):
    with pytest.raises(error, match=says):
        kasuri.compress(network(), example, threshold=0.1)


def test_one_picture_is_no_batch():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 2))
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    with pytest.raises(ValueError, match="Conv2d reads shape"):
        kasuri.compress(bnn, torch.randn(1, 6, 6), threshold=0.1)


def test_nothing_random_is_used():
    bnn = network()
    before = torch.get_rng_state()
    kasuri.collapse(bnn)
    kasuri.compress(bnn, torch.randn(3, 4, generator=torch.Generator()), threshold=0.1)
    assert torch.equal(before, torch.get_rng_state())


def test_what_was_not_trained_is_not_trained():
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), kasuri.KTied(rank=1, scale=0.5)
    )
    bnn[0].requires_grad_(False)
    bnn[2].posteriors.weight.loc.requires_grad_(False)
    small, _ = kasuri.compress(bnn, torch.randn(3, 4), threshold=0.7, keep_posterior=True)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in bnn.parameters())
    assert not any(p.requires_grad for p in small[0].parameters())
    flags = {name: p.requires_grad for name, p in small[2].named_parameters()}
    assert [name for name, trained in flags.items() if not trained] == [
        name for name in flags if name.endswith("weight.loc") or name.endswith("weight.base.loc")
    ]
    plain = kasuri.collapse(bnn)
    assert not plain[0].weight.requires_grad
    assert plain[2].weight.requires_grad

"""Networks that torch.compile wraps: what is inside is taken apart, or the error says what to give."""

import pytest
import torch
from torch import nn

import kasuri


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2)).eval()


def test_a_compiled_network_is_compressed_like_the_one_inside():
    bnn = kasuri.bayesianize(plain(), kasuri.MeanField())
    x = torch.randn(8, 4)
    small, report = kasuri.compress(bnn, x, threshold=0.5, calls=0)
    again, told = kasuri.compress(torch.compile(bnn, backend="eager"), x, threshold=0.5, calls=0)
    assert type(again) is nn.Sequential
    assert told.after.parameters == report.after.parameters
    assert torch.equal(again(x), small(x))


def test_an_objective_with_a_compiled_network_is_refused():
    bnn = torch.compile(kasuri.bayesianize(plain(), kasuri.MeanField()), backend="eager")
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(), kasuri.Normal(), num_data=10)
    with pytest.raises(ValueError, match="give the objective the network itself"):
        kasuri.compress(elbo, torch.randn(8, 4))

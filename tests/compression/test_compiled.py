"""Networks that torch.compile wraps are compressed like those inside."""

import pytest
import torch
from torch import nn

import kasuri


@pytest.mark.parametrize("in_objective", [False, True])
def test_a_compiled_network_is_compressed_like_the_one_inside(in_objective):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2)).eval()
    bnn, x = kasuri.bayesianize(net, kasuri.MeanField()), torch.randn(8, 4)
    results = []
    for model in (bnn, torch.compile(bnn, backend="eager")):
        if in_objective:
            model = kasuri.ELBO(model, kasuri.Gaussian(), kasuri.GroupARD(sweeps=1), num_data=10)
        results.append(kasuri.compress(model, x, criterion="group_ard", threshold=0.5))
    (small, report), (again, other) = results
    assert type(again) is nn.Sequential
    assert other.masks.keys() == report.masks.keys()
    assert torch.equal(again(x), small(x))

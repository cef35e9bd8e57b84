"""Networks in channels-last layout can be exported like any other."""

import pytest
import torch
from torch import nn

import weft


@pytest.mark.parametrize("form", ["onnx", "torch"])
@pytest.mark.parametrize("kind", ["mean", "draw", "ensemble", "variance"])
def test_channels_last(kind: str, form: str) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    net = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    bnn = weft.bayesianize(net, weft.MeanField())
    found = weft.export(
        bnn,
        torch.randn(4, 3, 8, 8),
        kind=kind,
        format=form,
        members=3,
        likelihood=weft.Categorical(),
    )
    assert found.error < 1e-5

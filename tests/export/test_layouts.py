"""Networks in channels-last layout can be exported like any other."""

import io

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import kasuri
from kasuri.export.programs import _computed_beforehand


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *((kind, form) for kind in ("mean", "draw", "ensemble") for form in ("onnx", "torch")),
        ("variance", "torch"),
        pytest.param("variance", "onnx", marks=pytest.mark.thorough),
    ],
)
def test_channels_last(kind: str, form: str) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    net = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    found = kasuri.export(
        bnn,
        torch.randn(4, 3, 8, 8),
        kind=kind,
        format=form,
        members=3,
        likelihood=kasuri.Categorical(),
    )
    assert found.error < 1e-5


def test_what_changes_is_not_computed_beforehand() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(self.weight)
            total.add_(x.sum(0))
            other = self.weight.clone()
            early = x * other
            other.mul_(2)
            seen = self.weight * 2
            seen.view(3, 1).add_(x.sum())
            return x * total + early + other + seen + (self.weight * 3).exp()

    x = torch.ones(2, 3)
    made = make_fx(net := Changing())(x)
    _computed_beforehand(made)
    made.recompile()
    for _ in range(2):
        assert torch.equal(made(x), net(x))
    assert any(name.startswith("_known") for name, _ in made.named_buffers())


def test_files_do_not_hold_weights_twice() -> None:
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1))
    held = sum(one.numel() for one in net.parameters())
    made = kasuri.export(bnn, torch.randn(2, 64), kind="variance", format="torch")
    program = torch.export.load(io.BytesIO(made.data))
    stored = sum(one.numel() for one in (*program.constants.values(), *program.state_dict.values()))
    assert stored < 2.2 * held  # means and standard deviations

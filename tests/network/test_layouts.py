"""Kernels in channels-last layout: kept by draws, means, files and smaller networks."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import kasuri
from kasuri.network.random import conversion_of

ESTIMATORS = {  # those that each family has for convolutions
    kasuri.MeanField(): ("shared", "local", "flipout", "auto"),
    kasuri.KTied(rank=2): ("shared", "local", "flipout", "auto"),
    kasuri.MatrixNormal(): ("shared", "local", "auto"),
    kasuri.MatrixNormalDiagonal(): ("shared", "local", "auto"),
    kasuri.ScaledMatrixNormal(): ("shared", "auto"),
    kasuri.Radial(): ("shared", "auto"),
}


def flat(channels: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 6, 3),
        nn.Conv2d(6, 4, 1),
    )


def last(net: nn.Sequential) -> nn.Sequential:
    return net.to(memory_format=torch.channels_last)


def is_last(y: Tensor) -> bool:
    return y.stride(1) == 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("family", "estimator"),
    [(family, one) for family, estimators in ESTIMATORS.items() for one in estimators],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_answers_are_in_the_layout_of_the_kernels(
    family: kasuri.Family, estimator: str, channels: int
) -> None:
    x = torch.randn(2, channels, 12, 12)
    usual = kasuri.bayesianize(flat(channels), family, estimator=estimator)
    laid_out = kasuri.bayesianize(last(flat(channels)), family, estimator=estimator)
    assert not is_last(usual[:3](x))
    assert is_last(laid_out[:3](x))
    with kasuri.frozen(usual, seed=0), kasuri.frozen(laid_out, seed=0):
        torch.testing.assert_close(laid_out(x), usual(x))


def test_a_kernel_of_one_position_has_no_layout() -> None:
    bnn = kasuri.bayesianize(last(flat()), kasuri.MeanField())
    assert [
        conversion_of(layer).views["weight"].channels_last for layer in (bnn[0], bnn[3], bnn[4])
    ] == [
        True,
        True,
        False,
    ]


def test_collapsed_networks_keep_the_layout() -> None:
    bnn = kasuri.bayesianize(last(flat()), kasuri.KTied(rank=1))
    assert is_last(kasuri.collapse(bnn)[0].weight)


def test_vmap_does_without_layouts() -> None:
    bnn = kasuri.bayesianize(last(flat()), kasuri.KTied(rank=1)).eval()
    x = torch.randn(2, 3, 12, 12)
    state = {name: torch.stack([value, value]) for name, value in bnn.state_dict().items()}
    both = torch.func.vmap(lambda one: functional_call(bnn, one, (x,)))(state)
    torch.testing.assert_close(both[1], bnn(x))


@pytest.mark.parametrize("keep_posterior", [False, True])
def test_smaller_networks_keep_the_layout(keep_posterior: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 25, 3)
    )
    bnn = kasuri.bayesianize(last(net), kasuri.MeanField())
    with torch.no_grad():
        bnn[0].posteriors.weight.mean[:3] *= 1e-6
        bnn[0].posteriors.bias.mean.zero_()
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.GroupARD(), num_data=100)
    x = torch.randn(4, 3, 12, 12)
    small, report = kasuri.compress(
        elbo, x, criterion="snr", threshold=1e-3, keep_posterior=keep_posterior
    )
    assert {one.layer: one.after for one in report.units}["0"] == 5
    assert is_last(small[:3](x))

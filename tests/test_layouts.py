"""Kernels in channels-last layout: kept by draws, means, files and smaller networks."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import weft

FAMILIES = {
    "mean-field": weft.MeanField(),
    "k-tied": weft.KTied(rank=2),
    "matrix normal": weft.MatrixNormal(),
    "radial": weft.Radial(),
}


def flat(channels: int = 3, ties: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, groups=ties),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 6, 3),
        nn.Conv2d(6, 4, 1),
    )


def last(net: nn.Sequential) -> nn.Sequential:
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def is_last(y: Tensor) -> bool:
    return y.stride(1) == 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout", "auto"])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_in_the_layout_of_the_kernels(
    family: str, estimator: str, channels: int
) -> None:
    if family in ("matrix normal", "radial") and estimator in ("flipout", "local"):
        pytest.skip("refused, or a matter of other tests")
    x = torch.randn(2, channels, 12, 12)
    outputs = []
    for layout in (flat, lambda channels: last(flat(channels))):
        bnn = weft.bayesianize(layout(channels), FAMILIES[family], estimator=estimator)
        assert is_last(bnn[:3](x)) == (len(outputs) == 1)
        with weft.frozen(bnn, seed=0):
            outputs.append(bnn(x))
    torch.testing.assert_close(outputs[0], outputs[1])


def test_a_kernel_of_one_position_has_no_layout() -> None:
    bnn = weft.bayesianize(last(flat()), weft.MeanField())
    assert [layer.views["weight"].channels_last for layer in (bnn[0], bnn[3], bnn[4])] == [
        True,
        True,
        False,
    ]


def test_collapsing_files_and_vmap() -> None:
    bnn = weft.bayesianize(last(flat()), weft.KTied(rank=1))
    kept = is_last(weft.collapse(bnn)[0].weight)
    assert kept
    x = torch.randn(2, 3, 12, 12)
    state = {name: torch.stack([value, value]) for name, value in bnn.eval().state_dict().items()}
    both = torch.func.vmap(lambda one: functional_call(bnn, one, (x,)))(state)
    torch.testing.assert_close(both[1], bnn(x))
    file = io.BytesIO()
    torch.save(bnn, file)
    file.seek(0)
    assert is_last(torch.load(file, weights_only=False)[:3](x))


@pytest.mark.parametrize("keep_posterior", [False, True])
def test_smaller_networks_keep_the_layout(keep_posterior: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 25, 3)
    )
    bnn = weft.bayesianize(last(net), weft.MeanField())
    with torch.no_grad():
        bnn[0].posterior("weight").mean[:3] *= 1e-6
        bnn[0].posterior("bias").mean.zero_()
    elbo = weft.ELBO(bnn, weft.Categorical(), weft.GroupARD(), num_data=100)
    x = torch.randn(4, 3, 12, 12)
    small, report = weft.compress(
        elbo, x, criterion="snr", threshold=1e-3, agree="either", keep_posterior=keep_posterior
    )
    assert {one.layer: one.after for one in report.units}["0"] == 5
    assert is_last(small[:3](x))

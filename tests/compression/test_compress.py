"""`kasuri.compress` from the outside: thresholds, agreement, what it refuses, and what comes after."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri.compression.search import validation_loss
from kasuri.compression.units import masked_net


def noisy(dead: int = 5, hidden: int = 12, scale: float = 0.05) -> nn.Module:
    """One hidden layer with some units that are noise on both of their sides."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=scale, noise=0.0))
    bnn[0].posteriors.weight.loc.data.uniform_(0.8, 1.2)
    bnn[2].posteriors.weight.loc.data.uniform_(0.8, 1.2)
    bnn[0].posteriors.weight.loc.data[:dead] *= 0.001
    bnn[2].posteriors.weight.loc.data[:, :dead] *= 0.001
    return bnn


def left(report: kasuri.compression.CompressionReport) -> dict[str, int]:
    return {one.layer: one.after for one in report.units}


@pytest.mark.parametrize("criterion", ["snr", "group_ard"])
def test_the_gap_separates_noise_from_signal(criterion: str) -> None:
    small, report = kasuri.compress(noisy(), torch.randn(5, 4), criterion=criterion)
    assert small[0].out_features == 7
    for key in (("0", "out"), ("2", "in")):
        assert math.isfinite(report.levels[key])
        assert int((report.statistics[key] < report.levels[key]).sum()) == 5


def test_without_a_gap_nothing_goes_and_it_is_said() -> None:
    small, report = kasuri.compress(noisy(dead=0), torch.randn(5, 4))
    assert small[0].out_features == 12
    assert "no gap in the statistic of '0' (out)" in report.notes


def test_a_unit_goes_if_either_side_or_both_can_do_without_it() -> None:
    bnn, x = noisy(), torch.randn(5, 4)
    bnn[2].posteriors.weight.loc.data[:, 0] = 1.0  # read all the same
    bnn[0].posteriors.weight.loc.data[1] = 1.0  # made for nobody
    assert left(kasuri.compress(bnn, x, structure="both", threshold=0.05)[1])["0"] == 12 - 3
    assert left(kasuri.compress(bnn, x, threshold=0.05)[1])["0"] == 12 - 5
    assert left(kasuri.compress(bnn, x, threshold=0.05, structure="rows")[1])["0"] == 12 - 4
    assert left(kasuri.compress(bnn, x, threshold=0.05, structure="columns")[1])["0"] == 12 - 4


def test_a_side_that_is_not_random_has_no_say() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.05), where="0")
    bnn[0].posteriors.weight.loc.data[:2] = 0.0
    small, report = kasuri.compress(bnn, torch.randn(5, 4), threshold=0.05)
    assert left(report)["0"] == 4
    masked = masked_net(kasuri.collapse(bnn), report.masks)
    x = torch.randn(9, 4)
    torch.testing.assert_close(small(x), masked(x))


def test_validation_allows_as_much_as_the_tolerance() -> None:
    bnn, x = noisy(), torch.randn(200, 4)
    y = kasuri.collapse(bnn)(x).argmax(1)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=200)

    @torch.no_grad()
    def nll(net: nn.Module) -> float:
        return float(nn.functional.cross_entropy(net(x), y))  # in the network's own precision

    results = []
    for tolerance in (0.0, 0.05, 0.5):
        small, report = kasuri.compress(
            elbo, x, threshold=kasuri.compression.Loss(tolerance), validation=(x, y)
        )
        start = report.trials[0]
        assert start == pytest.approx(nll(kasuri.collapse(bnn)), abs=1e-6)
        assert nll(small) <= start + tolerance + 1e-6
        results.append(small[0].out_features)
        _, other = kasuri.compress(
            bnn, x, threshold=kasuri.compression.Loss(tolerance), validation=nll
        )
        assert left(other)["0"] == results[-1]
    assert results == sorted(results, reverse=True)
    assert results[-1] < results[0]


def test_a_validation_loss_is_the_mean_over_all_batches_of_any_inputs() -> None:
    torch.manual_seed(0)
    bnn = noisy()
    x, y = torch.randn(1203, 4), torch.randint(0, 3, (1203,))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=200)
    plain = kasuri.collapse(bnn).eval()
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(plain(x), y))
    pairs = [(inputs, y) for inputs in (x, (x,), {"input": x})]
    for data in (*pairs, [(x[:5], y[:5]), (x[5:], y[5:])], SimpleNamespace(x=x, y=y)):
        assert validation_loss(data, elbo, plain)({}) == pytest.approx(expected, abs=1e-6)


def test_radial_posteriors_by_log_mode() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 4))
    net[0].weight.data[:4] *= 1e-3
    net[2].weight.data[:, :4] *= 1e-3
    bnn = kasuri.bayesianize(net, kasuri.Radial(grouping="double"))
    small, report = kasuri.compress(bnn, torch.randn(5, 8), criterion="log_mode")
    assert small[0].out_features == 6
    assert int((report.statistics["0", "out"] < report.levels["0", "out"]).sum()) == 4


def test_weights_one_by_one() -> None:
    bnn, x = noisy(), torch.randn(5, 4)
    bnn[0].posteriors.weight.loc.data[8, 2] = 0.0
    small, report = kasuri.compress(bnn, x, structure="weights", threshold=0.05)
    assert small[0].out_features == 7
    assert report.after.nonzero == 7 * 4 - 1 + 7 * 3
    masks, _ = kasuri.compress(bnn, structure="weights", threshold=0.05)
    torch.testing.assert_close(small(x), kasuri.collapse(masks)(x))


REFUSALS = [
    ({"criterion": "size"}, "criterion='size'"),
    ({"threshold": "best"}, "threshold='best'"),
    ({"threshold": kasuri.compression.Loss()}, "Loss"),
    ({"threshold": kasuri.compression.PerLayer()}, "PerLayer"),
    ({"threshold": -1.0}, "threshold=-1.0"),
    ({"structure": "rings"}, "structure='rings'"),
    ({"structure": ("rows", "weights")}, "example"),
    ({"criterion": "log_mode"}, "log_mode"),
    ({"criterion": "log_mode", "structure": "weights"}, "log_mode"),
    ({"validation": (1, 2)}, "ELBO"),
    ({"validation": lambda net: float("nan")}, "nan"),
]


@pytest.mark.parametrize(("options", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_refusals_say_what_to_write(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kasuri.compress(noisy(), torch.randn(2, 4), **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (kasuri.compression.Loss, {"tolerance": -1.0}),
        (kasuri.compression.Loss, {"tolerance": "0.1"}),
        (kasuri.compression.PerLayer, {"price": "flops"}),
        (kasuri.compression.PerLayer, {"budget": 0.5}),
        (kasuri.compression.PerLayer, {"budget": -1}),
    ],
)
def test_options_refuse_what_cannot_be(option: type, value: dict) -> None:
    ((name, given),) = value.items()
    with pytest.raises(ValueError, match=f"{name}={given!r}"):
        option(**value)


def test_numbers_of_numpy_are_numbers() -> None:
    _, report = kasuri.compress(noisy(), torch.randn(2, 4), threshold=np.float32(0.1))
    assert left(report)["0"] == 7


def test_plain_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="bayesianize"):
        kasuri.compress(nn.Linear(2, 2), torch.randn(1, 2))


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

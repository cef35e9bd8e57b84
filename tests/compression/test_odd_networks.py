"""Networks whose units are not what they seem: other sizes, outputs on the way, types, odd couplings."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri
from kasuri.compression.probes import run
from kasuri.compression.units import masked_net

FAMILY = kasuri.MeanField(scale=0.01, noise=0.0)


class Of(nn.Module):
    """Layers by name, and what a function makes of them."""

    def __init__(self, function: Any, **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def bayesian(net: nn.Module, dead: dict[str, Any], bias: float = 1.0) -> nn.Module:
    """The network with means of 0 at the given rows, and biases that are not."""
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            parameter.data.fill_(bias)
    bnn = kasuri.bayesianize(net.double(), FAMILY).eval()
    for name, where in dead.items():
        bnn.get_submodule(name).posteriors.weight.loc.data[where] = 0
    return bnn


def compressed(bnn: nn.Module, x: Any, **options: Any) -> tuple[nn.Module, Any, nn.Module]:
    small, report = kasuri.compress(bnn, x, **{"threshold": 0.1, **options})
    return small, report, masked_net(kasuri.collapse(bnn), report.masks).eval()


def same(small: nn.Module, masked: nn.Module, x: Any) -> None:
    torch.testing.assert_close(run(small, x), run(masked, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("pool", ["convolution", "average"])
def test_constants_that_depend_on_the_size_of_pictures_are_none(pool):
    middle = nn.Conv2d(4, 4, 3, padding=1, groups=4) if pool == "convolution" else None
    net = Of(
        lambda s, x: s.o((s.m(torch.relu(s.c(x)))).mean((2, 3))),
        c=nn.Conv2d(1, 4, 3),
        m=middle or nn.AvgPool2d(3, 1, padding=1),
        o=nn.Linear(4, 2),
    )
    bnn = bayesian(net, {"c": slice(2)})
    small, _, masked = compressed(bnn, torch.randn(4, 1, 10, 10).double(), structure="rows")
    same(small, masked, torch.randn(4, 1, 18, 13).double())


def test_one_slope_for_all_units_is_no_unit():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.PReLU(), nn.Flatten(), nn.Linear(64, 2))
    bnn = bayesian(net, {"0": slice(2), "3": (slice(None), slice(32))})
    small, _, masked = compressed(bnn, torch.randn(5, 1, 6, 6).double())
    assert (small[0].out_channels, small[3].in_features) == (2, 32)
    same(small, masked, torch.randn(5, 1, 6, 6).double())


@pytest.mark.parametrize("order", [("y", "features"), ("features", "y")])
def test_units_that_are_outputs_as_well_keep_what_they_give(order):
    def both(s: Any, x: Tensor) -> dict[str, Tensor]:
        features = torch.relu(s.a(x))
        found = {"features": features, "y": s.o(features)}
        return {name: found[name] for name in order}

    bnn = bayesian(Of(both, a=nn.Linear(3, 6), o=nn.Linear(6, 2)), {"a": slice(3)})
    bnn.o.posteriors.weight.loc.data[:, :3] = 0
    x = torch.randn(5, 3).double()
    small, report, _ = compressed(bnn, x)
    torch.testing.assert_close(small(x)["features"], kasuri.collapse(bnn)(x)["features"])
    assert next(one for one in report.units if one.layer == "a").obstacle


def test_channels_that_are_flattened_in_another_order():
    net = Of(
        lambda s, x: s.o(torch.relu(s.c(x)).permute(0, 2, 3, 1).flatten(1)),
        c=nn.Conv2d(1, 4, 3),
        o=nn.Linear(64, 2),
    )
    bnn = bayesian(net, {"c": slice(2)})
    small, _, masked = compressed(bnn, torch.randn(5, 1, 6, 6).double(), structure="rows")
    assert small.c.out_channels == 2
    same(small, masked, torch.randn(5, 1, 6, 6).double())


def test_what_is_wrong_is_not_masked_either():
    """Units that are sorted: which is which is not known."""
    net = Of(
        lambda s, x: s.o(torch.relu(s.a(x)).nan_to_num(0.0).sort(1).values),
        a=nn.Linear(3, 6),
        o=nn.Linear(6, 2),
    )
    bnn = bayesian(net, {"a": slice(2)})
    x = torch.randn(5, 3).double()
    small, report, _ = compressed(bnn, x, structure="rows")
    torch.testing.assert_close(small(x), kasuri.collapse(bnn)(x))
    assert report.masks == {}


@pytest.mark.parametrize("kind", ["bytes", "state"])
def test_networks_that_ask_for_single_precision(kind):
    if kind == "bytes":
        net = Of(
            lambda s, x: s.o(torch.relu(s.a(x.float() / 255))), a=nn.Linear(3, 6), o=nn.Linear(6, 2)
        )
        x = torch.randint(0, 256, (5, 3), dtype=torch.uint8)
    else:
        net = Of(
            lambda s, x: s.o(torch.relu(s.a(s.r(x, torch.zeros(1, len(x), 5))[0][:, -1]))),
            r=nn.RNN(3, 5, batch_first=True),
            a=nn.Linear(5, 6),
            o=nn.Linear(6, 2),
        )
        x = torch.randn(5, 4, 3)
    bnn = kasuri.bayesianize(net, FAMILY).eval()
    bnn.a.posteriors.weight.loc.data[:2] = 0
    small, report, masked = compressed(bnn, x, threshold=0.01, structure="rows")
    assert small.a.out_features == 4
    assert report.difference < 1e-10
    torch.testing.assert_close(small(x), masked(x))


def test_a_concatenation_in_a_residual_sum_before_padding():
    def dense(s: Any, x: Tensor) -> Tensor:
        h = torch.relu(s.c0(x))
        z = torch.cat([torch.relu(s.c1(h)), h], 1)
        return s.o((z + torch.relu(s.c2(z))).mean((2, 3)))

    layers = {
        "c0": nn.Conv2d(1, 4, 1),
        "c1": nn.Conv2d(4, 3, 3, padding=1),
        "c2": nn.Conv2d(7, 7, 3, padding=1),
        "o": nn.Linear(7, 2),
    }
    bnn = bayesian(Of(dense, **layers), {"c0": slice(2), "c2": slice(3, 5)})
    x = torch.randn(4, 1, 6, 6).double()
    small, _, masked = compressed(bnn, x, threshold=0.01, structure="rows")
    same(small, masked, torch.randn(4, 1, 9, 6).double())


def test_a_layer_keeps_one_input():
    def sliced(s: Any, x: Tensor) -> Tensor:
        h = torch.relu(s.a(x))
        return s.o(torch.relu(s.b(h[:, :2]) + s.c(h[:, 2:])))

    layers = {
        "a": nn.Linear(3, 4),
        "b": nn.Linear(2, 3),
        "c": nn.Linear(2, 3),
        "o": nn.Linear(3, 1),
    }
    bnn = bayesian(Of(sliced, **layers), {"a": slice(2, 4), "c": slice(None)})
    x = torch.randn(4, 3).double()
    small, _, masked = compressed(bnn, x, threshold=0.01)
    assert small.c.in_features >= 1
    same(small, masked, torch.randn(4, 3).double())


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"num_layers": 2}])
def test_recurrent_layers_that_stay_whole_are_named(options):
    lstm = nn.LSTM(4, 5, batch_first=True, **options)
    size = 10 if "bidirectional" in options else 5
    net = Of(lambda s, x: s.o(s.r(x)[0][:, -1]), r=lstm, o=nn.Linear(size, 2))
    bnn = kasuri.bayesianize(net, FAMILY)
    _, report, _ = compressed(bnn, torch.randn(3, 6, 4))
    assert any("'r' (LSTM) stays" in note for note in report.notes)


def test_weights_that_are_computed_stay():
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.utils.parametrizations.weight_norm(net[0])
    bnn = kasuri.bayesianize(net.double(), FAMILY, where=["2", "4"]).eval()
    bnn[2].posteriors.weight.loc.data[:2] = 0
    small, _, masked = compressed(bnn, torch.randn(5, 3).double(), structure="rows")
    assert small[2].out_features == 2
    same(small, masked, torch.randn(5, 3).double())


def test_networks_that_are_random_in_evaluation_mode_are_refused():
    net = Of(lambda s, x: s.o(F.dropout(s.a(x), 0.5)), a=nn.Linear(3, 6), o=nn.Linear(6, 2))
    with pytest.raises(ValueError, match=r"two runs .* evaluation mode"):
        kasuri.compress(kasuri.bayesianize(net, FAMILY), torch.randn(5, 3), threshold=0.1)

"""Experiments on compression: what is counted, what is chosen, and networks that shrink in training."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import kasuri
from experiments.catalog import variants
from experiments.compression import LENET5, lenet5_counts
from experiments.networks import MLP, LeNet5
from experiments.spec import Where
from kasuri.compression.counting import count
from tests.experiments.test_networks import zeros

QUIET = Where(None, show=False)
HONEST = {  # weights, multiply-accumulates and biases: recounted by hand from the widths
    "RDP": (8_720, 113_148),
    "BC-GNJ": (4_074, 288_337),
    "BC-GHS": (2_751, 156_922),
    "FDOO(100K)": (58_716, 111_604),
    "FDOO(200K)": (69_537, 153_211),
    "GL": (101_975, 204_806),
    "GD": (5_938, 254_778),
    "SBP": (84_627, 215_975),
}


def lenet5(n1: int, n2: int, n3: int, n4: int) -> nn.Module:
    """The network of a row, with the columns of its first dense layer that are gone at 0."""
    net = LeNet5((n1, n2), n4)(zeros(1, 28, 28))
    net[5].weight.data[:, n3:] = 0
    return net


@pytest.mark.parametrize("name", LENET5)
def test_published_rows_counted_both_ways(name):
    row = LENET5[name]
    counts = lenet5_counts(*row["widths"])
    assert (counts["weights"], counts["flops"]) == HONEST[name]
    # as printed, to rounding; two rows are printed from other numbers
    assert abs(counts["table_weights"] / 1e3 - row["thousand_parameters"]) <= 0.5
    slack = {"GL": 0.9, "FDOO(200K)": 1.8}.get(name, 0.5)
    assert abs(counts["table_flops"] / 1e3 - row["thousand_flops"]) <= slack
    if row["widths"][2] <= 16 * row["widths"][1]:  # a network of these widths exists
        found = count(lenet5(*row["widths"]), torch.zeros(3, 1, 28, 28))
        assert (found.nonzero, found.table_flops) == HONEST[name]


def on_digits(**changes):
    """The short experiment on small pictures."""
    row = variants("compression/lenet300-short")["mean-field"]
    return replace(row, data="digits", learning_rate=0.01, **changes)


def test_the_smallest_network_within_the_error_is_reported():
    row = on_digits(network=MLP((30,)), epochs=40, error=0.3, tolerances=(0.0, 0.5))
    found = row.run(0, QUIET)
    points = found.figures["frontier"]["points"]
    within = [point["weights"] for point in points if point["valid_error"] <= 0.3]
    assert len(within) == 2
    assert found.metrics["weights_left"] == min(within) < 64 * 30 + 300
    assert points[1]["weights"] < points[0]["weights"], "a higher tolerance leaves less"
    assert found.figures["frontier"]["layers"] == [64 * 30, 30 * 10]


def test_stages_keep_a_budget():
    row = on_digits(network=MLP((30, 20)), epochs=8, stages=2, stage_tolerance=0.0, budget=400)
    data = row.load(row.data, 0)
    whole = 64 * 30 + 30 * 20 + 20 * 10
    assert row.allowed(data, 0) == round((whole * 400) ** 0.5)
    assert row.allowed(data, 1) == 400
    (fitted,) = row.train_members(data, 0, QUIET)
    weights = [q.mean for name, q in kasuri.named_posteriors(fitted.net) if "weight" in name]
    assert sum(int((weight != 0).sum()) for weight in weights) <= 400


def test_the_last_part_may_be_long_and_cold():
    row = on_digits(epochs=40, hold=0.05, ramp=0.15, stages=2, last=0.6, last_temperature=0.1)
    parts = [(part.epochs, part.temperature) for part in row.parts()]
    assert parts == [(8, row.temperature), (8, row.temperature), (24, 0.1)]
    for last in (0.0, 0.8, 1.5):
        with pytest.raises(ValueError, match=f"last={last}"):
            on_digits(hold=0.05, ramp=0.15, stages=2, last=last)


def test_units_go_while_training_goes_on():
    row = on_digits(
        network=MLP((30, 20)),
        epochs=40,
        hold=0.05,
        ramp=0.45,
        stages=3,
        stage_tolerance=0.05,
        tolerances=(0.01,),
    )
    parts = [(part.epochs, part.falling) for part in row.parts()]
    assert parts == [(20, False), (5, False), (5, False), (10, True)]  # hold and ramp first
    data = row.load(row.data, 0)
    (fitted,) = row.train_members(data, 0, QUIET)
    sizes = {name: tuple(q.shape) for name, q in kasuri.named_posteriors(fitted.net)}
    assert sizes["0.weight"][0] < 30, "units are really gone"
    assert sizes["2.weight"][1] == sizes["0.weight"][0]
    assert [line["epoch"] for line in fitted.history] == list(range(1, 41))
    assert fitted.history[-1]["step"] == 40 * -(-len(data.train) // row.batch_size)
    metrics, figures = row.test([fitted], data, 0)
    assert metrics["weights_left"] < 64 * 30 + 30 * 20 + 200
    assert metrics["error"] < 0.3
    assert sum(figures["frontier"]["layers"]) == 64 * 30 + 30 * 20 + 200, "of the first network"

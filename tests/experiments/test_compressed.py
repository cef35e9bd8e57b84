"""Experiments on compression: what is counted and what is chosen."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import kasuri
from experiments import data as datasets
from experiments.catalog import variants
from experiments.compressed import remembered, scored
from experiments.networks import MLP
from experiments.spec import Where


def on_digits(**changes):
    """The short experiment on small pictures."""
    one = variants("compression/lenet300-short")["mean-field"]
    return replace(one, data="digits", learning_rate=0.01, **changes)


def test_weights_and_operations_leave_out_inputs_that_nobody_looks_at():
    data = datasets.load("digits")
    net = nn.Sequential(nn.Linear(64, 10))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.01, noise=0.0))
    with torch.no_grad():
        bnn[0].posteriors.weight.loc[:, 5:] = 0.0  # 5 of 64 inputs are left
    small, report = kasuri.compress(bnn, data.test.x[:9], threshold=1e-6, calls=0)
    found = scored(small, report, data)
    assert found["weights"] == 5 * 10
    assert found["flops"] == 5 * 10 + 10
    assert found["dense_weights"] == 64 * 10
    assert found["layers"] == [5 * 10]
    wrong = small(data.test.x).argmax(1) != data.test.y
    assert (
        found["error"]
        == 1
        - kasuri.evaluate(kasuri.MaximumLikelihood(small, kasuri.Categorical()), data.test)[
            "accuracy"
        ]
    )
    assert abs(found["error"] - float(wrong.float().mean())) < 1e-6


def test_the_smallest_network_within_the_error_is_reported():
    one = on_digits(
        network=MLP((30,)),
        epochs=40,
        error=0.3,
        tolerances=(0.0, 0.5),
    )
    found = one.run(0, Where(None, show=False))
    points = found.figures["frontier"]["points"]
    within = [point["weights"] for point in points if point["valid_error"] <= 0.3]
    assert len(within) == 2
    assert found.metrics["weights_left"] == min(within) < 64 * 30 + 300
    assert points[1]["weights"] < points[0]["weights"], "a higher tolerance leaves less"
    assert found.figures["compression"]["after"]["nonzero"] == min(within)
    assert found.figures["frontier"]["layers"] == [64 * 30, 30 * 10]
    assert all(sum(point["layers"]) == point["weights"] for point in points)


def test_stages_keep_a_budget():
    one = on_digits(
        network=MLP((30, 20)),
        epochs=8,
        stages=2,
        stage_tolerance=0.0,
        budget=400,
    )
    data = one.load(one.data, one.options, 0)
    whole = 64 * 30 + 30 * 20 + 20 * 10
    assert one.allowed(data, 0) == round((whole * 400) ** 0.5)
    assert one.allowed(data, 1) == 400
    (fitted,) = one.trained(data, 0, Where(None, show=False))
    weights = [q.mean for name, q in kasuri.named_posteriors(fitted.net) if "weight" in name]
    assert sum(int((weight != 0).sum()) for weight in weights) <= 400


def test_the_last_part_may_learn_from_all_data():
    one = on_digits(
        network=MLP((20,)),
        epochs=8,
        stages=1,
        budget=500,
        refit=True,
        batch_size=64,
    )
    data = one.load(one.data, one.options, 0)
    found = one.run(0, Where(None, show=False))
    (point,) = found.figures["frontier"]["points"]
    assert "valid_error" not in point.keys() | found.metrics.keys(), (
        "validation data were trained on"
    )
    assert point["weights"] == found.metrics["weights_left"] <= 500
    steps = [-(-len(part.train) // 64) for part in (data, data.everything())]
    assert found.history[-1]["step"] == 6 * steps[0] + 2 * steps[1]


def test_the_last_part_may_be_long_and_cold():
    one = on_digits(epochs=40, hold=0.05, ramp=0.15, stages=2, last=0.6, last_temperature=0.1)
    assert [(part.epochs, part.temperature) for part in one.staged()] == [
        (8, one.temperature),
        (8, one.temperature),
        (24, 0.1),
    ]


@pytest.mark.parametrize("last", [0.0, 0.8, 1.5])
def test_parts_that_do_not_fit_into_the_training_are_refused(last):
    with pytest.raises(ValueError, match=r"above 0 and below 0\.8"):
        on_digits(hold=0.05, ramp=0.15, stages=2, last=last)


def test_units_go_while_training_goes_on():
    one = on_digits(
        network=MLP((30, 20)),
        epochs=40,
        hold=0.05,
        ramp=0.45,
        stages=3,
        stage_tolerance=0.05,
        tolerances=(0.01,),
    )
    assert [(part.epochs, part.falling) for part in one.staged()] == [
        (20, False),  # hold and ramp
        (5, False),
        (5, False),
        (10, True),
    ]
    data = one.load(one.data, one.options, 0)
    (fitted,) = one.trained(data, 0, Where(None, show=False))
    sizes = {name: tuple(q.shape) for name, q in kasuri.named_posteriors(fitted.net)}
    assert sizes["0.weight"][0] < 30, "units are really gone"
    assert sizes["2.weight"][1] == sizes["0.weight"][0]
    assert [row["epoch"] for row in fitted.history] == list(range(1, 41))
    assert fitted.history[-1]["step"] == 40 * -(-len(data.train) // one.batch_size)
    found = one.run(0, Where(None, show=False))
    assert found.metrics["weights_left"] < 64 * 30 + 30 * 20 + 200
    assert found.metrics["error"] < 0.3
    told = found.figures["compression"]
    assert told["before"]["weights"] == 64 * 30 + 30 * 20 + 200, (
        "of the first network, not of a stage"
    )
    assert {unit["layer"]: unit["before"] for unit in told["units"]}["0"] == 30
    assert told["latency"]["ratio"] == found.metrics["speedup"]


def test_networks_with_the_same_weights_are_judged_once():
    looked = []

    def loss(net):
        looked.append(net)
        return float(net.weight.detach().sum())

    judge = remembered(loss)
    net, same = nn.Linear(2, 2), nn.Linear(2, 2)
    same.load_state_dict(net.state_dict())
    assert judge(net) == judge(same) == float(net.weight.detach().sum())
    assert len(looked) == 1
    with torch.no_grad():
        same.weight[0, 0] = 0.0
    assert judge(same) == float(same.weight.detach().sum())
    assert len(looked) == 2

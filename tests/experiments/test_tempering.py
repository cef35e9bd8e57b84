"""Experiments over the temperature and over the width."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import kasuri
from experiments import data as datasets
from experiments.networks import TwoLayer
from experiments.report import Result, compare
from experiments.report.sweeps import pooled
from experiments.spec import Where
from experiments.tempering import Tempered, at_each_tau
from experiments.wide import Wide, wide_optimum

ALONE = Where(None, show=False)
DIGITS = Tempered(
    name="tempering/test",
    variant="",
    title="",
    data="digits",
    network=TwoLayer(20),
    family=kasuri.MeanField(),
    bias=False,
    epochs=25,
    batch_size=100,
    learning_rate=0.02,
    keep="last",
    prior_scale=0.2,
    samples=10,
)


def result(experiment, found):
    told = {
        "format": 1,
        "experiment": experiment.name,
        "variant": experiment.variant,
        "seed": 0,
        "metrics": found.metrics,
        "figures": found.figures,
        "published": experiment.published,
    }
    return Result.from_dict(json.loads(json.dumps(told)))


def test_a_sweep_over_tau_is_good_where_it_is_cold_and_at_chance_where_it_is_hot():
    rows = at_each_tau(DIGITS, (0.001, 100.0))
    found = [one.run(0, ALONE) for one in rows]
    cold, hot = (one.metrics for one in found)
    assert cold["accuracy"] > 0.8
    assert hot["accuracy"] < 0.4
    data, weights = len(datasets.load("digits").train), 64 * 20 + 200
    assert cold["eta"] == pytest.approx(0.001 * data / weights)
    assert found[0].history[-1]["temperature"] == pytest.approx(cold["eta"])
    assert found[0].figures["sweep"]["marks"]["η = 1"] == pytest.approx(weights / data)
    kinds = [one["kind"] for one in found[1].figures["diagnosis"]["findings"]]
    assert "ignores the data" in kinds
    (table,) = compare([result(*pair) for pair in zip(rows, found, strict=True)])
    drawn = pooled(table.rows)
    assert drawn.scores["accuracy"]["mean-field"].measured == {
        0.001: [cold["accuracy"]],
        100.0: [hot["accuracy"]],
    }
    assert set(drawn.scores) == {"accuracy", "gibbs_nll", "ece_batched", "confidence"}


def test_the_learning_rate_falls_in_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    schedule = replace(DIGITS, epochs=200, drop_every=100).scheduler()(optimizer, 1000)
    rates = []
    for _ in range(1000):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:500] == [1.0] * 500
    assert rates[500:] == pytest.approx([0.1] * 500)


@pytest.mark.parametrize("rule", ["eta-1", "balanced"])
def test_the_toy_finds_its_closed_form(rule):
    toy = Wide(
        name="t",
        variant=rule,
        title="",
        kind="toy",
        rule=rule,
        neurons=50,
        tau=0.1,
        epochs=400,
        learning_rate=0.05,
    )
    found = toy.run(0, ALONE).metrics
    best = wide_optimum(30, 1.5, 50, 1.0 if rule == "eta-1" else 0.1 * 30 / 50)
    assert found["kl_exact"] == pytest.approx(best.kl, rel=1e-6)
    assert found["kl"] == pytest.approx(best.kl, rel=0.05)
    assert found["posterior_mean"] == pytest.approx(best.mean, rel=0.05)

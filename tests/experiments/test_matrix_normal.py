"""Experiments with relevance priors."""

from dataclasses import replace

import pytest

import kasuri
from experiments import data as datasets
from experiments.matrix_normal import Sparse
from experiments.networks import ELUMLP
from experiments.spec import Where

DIGITS = Sparse(
    name="sparse",
    variant="mean-field",
    title="",
    data="digits",
    network=ELUMLP((30,)),
    family=kasuri.MeanField(),
    epochs=60,
    batch_size=100,
    learning_rate=0.01,
    temperature=1.0,
    keep="last",
    samples=20,
)


def test_a_relevance_prior_prunes_and_accuracy_stays():
    found = DIGITS.run(0, Where(None, show=False))
    total = 64 * 30 + 30 * 10
    left = found.metrics["weights_left"]
    assert 50 < left < 0.6 * total
    layers = found.figures["sparsity"]["layers"]
    weights = [layer for layer in layers if "weight" in layer["name"]]
    assert sum(layer["weights"] for layer in weights) == total
    assert sum(layer["weights_left"] for layer in layers) == left
    assert found.metrics["accuracy"] > 0.85
    assert found.metrics["accuracy_pruned"] > found.metrics["accuracy"] - 0.03


def test_validation_chooses_the_highest_threshold_that_costs_little():
    one = replace(DIGITS, epochs=30, thresholds=(1e9, 1e-9))
    everything = one.run(0, Where(None, show=False))
    assert everything.metrics["threshold"] == 1e-9, "a network without weights costs too much"
    generous = replace(one, tolerance=10.0).run(0, Where(None, show=False))
    assert generous.metrics["threshold"] == 1e9
    assert generous.metrics["weights_left"] == 0


@pytest.mark.parametrize(("rise", "half"), [("linear", 0.5), ("exponential", 0.1)])
def test_the_kl_is_off_first_and_then_rises(rise, half):
    """Exponentially from 0.01 to 1, as published: half the way in logarithms is 0.1."""
    data = datasets.load("digits")
    weight = replace(DIGITS, hold=0.1, ramp=0.2, rise=rise).objective(data)["kl_weight"]
    batches = -(-len(data.train) // 100)
    found = [weight(round(epoch * batches)) for epoch in (5, 12, 18, 50)]
    assert found == pytest.approx([0, half, 1, 1])

"""kasuri.diagnose on networks broken on purpose, one for each finding, and on healthy ones."""

import functools
import json
import math

import pytest
import torch
from torch import nn

import kasuri
from experiments import data as datasets
from kasuri.diagnostics import collapse_check
from kasuri.diagnostics.findings import Measured, all_findings, constant_nll


def mlp(inputs, hidden, outputs, family=None, estimator="local"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    return kasuri.bayesianize(net, family or kasuri.MeanField(), estimator=estimator)


@functools.cache
def digits():
    return datasets.load("digits")


@functools.cache
def wave():
    """300 points of a smooth function with noise 0.3, and as many again."""
    torch.manual_seed(1)
    x = torch.rand(600, 1) * 4 - 2
    y = torch.sin(2 * x) + 0.3 * torch.randn(600, 1)
    return (x[:300], y[:300]), (x[300:], y[300:])


@functools.cache
def healthy_digits():
    data = digits()
    return kasuri.fit(
        mlp(64, 50, 10), data.train, data.valid, epochs=40, learning_rate=0.02, seed=0
    )


def kinds(found):
    return [one.kind for one in found.findings]


def test_a_healthy_classifier_is_left_alone():
    found = kasuri.diagnose(healthy_digits(), digits().test, digits().train)
    assert kinds(found) == []
    assert str(found).startswith("Nothing to report.")


def test_a_healthy_regression_is_left_alone():
    train, test = wave()
    elbo = kasuri.ELBO(
        mlp(1, 10, 1), kasuri.Gaussian(), kasuri.HeNormal(), 300, kasuri.Balanced(0.02)
    )
    fitted = kasuri.fit(elbo, train, epochs=200, learning_rate=0.03, seed=0)
    found = kasuri.diagnose(fitted, test, train)
    assert kinds(found) == []


def test_a_network_at_its_prior_ignores_the_data():
    bnn = mlp(64, 300, 10)
    with torch.no_grad():
        for _, q in kasuri.named_posteriors(bnn):
            q.loc.zero_()
            scale = math.sqrt(2 / q.shape[-1]) if len(q.shape) > 1 else 1.0
            q.log_scale.fill_(math.log(scale))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=1000, temperature=1.0)
    found = kasuri.diagnose(elbo, digits().test)
    assert kinds(found)[:3] == ["ignores the data", "at the prior", "at the prior"]
    weights = 64 * 300 + 300 + 3000 + 10
    assert f"about {0.4 * 1000 / weights:.2g}" in found.findings[0].advice
    assert str(found.findings[1]) == (
        "100 % of 0.weight equals the prior: lower the temperature to about 0.018 or narrow the layer."
    )
    assert "of the loss" in found.findings[0].what
    assert "train=..." in str(found)


def test_targets_that_have_nothing_to_do_with_inputs_are_no_collapse():
    torch.manual_seed(0)
    x, y = torch.randn(400, 5), torch.randint(2, (400,))
    fitted = kasuri.fit(
        mlp(5, 8, 2), (x, y), epochs=40, learning_rate=0.02, temperature=0.05, seed=0
    )
    fresh = torch.randn(300, 5), torch.randint(2, (300,))
    found = kasuri.diagnose(fitted, fresh)
    assert kinds(found)[0] == "ignores the data"
    assert "belong to their targets" in found.findings[0].advice
    assert "at the prior" not in kinds(found)


def test_a_network_without_spread_is_a_point_estimate():
    data = digits()
    bnn = mlp(64, 20, 10, kasuri.MeanField(scale=1e-6))
    fitted = kasuri.fit(bnn, data.train, temperature=1e-9, epochs=10, learning_rate=0.02, seed=0)
    found = kasuri.diagnose(fitted, data.test)
    assert {"narrow"} == set(kinds(found))
    assert "raise the temperature" in found.findings[0].advice


def test_a_posterior_wider_than_its_prior():
    elbo = kasuri.ELBO(
        mlp(64, 20, 10, kasuri.MeanField(scale=5.0)), kasuri.Categorical(), kasuri.HeNormal(), 1000
    )
    assert "wide" in kinds(kasuri.diagnose(elbo, digits().test))


def test_noisy_labels_learned_by_heart_make_it_too_sure():
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    y = (x[:, 0] > 0).long() ^ (torch.rand(400) < 0.25).long()
    bnn = mlp(10, 100, 2)
    fitted = kasuri.fit(
        bnn, (x[:150], y[:150]), temperature=1e-4, epochs=150, learning_rate=0.01, seed=0
    )
    found = kasuri.diagnose(fitted, (x[150:], y[150:]))
    assert "overconfident" in kinds(found)
    advice = next(one.advice for one in found.findings if one.kind == "overconfident")
    assert "raise the temperature to about 0.0003" in advice


def test_outputs_that_are_shrunk_make_it_timid():
    elbo = healthy_digits().objective
    elbo.output = lambda out: 0.2 * out
    try:
        found = kasuri.diagnose(elbo, digits().test)
    finally:
        elbo.output = None
    assert kinds(found) == ["timid"]
    assert "accuracy 9" in found.findings[0].what


@pytest.mark.parametrize(("noise", "kind"), [(0.05, "overconfident"), (1.5, "timid")])
def test_noise_of_a_wrong_size(noise, kind):
    train, test = wave()
    elbo = kasuri.ELBO(mlp(1, 10, 1), kasuri.Gaussian(noise), kasuri.HeNormal(), 300, 1e-3)
    kasuri.fit(elbo, train, epochs=60, learning_rate=0.02, seed=0)
    found = [one for one in kasuri.diagnose(elbo, test).findings if one.kind == kind]
    assert "kasuri.Gaussian()" in found[0].advice
    assert "intervals of 90 % hold" in found[0].what


def test_training_that_has_hardly_begun_is_unfinished():
    data = digits()
    fitted = kasuri.fit(mlp(64, 50, 10), data.train, temperature=0.03, epochs=1, seed=0)
    found = kasuri.diagnose(fitted, data.test, data.train)
    assert "unfinished" in kinds(found)


def test_a_layer_that_the_data_do_not_reach():
    data = digits()
    bnn = mlp(64, 30, 10)
    with torch.no_grad():
        dict(kasuri.named_posteriors(bnn))["0.bias"].loc.fill_(-100.0)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), len(data.train), 0.03)
    found = kasuri.diagnose(elbo, data.test, data.train)
    dead = [one.what for one in found.findings if one.kind == "dead"]
    assert any("0.weight" in what for what in dead)
    assert "dead" not in kinds(kasuri.diagnose(healthy_digits(), data.test, data.train))


def test_numbers_that_are_none_end_the_look():
    bnn = mlp(4, 3, 2)
    with torch.no_grad():
        dict(kasuri.named_posteriors(bnn))["0.weight"].loc[0, :2] = math.nan
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), 10)
    found = kasuri.diagnose(elbo, (torch.randn(10, 4), torch.arange(10) % 2))
    assert kinds(found) == ["not finite"]
    assert "0.0/weight" not in str(found)
    assert "2 values that are not finite" in str(found)


def test_looking_leaves_no_trace_and_repeats_itself():
    elbo = healthy_digits().objective.train()
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in elbo.state_dict().items()}
    found = kasuri.diagnose(elbo, digits().test, digits().train)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[k], v) for k, v in elbo.state_dict().items())
    assert elbo.training
    assert all(p.grad is None for p in elbo.parameters())
    again = kasuri.diagnose(elbo, digits().test, digits().train)
    assert again.as_dict() == found.as_dict()
    json.dumps(found.as_dict(), allow_nan=False)


def test_other_priors_and_families_are_looked_at_as_far_as_they_can_be():
    for family, prior in (
        (kasuri.MeanField(), kasuri.ARD()),
        (kasuri.Radial(), kasuri.RadialPrior(others=kasuri.HeNormal())),
        (kasuri.MatrixNormalDiagonal(), kasuri.Normal(1.0, learn="closed form")),
        (kasuri.Point(), kasuri.HeNormal()),
    ):
        elbo = kasuri.ELBO(mlp(4, 3, 2, family, "shared"), kasuri.Categorical(), prior, 20)
        data = torch.randn(20, 4), torch.arange(20) % 2
        found = kasuri.diagnose(elbo, data, data)
        json.dumps(found.as_dict(), allow_nan=False)


def test_what_has_no_prior_is_refused():
    with pytest.raises(TypeError, match=r"kasuri\.ELBO"):
        kasuri.diagnose(mlp(4, 3, 2), (torch.randn(9, 4), torch.arange(9) % 2))
    with pytest.raises(TypeError, match=r"kasuri\.ELBO"):
        collapse_check(mlp(4, 3, 2))


@pytest.mark.parametrize("classes", [2, 5])
def test_the_constant_prediction_is_the_best_one(classes):
    torch.manual_seed(0)
    y = torch.randint(classes, (200,))
    shares = torch.bincount(y, minlength=classes) / 200
    expected = nn.functional.nll_loss(shares.log().expand(200, -1), y)
    assert constant_nll(y, classes=True) == pytest.approx(float(expected), rel=1e-5)
    real = torch.randn(200, 2) * torch.tensor([1.0, 3.0])
    law = torch.distributions.Normal(real.mean(0), real.std(0, correction=0))
    assert constant_nll(real, classes=False) == pytest.approx(
        -float(law.log_prob(real).sum(1).mean()), rel=1e-5
    )


def test_chance_is_no_finding():
    """Ten examples cannot tell a confidence of 0.8 from an accuracy of 0.7."""
    elbo = kasuri.ELBO(mlp(4, 3, 2), kasuri.Categorical(), kasuri.HeNormal(), 9)
    collapse = collapse_check(elbo)
    scores = {"nll": 0.3, "accuracy": 0.7, "accuracy_sem": 0.15, "confidence": 0.8}
    few = Measured(collapse, scores, 0.69, 0.1, 100)
    assert all_findings(few) == ()
    many = Measured(collapse, scores | {"accuracy_sem": 0.015}, 0.69, 0.1, 100)
    assert [one.kind for one in all_findings(many)] == ["overconfident"]

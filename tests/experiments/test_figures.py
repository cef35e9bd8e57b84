"""Figures: data of the report's pictures, from the same prediction as the metrics."""

import json

import pytest
import torch
from torch import nn

import kasuri
from experiments.figures import figures
from kasuri import evaluate, metrics

S = 12


def classifier(family=kasuri.KTied):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return kasuri.bayesianize(net, family(scale=0.3))


def classes(n=40):
    return 2 * torch.randn(n, 4), torch.randint(3, (n,))


def elbo_of(bnn, likelihood, prior=None):
    return kasuri.ELBO(bnn, likelihood, prior or kasuri.Normal(0.5), num_data=100)


def regressor():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return elbo_of(kasuri.bayesianize(net, kasuri.MeanField(scale=0.2)), kasuri.Gaussian(0.4))


def test_figures_of_a_classifier():
    elbo, (x, y) = elbo_of(classifier(), kasuri.Categorical()), classes()
    made = figures(evaluate(elbo, (x, y), samples=S), elbo)
    made = json.loads(json.dumps(made, allow_nan=False))
    pred = kasuri.predict(elbo, x, S, seed=0)
    diagram = metrics.calibration_bins(metrics.confidence(pred.mean), metrics.correct(pred.mean, y))
    assert made["reliability"]["count"] == diagram.counts.tolist()
    assert made["reliability"]["accuracy"] == pytest.approx(diagram.accuracy.tolist(), abs=1e-6)


def test_figures_of_a_regression():
    elbo, x, y = regressor(), torch.randn(200, 4), torch.randn(200, 1)
    result = evaluate(elbo, (x, y), samples=S)
    made = json.loads(json.dumps(figures(result, elbo), allow_nan=False))
    curve = dict(zip(*made["intervals"].values(), strict=True))
    assert curve[0.9] == pytest.approx(result["coverage_90"])
    assert list(curve.values()) == sorted(curve.values())
    assert "reliability" not in made


def test_layers_tell_the_posteriors():
    elbo = elbo_of(classifier(family=kasuri.MeanField), kasuri.Categorical())
    layers = {
        one["name"]: one for one in figures(evaluate(elbo, classes(), samples=2), elbo)["layers"]
    }
    for name, q in kasuri.named_posteriors(elbo.bnn):
        told, ratio = layers[name], (q.mean.abs() / q.scale).flatten().sort().values
        assert told["shape"] == list(q.shape)
        assert told["parameters"] == 2 * q.numel()
        assert told["kl"] == pytest.approx(kasuri.Normal(0.5).kl(q).item(), rel=1e-5)
        assert told["snr"] == pytest.approx(ratio[(q.numel() - 1) // 2].item(), rel=1e-5)
        assert told["mean_std"] == pytest.approx(q.scale.mean().item(), rel=1e-5)
        assert sum(told["mean"]["counts"]) == sum(told["scale"]["counts"]) == q.numel()
        ends, logs = told["scale"]["edges"], q.scale.detach().log10()
        assert ends[0] - 1e-6 <= logs.min().item() <= logs.max().item() <= ends[-1] + 1e-6
    assert sum(one["kl"] for one in layers.values()) == pytest.approx(elbo.kl().item(), rel=1e-5)


def test_layers_without_randomness_or_objective():
    point = elbo_of(classifier(family=kasuri.Point), kasuri.Categorical())
    found = evaluate(point, classes(), samples=1)
    first = json.loads(json.dumps(figures(found, point), allow_nan=False))["layers"][0]
    assert (first["snr"], first["scale"], first["mean_std"]) == (None, None, 0)
    assert figures(found)["layers"] == []

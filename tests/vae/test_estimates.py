"""ELBO and importance-weighted log-likelihood where the evidence is known; memory; active units."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kasuri
from kasuri import vae
from kasuri.vae import estimates
from tests.vae.models import Linear, patterns, small


@pytest.fixture(scope="module")
def linear():
    return Linear()


@pytest.fixture(scope="module")
def points(linear):
    torch.manual_seed(3)
    return linear.evidence.sample((40,))


def test_with_the_true_posterior_every_estimate_is_the_evidence(linear, points):
    """Every importance weight is p(x) then: no noise at K = 1, and the ELBO is the evidence."""
    model, evidence = linear.exact(), linear.evidence.log_prob(points)
    for samples in (1, 7):
        found = vae.log_likelihood(model, points, samples=samples)
        torch.testing.assert_close(found, evidence, rtol=1e-10, atol=1e-10)
    # the sampled log-likelihood term is noisy, its expectation is not
    found = vae.elbo(model, points, samples=4000).mean()
    assert abs(float(found - evidence.mean())) < 0.02


def test_the_importance_weighted_estimate_rises_to_the_evidence(linear, points):
    model, evidence = linear.best_independent(), linear.evidence.log_prob(points)
    gaps = []
    for samples in (1, 10, 100, 1000, 20_000):
        repeats = max(1, 200 // samples)  # the noise of few draws averaged out
        found = [
            vae.log_likelihood(model, points, samples=samples, seed=seed).mean()
            for seed in range(repeats)
        ]
        gaps.append(float(evidence.mean() - torch.stack(found).mean()))
    loss = 0.5 * float(linear.precision.diagonal().log().sum() - linear.precision.logdet())
    assert gaps[0] == pytest.approx(loss, abs=0.05)
    assert gaps[0] > 2 * gaps[1] > 3 * gaps[2] > 0.1
    assert abs(gaps[3]) < 0.04
    assert abs(gaps[4]) < 0.02


def test_training_a_full_normal_reaches_the_evidence_and_a_diagonal_does_not(linear):
    torch.manual_seed(0)
    train, test = linear.evidence.sample((2000,)), linear.evidence.sample((300,))
    evidence, gaps = linear.evidence.log_prob(test).mean(), []
    for latent in (vae.FullLatent(4), vae.DiagonalLatent(4)):
        rest = torch.zeros(latent.size - 4, dtype=torch.float64)
        model = linear.vae(latent, rest)
        nn.init.zeros_(model.net.encoder.weight)
        nn.init.zeros_(model.net.encoder.bias)
        model.net.decoder.requires_grad_(False)
        kasuri.fit(model, (train, train), epochs=15, batch_size=50, learning_rate=0.03, seed=0)
        gaps.append(float(evidence - vae.elbo(model, test, samples=500).mean()))
    loss = 0.5 * float(linear.precision.diagonal().log().sum() - linear.precision.logdet())
    assert gaps[0] == pytest.approx(0.0, abs=0.06)
    assert gaps[1] == pytest.approx(loss, abs=0.08)


def test_sums_of_weights_are_those_of_one_logsumexp(monkeypatch):
    """Weights of 1, 2, 3, ... in the order in which chunks ask for them: K = 11 in chunks of 4."""
    model, x, drawn = small(), patterns(2)[0], []

    def counted(vae, q, targets, draws):
        first = len(drawn)
        drawn.extend(range(first, first + draws))
        numbers = torch.arange(first + 1, first + draws + 1, dtype=torch.float64)
        return numbers.log().unsqueeze(1) + torch.tensor([0.0, 800.0])  # e^800 is no float64

    monkeypatch.setattr(estimates, "_log_weights", counted)
    monkeypatch.setattr(estimates, "EXAMPLES", 2)
    monkeypatch.setattr(estimates, "CHUNK", 8)
    found = vae.log_likelihood(model, x, samples=11)
    assert len(drawn) == 11
    torch.testing.assert_close(found, math.log(6.0) + torch.tensor([0.0, 800.0]).double())


class Largest(TorchDispatchMode):
    """The most numbers that any operation gave."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else (out,)
        sizes = [one.numel() for one in made if isinstance(one, torch.Tensor)]
        self.most = max([self.most, *sizes])
        return out


def test_memory_depends_on_the_chunk_alone(monkeypatch):
    model, found = small(vae.FullLatent(4)), []
    monkeypatch.setattr(estimates, "CHUNK", 128)
    for count, samples in ((16, 64), (64, 64), (16, 640)):
        x = patterns(count)[0]
        with Largest() as largest:
            vae.log_likelihood(model, x, samples=samples)
        found.append(largest.most)
    assert found[0] == found[2] == 128 * 12
    assert found[1] <= max(found[0], 64 * 12)  # the inputs themselves


def test_seeds_decide_and_generators_and_modes_stay():
    model, (x, _) = small(), patterns(20)
    state = torch.get_rng_state()
    model.train()
    first = vae.log_likelihood(model, x, samples=50, seed=4)
    assert torch.equal(first, vae.log_likelihood(model, x, samples=50, seed=4))
    assert not torch.equal(first, vae.log_likelihood(model, x, samples=50, seed=5))
    assert torch.equal(vae.elbo(model, x, seed=4), vae.elbo(model, x, seed=4))
    assert torch.equal(vae.sample(model, 3, seed=4), vae.sample(model, 3, seed=4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(one.training for one in model.modules())


def test_evaluate_tells_every_score_of_the_examples_that_were_asked_for():
    model, (x, y) = small(), patterns(50)
    found = vae.evaluate(model, (x, y), samples=200, images=30)
    assert found["count"] == 50
    assert found["images"] == 30
    assert found["draws"] == 200
    elbos = vae.elbo(model, x, seed=1)
    assert found["elbo"] == pytest.approx(float(elbos.mean()))
    assert found["elbo_sem"] == pytest.approx(float(elbos.std()) / 50**0.5)
    assert found["kl"] == pytest.approx(model.posterior(x).kl().mean().item(), rel=1e-5)
    assert found["reconstruction"] == pytest.approx(found["elbo"] + found["kl"])
    assert vae.elbo(model, x[:30], samples=400).mean() < found["log_likelihood"]
    assert "log_likelihood" not in vae.evaluate(model, x, samples=0)
    with pytest.raises(TypeError, match="Linear"):
        vae.evaluate(nn.Linear(2, 2), x)
    assert "elbo_sem" not in vae.evaluate(model, x[:1], samples=2)


def test_active_units_are_those_that_vary_with_the_input():
    model, (x, _) = small(vae.DiagonalLatent(3)), patterns(80)
    with torch.no_grad():
        model.net.encoder[-1].weight[1] = 0.0  # mean of the second: constant
        model.net.encoder[-1].weight[2] *= 0.001 / model.posterior(x).mean[:, 2].std()
        model.net.encoder[-1].weight[0] *= 0.5 / model.posterior(x).mean[:, 0].std()
    assert vae.active_units(model, x).tolist() == [True, False, False]
    assert vae.evaluate(model, x, samples=0)["active_units"] == 1


def test_counts_below_one_are_refused():
    for function in (vae.elbo, vae.log_likelihood):
        with pytest.raises(ValueError, match="at least 1"):
            function(small(), patterns(5)[0], samples=0)


def test_evaluate_of_the_package_points_to_the_right_one():
    with pytest.raises(TypeError, match=r"kasuri\.vae\.evaluate"):
        kasuri.evaluate(small(), patterns(5))

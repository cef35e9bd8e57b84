"""Scores of real targets for every likelihood: in any unit, from a network or from a function."""

import itertools
import math

import pytest
import torch
from scipy import integrate, stats
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.prediction.metrics import crps, pit
from kasuri.streams import mix
from tests.likelihoods.test_gamma import noise

LIKELIHOODS = {
    "gaussian": lambda: kasuri.Gaussian(0.4),
    "shared": lambda: noise(9.0, 3.0, dtype=torch.float32),
    "each": lambda: noise([9.0, 300.0], [3.0, 20.0], dtype=torch.float32),
    "closed form": lambda: noise(30.0, 3.0, learn="closed form", dtype=torch.float32),
    "heteroscedastic": lambda: kasuri.HeteroscedasticGaussian(),
}


def model(name, samples=12):
    """(objective, x, y, draws of the outputs that evaluation makes)."""
    torch.manual_seed(0)
    likelihood = LIKELIHOODS[name]()
    outputs = 4 if name == "heteroscedastic" else 2
    bnn = kasuri.bayesianize(nn.Linear(3, outputs), kasuri.MeanField(scale=0.3))
    elbo = kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=50, temperature=0.2)
    x, y = torch.randn(30, 3), torch.randn(30, 2)
    return elbo, x, y, kasuri.predict(bnn, x, samples, seed=0).draws


def log_densities(elbo, fs, y):
    """Of y jointly under each draw, (S, N); with a common precision a multivariate Student-t."""
    likelihood = elbo.likelihood
    if likelihood.kl() is None:
        return likelihood(fs).log_prob(y).sum(-1).double()
    a, b = likelihood.concentration.detach(), likelihood.rate.detach()
    if a.dim():
        return td.StudentT(2 * a, fs.double(), (b / a).sqrt()).log_prob(y).sum(-1)
    law = stats.multivariate_t(shape=torch.eye(2).numpy() * float(b / a), df=float(2 * a))
    return torch.as_tensor(law.logpdf((y - fs).double().detach().numpy()))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_nll_is_of_the_mixture_over_draws_and_changes_with_the_unit(name):
    """Log p(y) = log p(ỹ) - Σ log σ; errors, widths and crps are multiplied."""
    elbo, x, y, fs = model(name)
    logs = log_densities(elbo, fs, y)
    predictive = logs.logsumexp(0) - math.log(len(logs))
    expected = torch.stack([elbo.likelihood.expected_log_prob(f, y) for f in fs]).double()
    noise_kl = elbo.likelihood.kl()
    own = 0.0 if noise_kl is None else noise_kl.item()
    kl = elbo.kl().item()
    one = kasuri.evaluate(elbo, (x, y), samples=12)
    for unit in (torch.ones(2), torch.tensor([7.0, 0.02])):
        told = kasuri.evaluate(elbo, (x, y), samples=12, target_scale=unit)
        density = unit.log().sum().item()
        close = {"abs": 2e-5, "rel": 2e-5}
        assert told["nll"] == pytest.approx(-predictive.mean().item() + density, **close)
        assert told["gibbs_nll"] == pytest.approx(-expected.mean().item() + density, **close)
        bound = told["gibbs_nll"] + own / 50
        assert told["neg_elbo"] == pytest.approx(bound + kl / 50, **close)
        assert told["tempered_neg_elbo"] == pytest.approx(bound + 0.2 * kl / 50, **close)
        assert told.get("noise_kl", 0.0) == pytest.approx(own)
        mean = elbo.likelihood.moments(fs)[0].mean(0)
        squares = ((mean - y) * unit).square()
        assert told["rmse"] == pytest.approx(squares.mean().sqrt().item(), rel=1e-5)
        assert told["coverage_90"] == one["coverage_90"]


@pytest.mark.parametrize("a", [6.0, 40.0, 3000.0])
def test_crps_of_student_ts_is_the_integral(a):
    torch.manual_seed(1)
    means, y = torch.randn(3, 2).double(), torch.randn(2).double()
    scale = torch.tensor([0.5, 2.0]).double()
    got = crps(means, scale, y, torch.tensor(a))
    below = pit(means, scale, y, torch.tensor(a))
    for k in range(2):

        def gap(t, k=k):
            return stats.t.cdf(t, 2 * a, means[:, k], scale[k]).mean() - float(t >= y[k])

        ends = [-200.0, y[k].item(), 200.0]
        oracle = sum(
            integrate.quad(lambda t: gap(t) ** 2, *pair, limit=200)[0]
            for pair in itertools.pairwise(ends)
        )
        assert got[k].item() == pytest.approx(oracle, abs=1e-5)
        assert below[k].item() == pytest.approx(gap(y[k]) + 1, abs=1e-6)


def members_of(*noises: kasuri.Likelihood) -> list[kasuri.MaximumLikelihood]:
    return [kasuri.MaximumLikelihood(nn.Linear(3, 1), noise, num_data=9) for noise in noises]


def test_members_of_an_ensemble_of_student_ts_keep_their_noise():
    rates = (1.0, 7.0)
    members = members_of(*(noise(9.0, b, dtype=torch.float32) for b in rates))
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    pred = kasuri.prediction.ensemble(members)(x)
    assert pred.aleatoric.flatten()[0].item() == pytest.approx(4 / 8)
    result = kasuri.evaluate(kasuri.prediction.ensemble(members), (x, y))
    scales = torch.tensor(rates).div(9).sqrt()[:, None]
    law = stats.t(18, loc=pred.draws[..., 0], scale=scales)
    oracle = math.log(2) - torch.as_tensor(law.logpdf(y[:, 0])).logsumexp(0).mean()
    assert result["nll"] == pytest.approx(oracle.item(), abs=1e-5)


def test_an_ensemble_of_posteriors_mixes_their_draws_and_their_noise():
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    noises = (kasuri.Gaussian(0.3), kasuri.HeteroscedasticGaussian())
    members = []
    for outputs, likelihood in zip((1, 2), noises, strict=True):
        bnn = kasuri.bayesianize(nn.Linear(3, outputs), kasuri.MeanField(scale=0.5))
        members.append(kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=9))
    pred = kasuri.prediction.ensemble(members, samples=5, seed=3)(x)
    logs = []
    for member, one in enumerate(members):
        draws = kasuri.predict(one.bnn, x, 5, seed=mix(3, member)).draws
        logs += [one.likelihood.log_prob(f, y) for f in draws]
    oracle = math.log(10) - torch.stack(logs).double().logsumexp(0).mean()
    assert len(pred.draws) == 10
    result = kasuri.evaluate(kasuri.prediction.ensemble(members, samples=5, seed=3), (x, y))
    assert result["nll"] == pytest.approx(oracle.item(), abs=1e-5)


def test_an_ensemble_of_different_tails_is_refused():
    for other in (noise(8.0, 1.0), kasuri.Gaussian()):
        with pytest.raises(ValueError, match="degrees of freedom"):
            kasuri.prediction.ensemble(members_of(noise(9.0, 1.0), other))


def test_noise_without_a_variance_cannot_be_summarised():
    bnn = kasuri.bayesianize(nn.Linear(3, 1), kasuri.MeanField())
    pred = kasuri.predict(bnn, torch.randn(4, 3), 5, likelihood=kasuri.GammaGaussian((1.0, 1.0)))
    assert pred.std.isinf().all()
    with pytest.raises(ValueError, match="2 degrees of freedom"):
        pred.interval()

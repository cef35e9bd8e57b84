"""The tail of importance weights."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

import kasuri
from kasuri.diagnostics import k_hat, posterior_k_hat
from kasuri.diagnostics.reference import LogJoint, conjugate
from kasuri.diagnostics.reference.pareto import fit_pareto


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.2, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_the_fit_finds_the_law_that_numbers_come_from(shape, scale):
    x = stats.genpareto.rvs(shape, scale=scale, size=5000, random_state=1)
    found = fit_pareto(torch.as_tensor(x))
    error = (1 + max(shape, 0)) / math.sqrt(5000)  # asymptotic, of maximum likelihood
    assert abs(found.shape - shape) < 5 * error
    assert found.scale == pytest.approx(scale, rel=0.12)


@pytest.mark.parametrize("shape", [0.1, 0.7])
def test_the_fit_is_about_as_good_as_maximum_likelihood(shape):
    x = stats.genpareto.rvs(shape, size=200, random_state=2)
    best, _, scale = stats.genpareto.fit(x, floc=0)
    found = fit_pareto(torch.as_tensor(x))

    def likelihood(k, s):
        return stats.genpareto.logpdf(x, k, scale=s).sum()

    assert likelihood(*found) > likelihood(best, scale) - 0.5


@pytest.mark.parametrize("wrong", [torch.ones(4), torch.zeros(9), torch.ones(3, 3)])
def test_what_has_no_tail_is_refused(wrong):
    with pytest.raises(ValueError, match="at least five"):
        fit_pareto(wrong)
    with pytest.raises(ValueError, match="at least 25"):
        k_hat(wrong.reshape(-1))


@pytest.mark.parametrize(
    ("width", "low", "high"), [(1.0, -math.inf, 0.3), (1.4, -math.inf, 0.4), (0.55, 0.5, 1.0)]
)
def test_k_of_normal_proposals(width, low, high):
    """Of N(0, 1) by draws of N(0, s²): ratios have moments of order below 1/(1 - s²), so k = 1 - s²."""
    torch.manual_seed(0)
    x = width * torch.randn(20000, dtype=torch.float64)
    logs = -0.5 * x.square() + 0.5 * (x / width).square()
    assert low <= k_hat(logs) < high


def test_degenerate_weights():
    assert k_hat(torch.full((100,), 3.0)) == -math.inf
    assert k_hat(torch.linspace(0, 1e5, 100)) == math.inf
    spoilt = torch.zeros(100)
    spoilt[3] = math.nan
    assert k_hat(spoilt) == math.inf
    one = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert k_hat(one + 1000) == pytest.approx(k_hat(one), abs=1e-3)


def linear(family, temperature=1.0):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    data = x, x.sum(1, keepdim=True) + 0.5 * torch.randn(40, 1)
    bnn = kasuri.bayesianize(nn.Linear(3, 1, bias=False), family)
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.5), kasuri.Normal(1.0), 40, temperature)
    return elbo, LogJoint(elbo, data)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_a_posterior_that_is_right_has_a_small_k_and_a_narrow_one_a_large_one(temperature):
    elbo, joint = linear(kasuri.FullNormal(), temperature)
    exact = conjugate(joint).exact
    q = dict(kasuri.named_posteriors(elbo.bnn))["weight"]
    with torch.no_grad():
        q.loc.copy_(exact.mean.reshape(1, 3))
        factor = exact.scale_tril.float()
        for wide, (low, high) in ((1.0, (-math.inf, 0.5)), (0.1, (0.7, 9e9))):
            q.rsample = lambda f=wide * factor: q.loc + (f @ torch.randn(3)).reshape(1, 3)
            law = torch.distributions.MultivariateNormal(
                exact.mean.float(), scale_tril=wide * factor
            )
            q.log_prob = lambda w, law=law: law.log_prob(w.reshape(-1))
            assert low <= posterior_k_hat(joint, 800) < high


def test_densities_of_families_are_those_of_torch():
    for family in (kasuri.MeanField(scale=0.3), kasuri.KTied(rank=2, scale=0.3)):
        torch.manual_seed(0)
        q = family(torch.randn(4, 3))
        w = torch.randn(4, 3)
        expected = torch.distributions.Normal(q.mean, q.scale).log_prob(w).sum()
        torch.testing.assert_close(q.log_prob(w), expected)


def test_a_family_without_density_has_no_k():
    _, joint = linear(kasuri.MatrixNormalDiagonal())
    assert posterior_k_hat(joint, 30) is None

"""KL divergences of radii, against quadrature of scipy's densities."""

import math

import pytest
import torch
from scipy import stats

from kasuri.posteriors.radial import radial_kl
from kasuri.posteriors.radial.positive import Gamma, LogNormal, Weibull
from tests.radial.oracles import LAWS, frozen, kl, tensor

BY_NAME = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
LOG_NORMAL = pytest.mark.parametrize("name", ["log-normal", "wide log-normal"])


@BY_NAME
@pytest.mark.parametrize(("shape", "scale"), [(0.5, 0.3), (2.0, 1.7)])
def test_to_gamma(law, shape, scale):
    exact = kl(frozen(law), stats.gamma(shape, scale=scale))
    assert radial_kl.to_gamma(law, shape, scale).item() == pytest.approx(exact, rel=1e-6)


@BY_NAME
@pytest.mark.parametrize(("shape", "scale"), [(0.7, 0.3), (2.0, 1.7)])
def test_to_weibull(law, shape, scale):
    exact = kl(frozen(law), stats.weibull_min(shape, scale=scale))
    assert radial_kl.to_weibull(law, shape, scale).item() == pytest.approx(exact, rel=1e-6)


@LOG_NORMAL
@pytest.mark.parametrize(("shape", "scale"), [(0.5, 0.3), (2.0, 1.7)])
def test_to_inverse_gamma(name, shape, scale):
    law = LAWS[name]
    exact = kl(frozen(law), stats.invgamma(shape, scale=scale))
    assert radial_kl.to_inverse_gamma(law, shape, scale).item() == pytest.approx(exact, rel=1e-6)


@LOG_NORMAL
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_to_half_cauchy(name, scale):
    law = LAWS[name]
    exact = kl(frozen(law), stats.halfcauchy(scale=scale))
    assert radial_kl.to_half_cauchy(law, scale).item() == pytest.approx(exact, rel=1e-6)


def test_a_distribution_is_no_distance_from_itself():
    one = tensor(0.7)
    assert radial_kl.to_gamma(Gamma(one, one), math.exp(0.7), 1.0).abs() < 1e-14
    assert radial_kl.to_weibull(Weibull(one, one), math.exp(0.7), math.exp(0.7)).abs() < 1e-14


def test_the_augmented_form_pays_for_the_factors_as_well():
    """Above the direct one for any two factors; and the smallest it can be is still above."""
    torch.manual_seed(0)
    alpha, beta = (LogNormal(*torch.randn(2, 1000, dtype=torch.float64)) for _ in range(2))
    variance = (alpha.log_variance.exp() + beta.log_variance.exp()) / 4
    z = LogNormal((alpha.loc + beta.loc) / 2, variance.log())
    for scale in (0.1, 1.0):
        direct = radial_kl.to_half_cauchy(z, scale)
        assert (direct > 0).all()
        assert (radial_kl.to_half_cauchy_augmented(alpha, beta, scale) > direct).all()


def best(divergence, start):
    """The smallest value of a divergence over the parameters of log-normal distributions."""
    parameters = [part.clone().requires_grad_() for part in start]
    optimizer = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = divergence(parameters)
        value.backward()
        return value

    optimizer.step(closure)
    return divergence(parameters).item()


def test_what_a_radius_without_data_costs():
    """0.021 nats in the direct form and 0.307 in the augmented one, the best a log-normal law can do."""
    zero = tensor(0.0)
    direct = best(lambda p: radial_kl.to_half_cauchy(LogNormal(*p), 1.0), [zero, zero])
    augmented = best(
        lambda p: radial_kl.to_half_cauchy_augmented(LogNormal(*p[:2]), LogNormal(*p[2:]), 1.0),
        [zero] * 4,
    )
    assert 0 < direct < 0.021
    # each factor at variance 2 and mean ½ of the scale: Σ over both of log Γ(½) + ½ log 2 + 1 - ½ log 4πe
    exact = 2 * (math.lgamma(0.5) + 0.5 * math.log(2) + 1 - 0.5 * math.log(4 * math.pi * math.e))
    assert augmented == pytest.approx(exact, rel=1e-6)

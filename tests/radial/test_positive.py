"""Log-normal, Gamma and Weibull numbers: moments, entropies and modes against scipy; draws."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import optimize
from torch.fx.experimental.proxy_tensor import make_fx

from kasuri.posteriors.radial.positive import (
    Gamma,
    LogNormal,
    Weibull,
    sum_log_entropy,
    weibull_log_concentration,
)
from kasuri.posteriors.radial.radii import GammaRadii, LogNormalRadii, WeibullRadii
from tests.radial.oracles import LAWS, expectation, frozen, tensor

BY_NAME = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


@BY_NAME
def test_moments_and_entropy_are_those_of_scipy(law):
    q = frozen(law)
    mean_log = expectation(q, math.log)
    assert law.mean_log().item() == pytest.approx(mean_log, abs=1e-7)
    entropy = expectation(q, lambda z: -q.logpdf(z)) - mean_log
    assert law.log_entropy().item() == pytest.approx(entropy, abs=1e-7)
    for power in (0.5, 1, 1.7, 2):
        moment = expectation(q, lambda z, power=power: z**power)
        assert law.log_moment(power).exp().item() == pytest.approx(moment, rel=1e-6)
    assert law.growth().exp().item() == pytest.approx(q.moment(2) / q.mean() ** 2, rel=1e-9)


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("name", ["log-normal", "gamma", "weibull"])
def test_log_mode_is_where_the_density_of_a_power_is_highest(name, power):
    law = LAWS[name]
    q = frozen(law)
    # density of y = z^p at u = log z, up to a constant: p(z) z^(1-p)
    best = optimize.minimize_scalar(
        lambda u: -q.logpdf(math.exp(u)) - (1 - power) * u, bounds=(-4, 4), method="bounded"
    )
    assert law.log_mode(power).item() == pytest.approx(best.x, abs=1e-4)


def test_a_density_that_falls_from_0_on_has_its_mode_there():
    assert LAWS["gamma below 1"].log_mode() == -math.inf
    assert LAWS["weibull below 1"].log_mode() == -math.inf


def test_large_concentrations_lose_no_digits():
    """The log of a Gamma variable tends to N(-1/2a, 1/a), and moments of order p to 1 + p(p-1)/2a."""
    for log_a in (13.0, 14.0, 25.0):
        law, a = Gamma(tensor(0.0), tensor(log_a)), math.exp(log_a)
        normal = 0.5 * math.log(2 * math.pi * math.e / a)
        assert law.log_entropy().item() == pytest.approx(normal, abs=1e-6)
        assert law.log_moment(1.5).item() == pytest.approx(0.375 / a, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("std", [0.1, 0.5, 1.0, 1.57, 2.0])
@pytest.mark.parametrize("loc", [-2.0, 0.0, 0.7])
def test_softplus_is_exact_where_gauss_hermite_is_not_quite(std, loc):
    law = LogNormal(tensor(loc), tensor(2 * math.log(std)))
    exact = expectation(frozen(law), lambda z: np.log1p(z**2 * math.exp(-0.6)))
    ours = law.mean_softplus(2.0, 0.6).item()
    assert ours == pytest.approx(exact, abs=5e-8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    gauss = np.logaddexp(0, 2 * (loc + std * nodes) - 0.6) @ weights / weights.sum()
    assert gauss == pytest.approx(exact, abs=1e-4)
    if std == 2.0:
        assert abs(ours - exact) < 0.1 * abs(gauss - exact)


@pytest.mark.parametrize("std", [0.02, 0.5999, 0.6001, 0.9, 1.4999, 1.5001, 2.0, 3.0, 10.0, 54.0])
@pytest.mark.parametrize("loc", [-40.0, -2.0, 0.0, 0.7, 25.0])
def test_softplus_is_exact_however_wide(std, loc):
    law = LogNormal(tensor(loc), tensor(2 * math.log(std)))
    exact = mpmath.quad(
        lambda x: mpmath.log1p(mpmath.exp(2 * (loc + std * x) - 0.6)) * mpmath.npdf(x),
        sorted({-38.0, -8.0, 0.0, 8.0, 38.0, *(p for p in ((0.3 - loc) / std,) if abs(p) < 38)}),
    )
    assert law.mean_softplus(2.0, 0.6).item() == pytest.approx(float(exact), abs=1e-9, rel=1e-9)


def test_softplus_has_the_same_slopes_on_both_sides_of_its_two_forms():
    found = []
    for std in (1.4999999, 1.5000001):
        loc, log_variance = (tensor(v).requires_grad_() for v in (0.4, 2 * math.log(std)))
        value = LogNormal(loc, log_variance).mean_softplus(2.0, 0.6)
        found.append([value, *torch.autograd.grad(value, (loc, log_variance))])
    for one, other in zip(*found, strict=True):
        assert one.item() == pytest.approx(other.item(), abs=1e-6)


@pytest.mark.parametrize("growth", [1e-8, 1e-3, 0.5, 3.0])
def test_the_concentration_of_a_weibull_variable_is_found(growth):
    k = weibull_log_concentration(tensor(growth))
    assert Weibull(tensor(0.0), k).growth().item() == pytest.approx(growth, rel=1e-3)


def test_entropy_of_sums_with_a_common_part_is_that_of_the_dense_normal():
    torch.manual_seed(0)
    local = LogNormal(*torch.randn(2, 3, 5, dtype=torch.float64))
    common = LogNormal(*torch.randn(2, 3, 1, dtype=torch.float64))
    covariance = torch.diag_embed(local.log_variance.exp()) + common.log_variance.exp().unsqueeze(
        -1
    )
    dense = torch.distributions.MultivariateNormal(local.loc + common.loc, covariance)
    torch.testing.assert_close(sum_log_entropy(local, common), dense.entropy())
    hidden = LogNormal(local.loc, local.log_variance - 200)  # e^200 in the determinant
    assert sum_log_entropy(hidden, common).isfinite().all()


def radii(name: str):
    law = LAWS[name]
    parts = [part.reshape(1).expand(200_000) for part in vars(law).values()]
    kind = {LogNormal: LogNormalRadii, Gamma: GammaRadii, Weibull: WeibullRadii}[type(law)]
    return kind(type(law)(*parts), *((2,) if kind is LogNormalRadii else ()))


@BY_NAME
def test_draws_have_the_moments_of_the_law(law):
    torch.manual_seed(1)
    name = next(name for name, one in LAWS.items() if one is law)
    draws = radii(name).rsample_log().detach()
    error = draws.std().item() / len(draws) ** 0.5
    assert abs(draws.mean().item() - law.mean_log().item()) < 5 * error
    root, mean = (0.5 * draws).exp(), law.log_moment(0.5).exp().item()
    assert abs(root.mean().item() - mean) < 5 * root.std().item() / len(root) ** 0.5


@BY_NAME
def test_gradients_of_draws_are_unbiased(law):
    """Of E √z in every parameter, against the derivative of the moment."""
    torch.manual_seed(2)
    name = next(name for name, one in LAWS.items() if one is law)
    q = radii(name)
    root = (0.5 * q.rsample_log()).exp()
    drawn = torch.autograd.grad(root.sum(), list(q.parameters()))
    exact = torch.autograd.grad(q.law().log_moment(0.5).exp().sum(), list(q.parameters()))
    for ours, true in zip(drawn, exact, strict=True):
        error = ours.std() / len(root) ** 0.5
        assert (ours.mean() - true.mean()).abs() < 5 * error


def test_parts_that_no_member_of_a_vmap_needs_are_left_out(monkeypatch):
    zero = torch.zeros(4, dtype=torch.float64)
    wide = zero + torch.tensor([0.0, 0.0, 0.0, 5.0], dtype=torch.float64)
    each = torch.vmap(lambda one: LogNormal(one, one).mean_softplus(2.0, 0.6))
    alone = torch.stack([LogNormal(one, one).mean_softplus(2.0, 0.6) for one in wide])
    assert torch.allclose(each(wide), alone, rtol=1e-12)

    def refuse(*args):
        raise AssertionError("nobody is wide")

    monkeypatch.setattr("kasuri.numerics.softplus._wide", refuse)
    assert torch.allclose(each(zero), alone[:1].expand(4), rtol=1e-9)
    with pytest.raises(AssertionError, match="nobody"):
        each(wide)


def test_programs_are_made_for_all_numbers():
    def f(loc, log_variance):
        return LogNormal(loc, log_variance).mean_softplus(2.0, 0.3)

    loc = torch.zeros(3, dtype=torch.float64)
    graph = make_fx(f)(loc, loc - 4)
    assert torch.allclose(graph(loc, loc + 3), f(loc, loc + 3))
    through = torch.func.functionalize(f)(loc, loc + 3)
    assert torch.allclose(through, f(loc, loc + 3))

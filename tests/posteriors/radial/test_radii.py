"""Log-normal radii: moments, entropies and modes against scipy, draws, KLs against quadrature."""

import math

import mpmath
import pytest
import torch
from scipy import optimize, stats

from kasuri.posteriors.radial import radii
from kasuri.posteriors.radial.radii import LogNormal, Radii, joint_log_entropy
from tests.posteriors.radial.oracles import LAWS, expectation, frozen, kl, tensor

BY_NAME = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


@BY_NAME
def test_moments_and_entropy_are_those_of_scipy(law):
    q = frozen(law)
    mean_log = expectation(q, math.log)
    assert law.loc.item() == pytest.approx(mean_log, abs=1e-7)
    entropy = expectation(q, lambda z: -q.logpdf(z)) - mean_log
    assert law.log_entropy().item() == pytest.approx(entropy, abs=1e-7)
    assert law.mean().item() == pytest.approx(q.mean(), rel=1e-9)
    assert law.variance().item() == pytest.approx(q.var(), rel=1e-9)
    assert law.growth().exp().item() == pytest.approx(q.moment(2) / q.mean() ** 2, rel=1e-9)


@BY_NAME
def test_log_mode_is_where_the_density_is_highest(law):
    q = frozen(law)
    best = optimize.minimize_scalar(
        lambda u: -q.logpdf(math.exp(u)), bounds=(-7, 4), method="bounded"
    )
    assert law.log_mode().item() == pytest.approx(best.x, abs=1e-4)


def test_entropy_of_sums_with_a_common_part_is_that_of_the_dense_normal():
    torch.manual_seed(0)
    local = LogNormal(*torch.randn(2, 3, 5, dtype=torch.float64))
    common = LogNormal(*torch.randn(2, 3, 1, dtype=torch.float64))
    covariance = torch.diag_embed(local.log_variance.exp()) + common.log_variance.exp().unsqueeze(
        -1
    )
    dense = torch.distributions.MultivariateNormal(local.loc + common.loc, covariance)
    torch.testing.assert_close(joint_log_entropy(local, common), dense.entropy())
    hidden = LogNormal(local.loc, local.log_variance - 200)  # e^200 in the determinant
    assert joint_log_entropy(hidden, common).isfinite().all()


@BY_NAME
def test_draws_have_the_law_and_unbiased_gradients(law):
    """Of log z, and of E z in every parameter against the derivative of the mean."""
    torch.manual_seed(1)
    count = 200_000
    parts = [part.reshape(1).expand(count) for part in (law.loc, law.log_variance)]
    q = Radii(LogNormal(*parts))
    drawn = q.rsample_log()
    logs = drawn.detach()
    assert abs(logs.mean() - law.loc) < 5 * logs.std() / count**0.5
    assert abs(logs.var() / law.growth() - 1) < 5 * (2 / count) ** 0.5
    found = torch.autograd.grad(drawn.exp().sum(), list(q.parameters()))
    exact = torch.autograd.grad(q.law().mean().sum(), list(q.parameters()))
    for ours, true in zip(found, exact, strict=True):
        assert (ours.mean() - true.mean()).abs() < 5 * ours.std() / ours.numel() ** 0.5


@BY_NAME
@pytest.mark.parametrize("scale", [0.3, 1.7])
def test_the_augmented_kl_is_that_of_two_factors_at_their_best(law, scale):
    """z² = αβ with log-normal factors of one variance, against scipy; how their means share is optimised."""
    deviation = math.sqrt(2 * law.growth().item())

    def both(shift):
        alpha = stats.lognorm(deviation, scale=math.exp(law.loc + shift))
        beta = stats.lognorm(deviation, scale=math.exp(law.loc - shift))
        return kl(alpha, stats.gamma(0.5, scale=scale**2)) + kl(beta, stats.invgamma(0.5))

    best = optimize.minimize_scalar(both, bounds=(-10, 10), method="bounded").fun
    ours = radii.kl_to_half_cauchy_augmented(law, scale).item()
    assert ours == pytest.approx(best, rel=1e-6)
    assert ours > radii.kl_to_half_cauchy(law, scale).item()


def test_radii_of_older_files_are_products_of_factors():
    factors = torch.randn(2, 3, 2, 4, dtype=torch.float64)  # (loc or log_scale, blocks, factors, n)
    q = Radii(LogNormal(*torch.zeros(2, 3, 4, dtype=torch.float64)))
    q.load_state_dict({"loc": factors[0], "log_scale": factors[1]})
    law = q.law()
    torch.testing.assert_close(law.loc, factors[0].mean(-2))
    torch.testing.assert_close(law.growth(), (2 * factors[1]).exp().sum(-2) / 4)


@BY_NAME
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_kl_to_half_cauchy(law, scale):
    exact = kl(frozen(law), stats.halfcauchy(scale=scale))
    assert radii.kl_to_half_cauchy(law, scale).item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("std", "error"), [(0.02, 1e-9), (1.0, 1e-9), (2.0, 1e-6), (3.0, 1e-4)])
@pytest.mark.parametrize("loc", [-30.0, -1.1, 0.0, 0.7, 12.0])
def test_the_mean_over_nodes_is_exact_for_every_reasonable_width(loc, std, error):
    """E log(1 + z²), and its derivatives, against mpmath."""
    given = [tensor(loc).requires_grad_(), tensor(2 * math.log(std)).requires_grad_()]
    law = LogNormal(*given)
    value = radii.kl_to_half_cauchy(law, 1.0)
    found = (value + law.log_entropy() + law.loc).item() - math.log(math.pi / 2)
    bend = -loc / std
    places = sorted({-38.0, -8.0, 0.0, 8.0, 38.0, *([bend] if abs(bend) < 38 else [])})

    def mean(function):
        return float(
            mpmath.quad(lambda e: function(2 * (loc + std * e), e) * mpmath.npdf(e), places)
        )

    assert found == pytest.approx(mean(lambda u, _: mpmath.log1p(mpmath.exp(u))), abs=error)
    slopes = [slope.item() for slope in torch.autograd.grad(value, given)]
    in_loc = 2 * mean(lambda u, _: 1 / (1 + mpmath.exp(-u))) - 1
    in_logs = std * mean(lambda u, e: e / (1 + mpmath.exp(-u))) - 0.5
    assert slopes == pytest.approx([in_loc, in_logs], abs=10 * error)


def test_what_a_radius_without_data_costs():
    """0.021 nats in the direct form and 1 - log 2 in the augmented one, the best a log-normal law can do."""

    def best(divergence):
        start = [0.0, 0.0]
        return optimize.minimize(
            lambda p: divergence(LogNormal(*map(tensor, p)), 1.0).item(), start
        )

    assert 0 < best(radii.kl_to_half_cauchy).fun < 0.021
    augmented = best(radii.kl_to_half_cauchy_augmented)
    assert augmented.fun == pytest.approx(1 - math.log(2), rel=1e-6)

"""What the paper on radial and directional posteriors prints, and the evidence that it cannot be meant so.

Those about ratios of Bessel functions and about sampling are with the von Mises-Fisher distribution.
"""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import kasuri
from kasuri.posteriors.radial import radii
from kasuri.posteriors.radial.polar import concentration_at
from tests.posteriors.radial.oracles import kl, tensor

MU, SIGMA = 0.6, 0.8
SCIPY = stats.lognorm(SIGMA, scale=math.exp(MU))


def test_the_printed_normaliser_has_the_bessel_function_twice():
    """C_d = κ^ν I_ν / ((2π)^{d/2} I_ν): in three dimensions the density must integrate to 1."""
    kappa, nu = 2.0, 0.5
    cosines, weights = np.polynomial.legendre.leggauss(60)
    surface = 2 * math.pi * weights @ np.exp(kappa * cosines)
    printed = kappa**nu / (2 * math.pi) ** 1.5
    right = printed / special.iv(nu, kappa)
    assert surface * right == pytest.approx(1.0, rel=1e-12)
    assert surface * printed > 1.5


def test_the_density_of_a_row_lacks_the_jacobian():
    """Equation 3, p(‖w‖) p(w/‖w‖), is no density of w: in the plane it integrates to E ‖w‖."""
    grid = torch.linspace(-20, 20, 2001, dtype=torch.float64)
    points = torch.cartesian_prod(grid, grid)
    radius = points.norm(dim=-1).clamp(min=1e-12)
    radial = torch.distributions.LogNormal(tensor(MU), tensor(0.3)).log_prob(radius)
    kappa = 2.0
    directional = kappa * points[:, 0] / radius - math.log(2 * math.pi * special.i0(kappa))
    cell = (grid[1] - grid[0]) ** 2
    printed = (radial + directional).exp().sum() * cell
    right = ((radial + directional).exp() / radius).sum() * cell
    assert right.item() == pytest.approx(1.0, abs=1e-3)
    assert printed.item() == pytest.approx(math.exp(MU + 0.045), rel=1e-3)


def test_the_printed_factors_do_not_make_a_half_cauchy_variable():
    """√z = αβ is printed, z² = αβ is right, and γ² is a scale."""
    rng, gamma, n = np.random.default_rng(0), 0.7, 400_000
    alpha = rng.gamma(0.5, gamma**2, n)
    beta = 1 / rng.gamma(0.5, 1.0, n)
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    true = stats.halfcauchy(scale=gamma).ppf(levels)
    np.testing.assert_allclose(np.quantile(np.sqrt(alpha * beta), levels), true, rtol=0.03)
    printed = np.quantile((alpha * beta) ** 2, levels)
    assert printed[0] < 1e-3 * true[0]
    assert printed[-1] > 100 * true[-1]
    as_rate = np.sqrt(alpha / gamma**4 * beta)
    assert np.quantile(as_rate, 0.5) == pytest.approx(true[2] / gamma**2, rel=0.03)


def test_equation_50_has_two_slips():
    """Weibull: log(λ - γ/k) for log λ - γ/k, and Γ(k_q/k_p + 1) for Γ(k_p/k_q + 1)."""
    k, lam, k_p, lam_p = 2.5, 1.4, 0.8, 0.6
    exact = kl(stats.weibull_min(k, scale=lam), stats.weibull_min(k_p, scale=lam_p))

    def formula(log, gamma):
        terms = math.log(k) - k * math.log(lam) - math.log(k_p) + k_p * math.log(lam_p)
        return terms + (k - k_p) * log + (lam / lam_p) ** k_p * gamma - 1

    right = math.log(lam) - np.euler_gamma / k, math.gamma(k_p / k + 1)
    wrong = math.log(lam - np.euler_gamma / k), math.gamma(k / k_p + 1)
    assert formula(*right) == pytest.approx(exact, rel=1e-7)
    for log, gamma in ((wrong[0], right[1]), (right[0], wrong[1]), wrong):
        assert abs(formula(log, gamma) - exact) > 0.02


def test_equation_51_has_a_wrong_sign_and_loses_pi():
    """Log-normal to Gamma(a, scale θ)."""
    a, theta = 0.5, 0.3
    exact = kl(SCIPY, stats.gamma(a, scale=theta))

    def formula(sign, two_pi):
        first = a * math.log(theta) + math.lgamma(a) - a * MU
        paid = math.exp(sign * MU + SIGMA**2 / 2) / theta
        return first + paid - (math.log(two_pi * SIGMA**2) + 1) / 2

    assert formula(+1, 2 * math.pi) == pytest.approx(exact, rel=1e-7)
    assert formula(+1, 2) - exact == pytest.approx(0.5 * math.log(math.pi), rel=1e-6)
    assert abs(formula(-1, 2) - exact) > 1


def test_equation_52_has_a_wrong_sign_and_a_reciprocal():
    """Log-normal to inverse-Gamma(a, β)."""
    a, beta = 0.5, 0.3
    exact = kl(SCIPY, stats.invgamma(a, scale=beta))

    def formula(sign, factor, two_pi):
        first = -a * math.log(beta) + math.lgamma(a) + a * MU
        paid = factor * math.exp(sign * MU + SIGMA**2 / 2)
        return first + paid - (math.log(two_pi * SIGMA**2) + 1) / 2

    assert formula(-1, beta, 2 * math.pi) == pytest.approx(exact, rel=1e-7)
    assert abs(formula(+1, 1 / beta, 2) - exact) > 1
    assert abs(formula(-1, 1 / beta, 2 * math.pi) - exact) > 1


@pytest.mark.parametrize("rows", [3, 30])
def test_equation_12_counts_the_layers_factors_once_per_row(rows):
    """Both globals are inside the sum over rows; there is one of each in a layer."""
    torch.manual_seed(0)
    q = kasuri.Radial()(torch.randn(rows, 6, dtype=torch.float64))
    prior = kasuri.RadialPrior(form="augmented")
    common = radii.kl_to_half_cauchy_augmented(q.rows.layer.law(), 1.0).sum()
    own = radii.kl_to_half_cauchy_augmented(q.rows.local.law(), 1.0).sum()
    own = own + q.rows.directions.kl(concentration_at(6, 0.5)).sum()
    torch.testing.assert_close(q.kl(prior), own + common)
    extra = (own + rows * common - q.kl(prior)) / common
    assert extra.item() == pytest.approx(rows - 1, rel=1e-6)


def test_equation_16_multiplies_densities_of_the_same_numbers():
    """What is sampled is a product of two matrices: its rows do not have the radii of the rows."""
    torch.manual_seed(0)
    q = kasuri.Radial(grouping="double", scale=1e-4)(torch.randn(8, 5, dtype=torch.float64))
    lengths = q.rsample().norm(dim=-1)
    radius = q.rows.radius().mean()
    assert (lengths / radius - 1).abs().max() > 0.2, "two thousand times the noise"
    assert 2 * q.numel() < sum(p.numel() for p in q.parameters()), "more numbers than weights"
    with pytest.raises(TypeError, match="no density"):
        q.entropy()


def test_the_mode_of_the_product_is_that_of_the_square():
    """The recipe gives the log-mode of z² = αβ; half of it is not that of z, and orders otherwise."""
    loc, variance = torch.tensor([[0.0, 0.5], [0.1, 0.475]], dtype=torch.float64)
    q = kasuri.Radial()(torch.randn(2, 4, dtype=torch.float64))
    with torch.no_grad():
        q.rows.local.loc.copy_(loc)
        q.rows.local.log_scale.copy_(0.5 * variance.log())
    mode = q.log_modes("rows")
    square = radii.LogNormal(2 * loc, (4 * variance).log())
    product = square.log_mode() / 2
    torch.testing.assert_close(mode, loc - variance)
    torch.testing.assert_close(product, (2 * loc - 4 * variance) / 2)
    assert mode.argmax() != product.argmax()


def test_a_shared_concentration_does_not_correlate_rows():
    """Two rows with the same mean direction and the same κ: their noise is independent."""
    torch.manual_seed(0)
    row = torch.randn(5, dtype=torch.float64)
    q = kasuri.Radial(scale=0.3)(torch.stack([row, row]))
    with torch.no_grad():
        q.rows.layer.log_scale.fill_(-20)  # the factor of the layer does
    draws = torch.vmap(lambda _: q.rsample(), randomness="different")(torch.zeros(40_000)).detach()
    one, other = (draws - draws.mean(0)).unbind(1)
    correlation = (one * other).mean(0) / (one.std(0) * other.std(0))
    assert correlation.abs().max() < 5 / 200

"""Moments of functions of normal variables against numerical integration and draws."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats

from benchmarks.moments import probit_softmax
from kasuri.numerics import gaussian_moments as gm
from kasuri.prediction.moments.points import normal_points, spread_out

CASES = [(0.3, 0.5), (-1.2, 0.8), (2.0, 0.1), (0.0, 2.0)]


def truth(function, mean, variance, power=1):
    scale = math.sqrt(variance)

    def integrand(z):
        return function(mean + scale * z) ** power * stats.norm.pdf(z)

    kink = -mean / scale
    found, _ = integrate.quad(
        integrand, -12, 12, points=[kink] if abs(kink) < 12 else None, limit=400
    )
    return found


@pytest.mark.parametrize(("mean", "variance"), CASES)
@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_rectified_moments(mean, variance, slope):
    m, v = torch.tensor([mean], dtype=torch.float64), torch.tensor([variance], dtype=torch.float64)

    def rectify(z):
        return max(z, slope * z)

    first, second = (truth(rectify, mean, variance, power) for power in (1, 2))
    mean, variance = gm.rectified(m, v, slope)
    assert mean.item() == pytest.approx(first, abs=1e-9)
    assert variance.item() == pytest.approx(second - first**2, abs=1e-9)


@pytest.mark.parametrize(("mean", "variance"), CASES)
@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu])
def test_smooth_moments(mean, variance, function):
    m, v = torch.tensor([mean], dtype=torch.float64), torch.tensor([variance], dtype=torch.float64)

    def scalar(z):
        return function(torch.tensor(z, dtype=torch.float64)).item()

    first, second = (truth(scalar, mean, variance, power) for power in (1, 2))
    centre, spread = gm.smooth_moments(function, m, v)
    tolerance = 0.03 if variance > 1 else 0.004  # the widest normal is hard for seven nodes
    assert centre.item() == pytest.approx(first, abs=tolerance)
    assert spread.item() == pytest.approx(second - first**2, abs=2 * tolerance)


def test_no_variance_is_no_change():
    x = torch.tensor([-2.0, 0.0, 3.0])
    zero = torch.zeros(3)
    for found, expected in zip(gm.rectified(x, zero), (x.relu(), zero), strict=True):
        assert torch.equal(found, expected)
    assert torch.allclose(gm.smooth_moments(torch.tanh, x, zero)[0], x.tanh())
    pairs = zip(gm.larger(x, zero, -x, zero), (torch.maximum(x, -x), zero), strict=True)
    for found, expected in pairs:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("far", [-1e3, -1e15, -1e30])
def test_what_is_far_below_everything_does_not_count(far):
    """A padded place, on either side."""
    near = [torch.tensor([v], dtype=torch.float64) for v in (0.3, 0.5)]
    place = [torch.tensor([v], dtype=torch.float64) for v in (far, 0.0)]
    for pair in ((*near, *place), (*place, *near)):
        mean, variance = gm.larger(*pair)
        assert mean.item() == 0.3
        assert variance.item() == pytest.approx(0.5, rel=1e-12)


def test_the_larger_of_two():
    draws = torch.randn(400_000, 2, dtype=torch.float64) * torch.tensor([0.7, 1.5]) + torch.tensor(
        [0.4, -0.2]
    )
    largest = draws.amax(-1)
    args = [torch.tensor([one], dtype=torch.float64) for one in (0.4, 0.49, -0.2, 2.25)]
    mean, variance = gm.larger(*args)
    assert mean.item() == pytest.approx(largest.mean().item(), abs=0.006)
    assert variance.item() == pytest.approx(largest.var().item(), rel=0.01)


def test_softmax_variance_is_that_of_small_noise():
    mean, scale = torch.tensor([0.5, -1.0, 0.2]), torch.tensor([0.03, 0.05, 0.02])
    draws = (mean + scale * torch.randn(200_000, 3)).softmax(-1)
    found = gm.softmax_variance(mean.softmax(-1), scale.square(), -1)
    assert torch.allclose(found, draws.var(0), rtol=0.03)


def covariance(size, rank):
    half = torch.randn(size, rank, dtype=torch.float64)
    return half @ half.T


@pytest.mark.parametrize("rank", [4, 2, 1])
def test_factor_of_any_covariance(rank):
    full = covariance(4, rank)
    found = gm.factor(full)
    assert torch.allclose(found @ found.T, full, atol=1e-10)


def test_probabilities_by_probit_and_by_points():
    mean, full = torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64), covariance(3, 3)
    draws = (
        torch.distributions.MultivariateNormal(mean, full).sample((400_000,)).softmax(-1).mean(0)
    )
    assert torch.allclose(probit_softmax(mean, full), draws, atol=0.03)
    points = spread_out(mean.unsqueeze(0), full.unsqueeze(0), normal_points(3))
    assert torch.allclose(points.softmax(-1).mean(0)[0], draws, atol=0.004)


def test_points_have_the_moments_they_stand_for():
    mean, full = (
        torch.randn(2, 3, dtype=torch.float64),
        torch.stack([covariance(3, 3), covariance(3, 2)]),
    )
    points = spread_out(mean, full, normal_points(3))
    away = points - mean
    assert torch.allclose(points.mean(0), mean)
    assert torch.allclose(torch.einsum("sbi,sbj->bij", away, away) / len(away), full, atol=1e-8)

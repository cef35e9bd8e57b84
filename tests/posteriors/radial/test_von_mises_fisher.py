"""Functions of the concentration against Bessel functions with fifty digits, and their derivatives."""

import itertools
import math

import mpmath
import pytest
import torch
from torch.func import jacrev, vmap

from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.von_mises_fisher import debye_polynomials

DIMENSIONS = [2, 3, 4, 5, 10, 20, 29, 30, 37, 82, 100, 202, 500, 802, 1000, 4000]
KAPPAS = [0.0, 1e-8, 1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e5]
TOLERANCE = 1e-12


def exact(kappa, d):
    """(ℓ, KL to uniform, A, A', A'') with fifty digits."""
    kappa, order = mpmath.mpf(kappa), mpmath.mpf(d) / 2 - 1
    if kappa == 0:
        return mpmath.mpf(0), mpmath.mpf(0), mpmath.mpf(0), 1 / mpmath.mpf(d), mpmath.mpf(0)
    low, high = (mpmath.besseli(order + i, kappa, maxterms=10**6) for i in (0, 1))
    ell = mpmath.loggamma(order + 1) + order * mpmath.log(2 / kappa) + mpmath.log(low)
    ratio = high / low
    slope = 1 - ratio**2 - (d - 1) * ratio / kappa
    curvature = -2 * ratio * slope - (d - 1) * (slope - ratio / kappa) / kappa
    return ell, kappa * ratio - ell, ratio, slope, curvature


@pytest.fixture(scope="module")
def oracle():
    with mpmath.workdps(60):
        pairs = itertools.product(DIMENSIONS, KAPPAS)
        return {(d, kappa): exact(kappa, d) for d, kappa in pairs}


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def agrees(values, expected, tolerance=TOLERANCE):
    """Relative to each value; 0 must be 0."""
    for one, other in zip(values.tolist(), expected, strict=True):
        assert abs(one - other) <= tolerance * abs(other), (one, float(other))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_values(oracle, d):
    kappa = float64(*KAPPAS)
    found = [oracle[d, one] for one in KAPPAS]
    of = vmf.terms(kappa, d)
    agrees(of.ell, [ell for ell, *_ in found])
    agrees(of.divergence, [one[1] for one in found])
    agrees(of.resultant, [one[2] for one in found])
    agrees(of.slope, [one[3] for one in found])
    spread = [one[2] / mpmath.mpf(k) if k else one[3] for one, k in zip(found, KAPPAS, strict=True)]
    agrees(of.spread, spread)
    surface = mpmath.log(2) + mpmath.mpf(d) / 2 * mpmath.log(mpmath.pi) - mpmath.loggamma(d / 2)
    agrees(float64(vmf.log_surface(d)), [surface])
    agrees(vmf.entropy(float64(0.0), d), [surface])


@pytest.mark.parametrize("d", DIMENSIONS)
def test_first_second_and_third_derivatives(oracle, d):
    kappa = float64(*KAPPAS).requires_grad_()
    found = [oracle[d, one] for one in KAPPAS]
    slopes, bends = [one[3] for one in found], [one[4] for one in found]

    def slope_of(values):
        return torch.autograd.grad(values.sum(), kappa, create_graph=True)[0]

    of = vmf.terms(kappa, d)
    first = slope_of(of.ell)
    second = slope_of(first)
    agrees(first, [one[2] for one in found])
    agrees(second, slopes)
    # a difference of numbers of the size of A'/κ
    rough = {"rtol": 1e-6, "atol": 0.0}
    third = float64(*map(float, bends))
    torch.testing.assert_close(slope_of(second), third, **rough)
    torch.testing.assert_close(slope_of(slope_of(of.resultant)), third, **rough)
    first = slope_of(of.divergence)
    agrees(first, [k * s for k, s in zip(KAPPAS, slopes, strict=True)])
    expected = [s + k * b for k, s, b in zip(KAPPAS, slopes, bends, strict=True)]
    # the sum passes through 0: relative to its terms
    assert torch.allclose(slope_of(first), float64(*map(float, expected)), rtol=1e-9, atol=1e-15)


FACTORS = [0.0, 1e-3, 0.3, 0.9, 1 - 1e-6, 1.0, 1.01, 1.7, 20.0]


@pytest.mark.parametrize("d", [2, 3, 20, 60, 500, 4000])
@pytest.mark.parametrize("kappa", [1e-3, 0.3, 5.0, 100.0, 5e3])
def test_divergences_of_any_size(d, kappa):
    """With their derivatives; up to rounding of the terms, which are of the size of κ."""
    with mpmath.workdps(60):
        low = exact(kappa, d)
        for factor in FACTORS:
            other = kappa * factor
            high = exact(other, d)
            expected = high[0] - low[0] - (mpmath.mpf(other) - mpmath.mpf(kappa)) * low[2]
            close = dict(rel=1e-11, abs=3e-15 * (kappa + other))
            q, p = float64(kappa).requires_grad_(), float64(other).requires_grad_()
            alike = vmf.kl(q, p, d)
            assert alike.item() == pytest.approx(float(expected), **close)
            turned = vmf.kl(q, p, d, float64(1.5))
            expected += mpmath.mpf(1.5) * other * low[2]
            assert turned.item() == pytest.approx(float(expected), **close)
            slopes = torch.autograd.grad(turned.sum(), (q, p))
            agrees(slopes[0], [(mpmath.mpf(kappa) + mpmath.mpf(other) / 2) * low[3]], 1e-11)
            agrees(slopes[1], [high[2] + low[2] / 2], 1e-11)
            (slope,) = torch.autograd.grad(alike.sum(), q)
            expected = float((mpmath.mpf(kappa) - mpmath.mpf(other)) * low[3])
            rounding = 1e-15 * float(low[2])
            assert slope.item() == pytest.approx(expected, rel=1e-11, abs=rounding)


@pytest.mark.parametrize("d", [2, 3, 10, 4000])
def test_inverse(d):
    kappa = torch.logspace(-6, 6, 25, dtype=torch.float64)
    of = vmf.terms(kappa, d)
    resultant = of.resultant
    # an error of rounding in the resultant is one of eps · A/(κ A') in κ
    condition = resultant / (kappa * of.slope)
    error = (vmf.inverse_mean_resultant(resultant, d) / kappa - 1).abs()
    assert bool((error < 1e-15 * condition + 1e-14).all())
    close = 1 - torch.logspace(
        -15.5, -7, 60, dtype=torch.float64
    )  # κ is (d-1)/2 over the distance to 1
    large = vmf.inverse_mean_resultant(close, d) * (1 - close) * 2 / (d - 1)
    assert bool((large - 1).abs().max() < 1e-6)
    edges = vmf.inverse_mean_resultant(float64(0.0, 1.0, 1.5), d)
    assert edges[:2].tolist() == [0.0, math.inf]
    assert edges[2].isnan()


def test_single_precision_in_and_out_is_double_precision_inside():
    kappa = torch.tensor([0.0, 1e-6, 1.0, 1e5], requires_grad=True)
    for d in (2, 1000):
        for narrow, wide in zip(vmf.terms(kappa, d), vmf.terms(kappa.double(), d), strict=True):
            assert narrow.dtype == torch.float32
            assert torch.equal(narrow, wide.float())
            (grad,) = torch.autograd.grad(narrow.sum(), kappa, retain_graph=True)
            (true,) = torch.autograd.grad(wide.sum(), kappa, retain_graph=True)
            assert torch.equal(grad, true)
    assert vmf.inverse_mean_resultant(torch.tensor(0.5), 3).dtype == torch.float32


def test_extreme_concentrations_stay_finite():
    kappa = float64(0.0, math.exp(-100), 1e12, math.exp(100)).requires_grad_()
    for d in (2, 30, 1000):
        for values in vmf.terms(kappa, d):
            (grad,) = torch.autograd.grad(values.sum(), kappa, retain_graph=True)
            assert values.isfinite().all()
            assert grad.isfinite().all()


@pytest.mark.parametrize("d", [-1, 0, 1])
def test_too_few_dimensions_are_refused(d):
    one = torch.ones(())
    calls = [
        lambda: vmf.terms(one, d),
        lambda: vmf.kl(one, one, d),
        lambda: vmf.inverse_mean_resultant(one / 2, d),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"dimension {d}.*use d >= 2"):
            call()


def test_transforms_of_functions():
    kappa = float64(0.0, 0.5, 20.0)
    d = 7
    slope = vmf.terms(kappa, d).slope
    found = vmap(jacrev(lambda k: vmf.terms(k, d).resultant))(kappa)
    assert torch.allclose(found, slope, rtol=1e-12)
    twice = jacrev(jacrev(lambda k: vmf.terms(k, d).ell.sum()))(kappa)
    assert torch.allclose(twice, slope.diag(), rtol=1e-12)
    bend = vmap(jacrev(jacrev(lambda k: vmf.terms(k, d).divergence)))(kappa)
    again = torch.autograd.functional.hessian(lambda k: vmf.terms(k, d).divergence.sum(), kappa)
    assert torch.allclose(bend.diag(), again, rtol=1e-10)
    other = kappa.flip(0)
    one_by_one = torch.stack([vmf.kl(q, p, d, q / 20) for q, p in zip(kappa, other, strict=True)])
    assert torch.allclose(vmap(lambda q, p: vmf.kl(q, p, d, q / 20))(kappa, other), one_by_one)


def test_expansion_has_the_known_polynomials():
    first, second, *_, sixth = debye_polynomials(6)
    assert second == pytest.approx({2: 1 / 16, 4: -3 / 8, 6: 5 / 16}, rel=1e-14)
    assert first == pytest.approx({1: 1 / 8, 3: -5 / 24}, rel=1e-14)
    known = {6: 103 / 192, 8: -405 / 16, 10: 1677 / 8, 12: -5389 / 8}
    known |= {14: 65385 / 64, 16: -11805 / 16, 18: 19675 / 96}
    assert sixth == pytest.approx(known, rel=1e-14)

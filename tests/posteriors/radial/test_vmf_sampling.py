"""Draws have the law, and their gradients the expectation, that quadrature and closed forms tell."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch.func import jacrev, vmap

import kasuri
from kasuri.posteriors.radial import vmf_sampling as sampling
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.vmf_sampling import cosine_slope

SETTINGS = [(2, 0.0), (2, 0.7), (2, 1e5), (3, 4.0), (5, 0.0), (5, 300.0)]
SETTINGS += [(30, 30.0), (100, 1e5), (1000, 300.0), (4000, 4000.0), (4000, 1e5)]
SIGMAS = 4.5  # every Monte Carlo mean here is within this many standard errors, one in 1e5 not


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def sample_cosine(kappa, d, shape=()):
    return (1 - sampling.sample_gap(kappa.double(), d, (*shape, *kappa.shape))).to(kappa.dtype)


def close(draws, expected):
    """The mean over the first dimension is the expected one, up to its standard error."""
    error = draws.std(0) / len(draws) ** 0.5
    assert bool(((draws.mean(0) - expected).abs() <= SIGMAS * error + 1e-12).all())


def distribution_of_gap(d, kappa):
    """The distribution function of 1 - ω, by integrating the density of the angle on a fine grid."""
    scale = 1 / math.sqrt(math.hypot(d - 2, 2 * kappa) + 0.1)
    mode = math.acos(2 * kappa / (d - 2 + math.hypot(d - 2, 2 * kappa))) if kappa + d > 2 else 1.5
    low, high = max(0.0, mode - 20 * scale), min(math.pi, mode + 20 * scale)
    angle = np.linspace(low, high, 40001)
    with np.errstate(divide="ignore"):
        log = kappa * np.cos(angle) + ((d - 2) * np.log(np.sin(angle)) if d > 2 else 0.0)
    density = np.exp(log - log.max())
    total = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return lambda gap: np.interp(2 * np.arcsin(np.sqrt(gap / 2)), angle, total / total[-1])


@pytest.mark.parametrize(("d", "kappa"), SETTINGS)
def test_cosines_have_the_right_distribution(d, kappa):
    draws = 1 - sample_cosine(torch.full((20000,), kappa, dtype=torch.float64), d)
    assert scipy.stats.kstest(draws.numpy(), distribution_of_gap(d, kappa)).pvalue > 1e-4
    of = vmf.terms(float64(kappa), d)
    close(draws, 1 - of.resultant)
    close((draws - draws.mean()).square(), of.slope)


@pytest.mark.parametrize(("d", "kappa"), [(2, 50.0), (3, 0.3), (40, 4000.0)])
def test_cosines_inside_vmap_have_the_right_distribution(d, kappa):
    many = torch.full((40,), kappa, dtype=torch.float64)
    draw = vmap(lambda k: sample_cosine(k, d, (250,)), randomness="different")
    draws = 1 - draw(many).flatten()
    assert len(draws.unique()) > 9990
    assert scipy.stats.kstest(draws.numpy(), distribution_of_gap(d, kappa)).pvalue > 1e-4


def test_two_of_three_proposals_are_accepted():
    for d in (2, 3, 10, 1000):
        kappa = float64(0.0, 1.0, d, 100.0 * d, 1e8).expand(40000, 5)
        accepted = sampling._first_accepted(kappa, d, 1)[1].double().mean(0)
        assert bool((accepted > 0.64).all())


@pytest.mark.parametrize("d", [2, 3, 9, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_unit_vectors_with_the_right_covariance(d, dtype):
    loc = F.normalize(torch.randn(2, 1, d, dtype=dtype), dim=-1)
    kappa = torch.tensor([0.0, 1.0, 1e5], dtype=dtype)
    draws = sampling.sample(loc, kappa, (3000,))
    assert draws.shape == (3000, 2, 3, d)
    assert draws.dtype == dtype
    assert bool(((draws.norm(dim=-1) - 1).abs() < 20 * torch.finfo(dtype).eps).all())
    other = F.normalize(torch.randn(d, dtype=torch.float64), dim=0)
    along = (loc.double() * other).sum(-1)
    of = vmf.terms(kappa.double(), d)
    mean = of.resultant
    centred = draws.double() @ other - mean * along
    close(centred, torch.zeros(()))
    close(centred.square(), of.slope * along.square() + of.spread * (1 - along.square()))


def exact_slope(gap, kappa, d):
    cosine, kappa = 1 - mpmath.mpf(gap), mpmath.mpf(kappa)
    orders = (mpmath.mpf(d) / 2, mpmath.mpf(d) / 2 - 1)
    with mpmath.workdps(60):
        bessel = [mpmath.besseli(order, kappa) for order in orders]
    ratio = bessel[0] / bessel[1] if kappa else 0
    angle = mpmath.acos(cosine)
    reach = 30 / mpmath.sqrt(mpmath.hypot(d - 2, 2 * kappa) + 0.1)
    up = cosine < ratio
    end = min(mpmath.pi, angle + reach) if up else max(0, angle - reach)

    def integrand(phi):
        power = (mpmath.sin(phi) / mpmath.sin(angle)) ** (d - 2)
        return abs(mpmath.cos(phi) - ratio) * mpmath.exp(kappa * (mpmath.cos(phi) - cosine)) * power

    value = mpmath.quad(integrand, mpmath.linspace(*sorted((angle, end)), 7))
    return mpmath.sin(angle) * value


@pytest.mark.parametrize(("d", "kappa"), SETTINGS)
def test_implicit_slopes_are_exact(d, kappa):
    for gap in (1 - sample_cosine(torch.full((2,), kappa).double(), d)).tolist():
        found = cosine_slope(float64(gap), float64(kappa), d)
        assert found.item() == pytest.approx(float(exact_slope(gap, kappa, d)), rel=1e-10)


def cosine_by_rejection(kappa, d):
    """Draws of ω with the gradient of the proposal, and logarithms of weights that correct it.

    The paper's way, with equation 20 corrected. The logarithms are 0, and only their gradient c matters:
    the one of E[e^c f(ω)] is unbiased.
    """
    fixed = kappa.detach()
    cosine = 1 - sampling.accepted_gap(fixed, d)
    root = (4 * fixed.square() + (d - 1) ** 2).sqrt()
    across = 1 - cosine.square()
    correction = cosine - vmf.terms(fixed, d).resultant + (fixed * across - (d - 1) * cosine) / root
    moved = kappa - fixed
    return cosine + across / root * moved, correction * moved


@pytest.mark.parametrize(("d", "kappa"), [(2, 2.0), (5, 0.0), (5, 5.0), (100, 300.0), (4000, 4e3)])
def test_corrected_gradients_of_rejection_are_unbiased(d, kappa):
    many = torch.full((40000,), kappa, dtype=torch.float64, requires_grad=True)
    cosine, log_weight = cosine_by_rejection(many, d)
    assert torch.equal(log_weight, torch.zeros_like(log_weight))
    weighted = log_weight.exp() * (cosine - vmf.terms(float64(kappa), d).resultant)  # less noise
    (slopes,) = torch.autograd.grad(weighted.sum(), many, retain_graph=True)
    close(slopes, vmf.terms(float64(kappa), d).slope)
    (plain,) = torch.autograd.grad(cosine.sum(), many)
    bias = plain.mean() / vmf.terms(float64(kappa), d).slope - 1
    if d <= 5 and kappa > 0:
        assert bias < -0.1, "without the correction it is biased"


@pytest.mark.parametrize(("d", "kappa"), [(2, 1.5), (3, 0.0), (3, 40.0), (50, 20.0), (4000, 4e3)])
def test_gradients_of_vectors_are_unbiased(d, kappa):
    # E exp(aᵀx) = exp(ℓ(|κμ + a|) - ℓ(κ)); raw and κ of every draw are parameters of their own
    count = 4000 if d < 1000 else 800
    raw = (3 * torch.randn(d, dtype=torch.float64)).requires_grad_()
    push = F.normalize(torch.randn(d, dtype=torch.float64), dim=0) * d**0.5
    one = float64(kappa).squeeze().requires_grad_()
    length = (one * F.normalize(raw, dim=0) + push).norm()
    value = (vmf.terms(length, d).ell - vmf.terms(one, d).ell).exp()
    expected = torch.autograd.grad(value, (raw, one))
    raws, many = (t.detach().expand(count, *t.shape).clone().requires_grad_() for t in (raw, one))
    draws = sampling.sample(F.normalize(raws, dim=-1), many)
    slopes = torch.autograd.grad((draws @ push).exp().sum(), (raws, many))
    close((draws @ push).exp().detach(), value.detach())
    close(slopes[1], expected[1])
    test = torch.stack([expected[0], torch.randn_like(raw), push])
    close(slopes[0] @ test.T, test @ expected[0])


@pytest.mark.parametrize(("randomness", "equal"), [("different", False), ("same", True)])
def test_members_of_a_vmap_differ_if_they_should(randomness, equal):
    loc, kappa = F.normalize(torch.randn(2, 20), dim=-1), torch.tensor([3.0, 50.0])
    draw = vmap(lambda _: sampling.sample(loc, kappa), randomness=randomness)
    first, second = draw(torch.zeros(2))
    assert torch.equal(first, second) is equal


def test_draws_and_gradients_inside_transforms():
    raw, kappa = torch.randn(6, 3), torch.rand(6) * 5
    draw = vmap(lambda r, k: sampling.sample(F.normalize(r, dim=-1), k), randomness="different")
    assert torch.allclose(draw(raw, kappa).norm(dim=-1), torch.ones(6))
    by_row = vmap(
        jacrev(lambda k: sample_cosine(k.exp(), 3, (4000,)).mean()), randomness="different"
    )
    expected = vmf.terms(kappa.exp(), 3).slope * kappa.exp()
    assert torch.allclose(by_row(kappa), expected, rtol=0.1, atol=0.01)


def test_draws_compile_with_their_gradients():
    torch.compiler.reset()
    draw = torch.compile(lambda k: sample_cosine(k, 60), fullgraph=True, backend="aot_eager")
    kappa = torch.full((2000,), 50.0, dtype=torch.float64, requires_grad=True)
    cosine = draw(kappa)
    close(cosine.detach(), vmf.terms(float64(50.0), 60).resultant)
    (slopes,) = torch.autograd.grad(cosine.sum(), kappa)
    expected = cosine_slope(1 - cosine.detach(), kappa.detach(), 60)
    assert torch.allclose(slopes, expected, rtol=1e-9)
    vectors = torch.compile(
        lambda r, k: sampling.sample(F.normalize(r, dim=-1), k), fullgraph=True, backend="aot_eager"
    )
    raw = torch.randn(5, 60, requires_grad=True)
    draws = vectors(raw, torch.full((5,), 50.0))
    assert torch.allclose(draws.norm(dim=-1), torch.ones(5))
    draws[:, 0].sum().backward()
    assert bool(raw.grad.abs().sum() > 0)
    torch.compiler.reset()


def test_gradients_at_the_edges_are_finite():
    gaps = float64(0.0, 1e-320, 1e-12, 1.0, 2.0 - 1e-15, 2.0)
    for d in (2, 3, 100, 4000):
        for kappa in (0.0, 1.0, 1e5):
            slopes = cosine_slope(gaps, torch.full_like(gaps, kappa), d)
            assert bool((slopes >= 0).all())
            assert slopes.isfinite().all()
    raw = torch.zeros(500, 3)
    raw[:, 0] = 1.0
    raw.requires_grad_()
    kappa = torch.full((500,), 1e12, requires_grad=True)
    sampling.sample(F.normalize(raw, dim=-1), kappa).sum().backward()
    assert raw.grad.isfinite().all()
    assert kappa.grad.isfinite().all()


def test_a_concentration_that_is_no_number_gives_such_draws():
    kappa = torch.tensor([1.0, math.nan])
    assert sample_cosine(kappa, 3).isnan().tolist() == [False, True]
    assert sample_cosine(kappa[:0], 3).shape == (0,)
    assert sample_cosine(kappa[0], 3).shape == ()


@pytest.mark.parametrize("training", [True, False])
def test_an_exported_program_needs_nothing_of_kasuri(training):
    bnn = kasuri.bayesianize(torch.nn.Linear(5, 3), kasuri.Radial()).train(training)
    program = torch.export.export(bnn, (torch.randn(2, 5),))
    assert not any("kasuri" in str(node.target) for node in program.graph.nodes)

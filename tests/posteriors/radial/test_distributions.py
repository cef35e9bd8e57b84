"""The distribution as torch.distributions knows distributions, against scipy and closed forms."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch.distributions import Distribution, Independent, kl_divergence
from torch.func import grad, vmap

from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.distributions import VonMisesFisher, sphere


@pytest.fixture(autouse=True)
def _validation():
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)  # a torch.compile anywhere turns it off for good
    yield
    Distribution.set_default_validate_args(before)


def directions(*shape, dtype=torch.float64):
    return F.normalize(torch.randn(*shape, dtype=dtype), dim=-1)


@pytest.mark.parametrize("d", [2, 3, 5, 50])
@pytest.mark.parametrize("kappa", [0.01, 3.0, 200.0])
def test_density_and_entropy_are_those_of_scipy(d, kappa):
    loc, x = directions(d), directions(10, d)
    ours = VonMisesFisher(loc, kappa)
    theirs = scipy.stats.vonmises_fisher(loc.numpy(), kappa)
    expected = torch.from_numpy(np.asarray(theirs.logpdf(x.numpy())))
    assert torch.allclose(ours.log_prob(x), expected, rtol=1e-9)
    assert ours.entropy().item() == pytest.approx(theirs.entropy(), rel=1e-9)


@pytest.mark.parametrize(("d", "kappa"), [(2, 0.0), (3, 5.0), (40, 300.0), (2000, 100.0)])
def test_moments_and_entropy_are_those_of_draws(d, kappa):
    q = VonMisesFisher(directions(d), kappa)
    x = q.sample((4000,))
    error = x.std(0) / len(x) ** 0.5
    assert bool(((x.mean(0) - q.mean).abs() < 5.5 * error).all())
    centred = (x - q.mean).square()
    assert bool(((centred.mean(0) - q.variance).abs() < 6 * centred.std(0) / len(x) ** 0.5).all())
    surprise = -q.log_prob(x)
    assert abs(surprise.mean() - q.entropy()) <= 5 * surprise.std() / len(x) ** 0.5 + 1e-9
    assert torch.equal(q.mode, q.loc)


@pytest.mark.parametrize(("d", "kappas"), [(2, (3.0, 0.5)), (10, (20.0, 0.0)), (300, (50.0, 90.0))])
def test_divergence_is_that_of_draws(d, kappas):
    q, p = (VonMisesFisher(directions(d), kappa) for kappa in kappas)
    x = q.sample((20000,))
    terms = q.log_prob(x) - p.log_prob(x)
    assert abs(terms.mean() - kl_divergence(q, p)) < 5 * terms.std() / len(x) ** 0.5
    uniform = VonMisesFisher(p.loc, 0.0)
    assert torch.allclose(kl_divergence(q, uniform), uniform.entropy() - q.entropy())


def test_divergence_from_itself_is_nothing():
    for dtype in (torch.float32, torch.float64):
        for kappa in (0.0, 1.0, 1e5):
            raw = torch.randn(3, 40, dtype=dtype, requires_grad=True)
            log = torch.full((3,), kappa, dtype=dtype, requires_grad=True)
            q = VonMisesFisher(F.normalize(raw, dim=-1), log)
            value = kl_divergence(q, VonMisesFisher(q.loc.detach(), log.detach()))
            assert torch.equal(value, torch.zeros(3, dtype=dtype))
            slopes = torch.autograd.grad(value.sum(), (raw, log))
            assert all(slope.abs().max() < 1e-12 for slope in slopes)


def test_shapes_broadcast_and_expand():
    q = VonMisesFisher(directions(4, 1, 6), torch.rand(3).double())
    assert (q.batch_shape, q.event_shape) == ((4, 3), (6,))
    assert q.rsample().shape == q.mean.shape == q.variance.shape == q.stddev.shape == (4, 3, 6)
    assert q.rsample(torch.Size([2, 5])).shape == (2, 5, 4, 3, 6)
    assert q.entropy().shape == q.log_prob(directions(6)).shape == (4, 3)
    assert q.log_prob(q.sample((7,))).shape == (7, 4, 3)
    wide = q.expand((2, 4, 3))
    assert wide.batch_shape == (2, 4, 3)
    assert torch.equal(wide.entropy()[1], q.entropy())
    assert wide.sample().shape == (2, 4, 3, 6)
    with pytest.raises(ValueError, match="support"):
        wide.log_prob(2 * q.loc)
    assert Independent(q, 1).entropy().shape == (4,)
    assert torch.allclose(Independent(q, 1).entropy(), q.entropy().sum(-1))


def test_types_follow_the_parameters():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        q = VonMisesFisher(directions(3, 12).to(dtype), torch.rand(3).to(dtype))
        x = q.sample()
        found = (x, q.mean, q.variance, q.entropy(), q.log_prob(x), kl_divergence(q, q))
        assert all(one.dtype == dtype for one in found)


def test_whole_numbers_are_numbers():
    loc = F.normalize(torch.ones(3), dim=0)
    for whole, real in ((torch.tensor(5), torch.tensor(5.0)), (5, 5.0)):
        q, p = VonMisesFisher(loc, whole), VonMisesFisher(loc, real)
        for name in ("mean", "variance"):
            torch.testing.assert_close(getattr(q, name), getattr(p, name))
        torch.testing.assert_close(q.entropy(), p.entropy())
        other = VonMisesFisher(loc, torch.tensor(2))
        torch.testing.assert_close(kl_divergence(q, other), kl_divergence(p, other))
    assert VonMisesFisher(torch.tensor([0, 0, 1]), 2).mean.is_floating_point()
    assert vmf.terms(torch.tensor([2, 5]), 3).resultant.tolist() == pytest.approx(
        [0.537315, 0.800091]
    )


UNIT = torch.tensor([1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("loc", "concentration", "named"),
    [
        (2 * UNIT, 1.0, "loc"),
        (UNIT, [3.0, -0.5], "concentration"),
        (UNIT, math.nan, "concentration"),
        (UNIT, math.inf, "concentration"),
        (torch.ones(5, 1), 1.0, "dimension 1"),
        (torch.ones(()), 1.0, "dimension 1"),
    ],
)
def test_mistakes_are_refused(loc, concentration, named):
    with pytest.raises(ValueError, match=named):
        VonMisesFisher(loc, concentration)


def test_mistakes_with_a_distribution_are_refused():
    q = VonMisesFisher(UNIT, 1.0)
    with pytest.raises(ValueError, match="support"):
        q.log_prob(2 * UNIT)
    with pytest.raises(ValueError, match=r"R\^3 and R\^2"):
        kl_divergence(q, VonMisesFisher(UNIT[:2], 1.0))
    assert VonMisesFisher(2 * UNIT, 1.0, validate_args=False).event_shape == (3,)
    assert q.log_prob(UNIT.long()) == q.log_prob(UNIT)


def test_support_is_the_sphere():
    loose = F.normalize(torch.randn(1000, 4000), dim=-1)
    assert sphere.check(loose).all()
    assert not sphere.check(1.01 * loose).any()
    assert repr(sphere) == "Sphere()"
    assert VonMisesFisher.arg_constraints["loc"] is VonMisesFisher.support


def loss(raw, log):
    q = VonMisesFisher(F.normalize(raw, dim=-1), log.exp())
    p = VonMisesFisher(torch.eye(raw.shape[-1])[0], 2.0)
    x = F.one_hot(torch.tensor(1), raw.shape[-1]).to(raw.dtype)
    return (q.entropy() + kl_divergence(q, p) + q.log_prob(x)).sum()


def test_inside_vmap_and_compile():
    raw, log = torch.randn(4, 40), torch.randn(4)
    rows = torch.stack([loss(r, one) for r, one in zip(raw, log, strict=True)])
    assert torch.allclose(vmap(loss)(raw, log), rows)
    slopes = grad(loss, argnums=(0, 1))(raw, log)
    by_row = vmap(grad(loss, argnums=(0, 1)))(raw, log)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(slopes, by_row, strict=True))
    draws = vmap(
        lambda r: VonMisesFisher(F.normalize(r, dim=-1), 5.0).rsample((2,)), randomness="different"
    )
    assert torch.allclose(draws(raw).norm(dim=-1), torch.ones(4, 2))
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    leaves = [t.clone().requires_grad_() for t in (raw, log)]
    value = compiled(*leaves)
    assert torch.allclose(value, rows.sum())
    found = torch.autograd.grad(value, leaves)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(slopes, found, strict=True))
    torch.compiler.reset()


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7, 1e-8])
def test_the_kl_of_close_directions_keeps_its_digits(angle):
    """κ A(κ) (1 - cos angle), with A(κ) = coth κ - 1/κ in three dimensions."""
    kappa = 1e5
    one = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    two = torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=torch.float64)
    found = float(kl_divergence(VonMisesFisher(one, kappa), VonMisesFisher(two, kappa)))
    assert found == pytest.approx(2 * math.sin(angle / 2) ** 2 * (kappa - 1), rel=1e-10, abs=0)

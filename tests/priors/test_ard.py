"""ARD against scipy and dense normals, its accuracy, its limits; one scale with correlated weights."""

import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import kasuri
from kasuri.numerics.precisions import sum_half_log_ratio
from kasuri.testing import randomised
from tests.priors.relevance_examples import dense, dense_kl, every_posterior, normal_of


@every_posterior
def test_kl_is_that_of_dense_normals_at_the_fitted_precisions(build):
    q = build()
    prior = kasuri.ARD()
    alpha = prior.precisions(q)
    torch.testing.assert_close(alpha, 1 / (q.mean**2 + q.variance), rtol=1e-12, atol=0)
    torch.testing.assert_close(prior.kl(q), dense_kl(q, alpha), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.kl(prior), -q.entropy() - prior.expected_log_prob(q))


def test_precisions_are_the_best_ones():
    q = dense(2, 3)

    def kl(logs):
        alpha = torch.tensor(logs).exp().requires_grad_()
        value = dense_kl(q, alpha)
        (slope,) = torch.autograd.grad(value, alpha)
        return value.item(), (slope * alpha).detach().numpy()

    found = minimize(kl, torch.zeros(6).double().numpy(), jac=True, options={"gtol": 1e-10})
    assert found.fun == pytest.approx(kasuri.ARD().kl(q).item(), abs=1e-10)
    best = kasuri.ARD().precisions(q).log().reshape(-1)
    assert torch.tensor(found.x).numpy() == pytest.approx(best.detach().numpy(), abs=1e-6)


@every_posterior
def test_gradient_is_that_at_held_precisions(build):
    """Envelope theorem, and gradcheck for the rest."""
    q = build()
    parameters = list(q.parameters())
    got = torch.autograd.grad(kasuri.ARD().kl(q), parameters)
    held = kasuri.ARD().precisions(q).detach()
    want = torch.autograd.grad(dense_kl(q, held), parameters)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    assert torch.autograd.gradcheck(lambda *_: kasuri.ARD().kl(q), tuple(parameters))


def test_correlation_adds_the_total_correlation():
    q = dense(3, 4)
    covariance = normal_of(q).covariance_matrix
    total = 0.5 * (covariance.diagonal().log().sum() - torch.logdet(covariance))
    alone = 0.5 * torch.log1p(q.mean**2 / q.variance).sum()
    torch.testing.assert_close(kasuri.ARD().kl(q), alone + total)
    assert total > 0


def test_single_precision_is_accurate_where_everything_is_noise():
    """mean/scale = 1e-4: log(mean² + scale²) - log scale² would be 100 % wrong."""
    q = kasuri.MeanField(scale=1e-3, noise=0.0)(torch.full((300, 200), 1e-7))
    assert kasuri.ARD().kl(q).item() == pytest.approx(60_000 * 0.5 * 1e-8, rel=1e-4)


def test_ratio_is_finite_everywhere_with_its_gradients():
    loc = torch.tensor([0.0, 1e-15, 1e-20, 1.0, 1e13, -1e13, 1.0, 0.0, 1e18])
    scale = torch.tensor([1.0, 1e-15, 1e13, 1e-15, 1e-4, 1e13, 1e-30, 0.0, 0.0])
    exact = 0.5 * torch.log1p((loc.double() / scale.double()) ** 2)

    def fused(loc, scale):
        return sum_half_log_ratio(loc, scale)

    def plain(loc, scale):  # as inside transforms and compiled code
        return torch.vmap(sum_half_log_ratio)(loc[None], scale[None])[0]

    for form in (fused, plain):
        each = torch.stack([form(a[None], b[None]) for a, b in zip(loc, scale, strict=True)])
        torch.testing.assert_close(each[:-3].double(), exact[:-3], rtol=1e-5, atol=1e-30)
        assert each[-2] == 0
        leaves = loc.clone().requires_grad_(), scale.clone().requires_grad_()
        for grad in torch.autograd.grad(form(*leaves), leaves):
            assert torch.isfinite(grad).all()
    leaves = torch.randn(20).double().requires_grad_(), torch.rand(20).double().requires_grad_()
    for a, b in zip(
        *(torch.autograd.grad(f(*leaves), leaves) for f in (fused, plain)), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("family", [kasuri.MeanField(), kasuri.KTied(rank=2)])
@pytest.mark.parametrize(
    "prior", [kasuri.ARD(), kasuri.GroupARD(), kasuri.GroupARD("rows"), kasuri.GroupARD("columns")]
)
def test_raw_parameters_of_100_stay_finite(family, prior):
    for trial in range(8):
        q = family(torch.randn(4, 3))
        with torch.no_grad():
            for parameter in q.parameters():
                sign = torch.randn_like(parameter).sign() if trial > 1 else 2.0 * trial - 1
                parameter.copy_(torch.zeros_like(parameter) + 100 * sign)
        value = prior.kl(q)
        assert torch.isfinite(value)
        for grad in torch.autograd.grad(value, list(q.parameters())):
            assert torch.isfinite(grad).all()


def test_vectors_can_have_another_prior():
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    q, b = (q for _, q in kasuri.named_posteriors(bnn))
    for prior in (
        kasuri.ARD(vectors=kasuri.Normal(0.7)),
        kasuri.GroupARD(vectors=kasuri.Normal(0.7)),
    ):
        alone = type(prior)()
        torch.testing.assert_close(prior.kl(q, b), alone.kl(q) + kasuri.Normal(0.7).kl(b))
    torch.testing.assert_close(kasuri.ARD().kl(q, b), kasuri.ARD().kl(q) + kasuri.ARD().kl(b))
    learned = kasuri.ELBO(
        bnn, kasuri.Gaussian(1.0), kasuri.ARD(kasuri.Normal(0.3, learn="gradient")), num_data=3
    )
    assert "priors.0.vectors.log_scale" in learned.state_dict()


@pytest.mark.parametrize("prior", [kasuri.ARD, kasuri.GroupARD])
def test_what_cannot_be_is_refused(prior):
    with pytest.raises(TypeError, match=r"precisions\(posterior\)"):
        prior().log_prob(torch.zeros(2, 2))
    with pytest.raises(TypeError, match="vectors"):
        prior(vectors=1.0)
    point = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField(), bias=kasuri.Point())
    with pytest.raises(ValueError, match=r"point estimate of shape \(2,\).*unbounded"):
        kasuri.ELBO(point, kasuri.Categorical(), prior(), num_data=3)
    kasuri.ELBO(point, kasuri.Categorical(), prior(vectors=kasuri.Normal()), num_data=3)
    mixed = {"bias": kasuri.Normal(), "*": prior()}
    kasuri.ELBO(point, kasuri.Categorical(), mixed, num_data=3)


# -- one learned scale, which exists as Normal(learn=...), with correlated weights --------------------


def test_one_scale_for_correlated_weights_is_the_dense_optimum():
    qs = [dense(2, 3), dense(4), randomised(kasuri.KTied(rank=2), (2, 3))]
    closed = kasuri.Normal(learn="closed form")
    scale = closed.fitted_scale(*qs)
    ones = [torch.ones_like(q.mean) / scale**2 for q in qs]
    want = sum(dense_kl(q, one) for q, one in zip(qs, ones, strict=True))
    torch.testing.assert_close(closed.kl(*qs), want)
    for factor in (0.9, 1.1):
        assert sum(dense_kl(q, one * factor) for q, one in zip(qs, ones, strict=True)) > want
    learned = kasuri.Normal(scale.item(), learn="gradient").double()
    torch.testing.assert_close(learned.kl(*qs), want, rtol=1e-6, atol=1e-6)
    learned.kl(*qs).backward()
    assert (
        learned.log_scale.grad.abs() < 1e-4
    )  # the optimum, up to the single precision of its start
    parameters = [p for q in qs for p in q.parameters()]
    got = torch.autograd.grad(closed.kl(*qs), parameters)
    held = torch.autograd.grad(kasuri.Normal(scale.item()).kl(*qs), parameters)
    for a, b in zip(got, held, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)

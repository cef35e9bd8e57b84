"""Priors against torch.distributions; learned scales; patterns."""

import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.priors.base import assign
from kasuri.testing import randomised


def posteriors():
    return [randomised(kasuri.KTied(rank=2), s) for s in ((3, 4), (2, 3, 5), (1, 2))]


@pytest.mark.parametrize(
    ("prior", "scale"),
    [
        (kasuri.Normal(0.3), lambda shape: 0.3),
        (kasuri.Normal(0.3, learn="gradient"), lambda shape: 0.3),
        (kasuri.HeNormal(), lambda shape: math.sqrt(2 / shape[-1]) if len(shape) > 1 else 1.0),
        (
            kasuri.HeNormal(1.0, 3.0),
            lambda shape: math.sqrt(1 / shape[-1]) if len(shape) > 1 else 3.0,
        ),
    ],
)
def test_densities_and_expectations_equal_torch_distributions(prior, scale):
    prior = prior.double()
    for shape in ((3, 4), (2, 3, 5), (6,)):
        w = torch.randn(shape, dtype=torch.float64)
        normal = td.Normal(w.new_zeros(()), w.new_tensor(scale(shape)))
        torch.testing.assert_close(prior.log_prob(w), normal.log_prob(w), rtol=1e-6, atol=1e-6)
        q = randomised(kasuri.MeanField(), shape)
        expected = (normal.log_prob(q.mean) - q.variance / (2 * normal.scale**2)).sum()
        torch.testing.assert_close(prior.expected_log_prob(q), expected, rtol=1e-6, atol=1e-6)


def test_closed_form_scale_is_the_optimum_of_the_gradient_one():
    qs = posteriors()
    closed = kasuri.Normal(0.1, learn="closed form")
    by_gradient = kasuri.Normal(0.1, learn="gradient").double()
    opt = torch.optim.LBFGS(by_gradient.parameters(), max_iter=200, tolerance_grad=1e-12)

    def closure():
        opt.zero_grad()
        loss = -by_gradient.expected_log_prob(*qs)
        loss.backward()
        return loss

    opt.step(closure)
    assert by_gradient.scale == pytest.approx(closed.fitted_scale(*qs).item(), rel=1e-6)
    best = by_gradient.expected_log_prob(*qs)
    torch.testing.assert_close(closed.expected_log_prob(*qs), best, rtol=1e-9, atol=1e-9)


def test_closed_form_gradient_is_that_at_the_fitted_scale():
    """Envelope theorem: the fitted scale's own dependence on q does not change the gradient."""
    qs = posteriors()
    parameters = [p for q in qs for p in q.parameters()]
    closed = kasuri.Normal(learn="closed form")
    got = torch.autograd.grad(closed.expected_log_prob(*qs), parameters)
    fixed = kasuri.Normal(closed.fitted_scale(*qs).item())
    want = torch.autograd.grad(fixed.expected_log_prob(*qs), parameters)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def names(net=None):
    net = net or nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))
    return dict(kasuri.named_posteriors(kasuri.bayesianize(net, kasuri.MeanField())))


def test_patterns_choose_priors_and_the_first_match_wins():
    wide, narrow, rest = kasuri.Normal(1.0), kasuri.Normal(0.1), kasuri.HeNormal()
    got = assign({"*.bias": wide, "2": narrow, "*": rest}, names())
    assert got == [
        (wide, ("0.bias", "2.bias", "3.bias")),
        (narrow, ("2.weight",)),
        (rest, ("0.weight", "3.weight")),
    ]


def test_patterns_change_the_kl():
    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), kasuri.KTied(rank=1))
    mixed = {"0": kasuri.Normal(0.2), "*": kasuri.Normal(2.0)}
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), mixed, num_data=1)
    expected = sum(
        q.kl(kasuri.Normal(0.2 if name.startswith("0") else 2.0))
        for name, q in kasuri.named_posteriors(bnn)
    )
    torch.testing.assert_close(elbo.kl(), expected)


def test_patterns_that_leave_or_miss_weights_are_refused():
    with pytest.raises(ValueError, match=r"no prior for '0.weight'.*\*"):
        assign({"2*": kasuri.Normal()}, names())
    with pytest.raises(ValueError, match="governs no weight"):
        assign({"*": kasuri.Normal(), "2": kasuri.Normal()}, names())


@pytest.mark.parametrize(
    "build",
    [
        lambda: kasuri.Normal(0.0),
        lambda: kasuri.Normal(-1.0),
        lambda: kasuri.Normal(1.0, learn="sgd"),
        lambda: kasuri.HeNormal(gain=0),
    ],
)
def test_impossible_priors_are_refused(build):
    with pytest.raises(ValueError, match=r"above 0|learn="):
        build()

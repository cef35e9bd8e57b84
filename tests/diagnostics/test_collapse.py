"""A posterior against its prior, number by number."""

import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.diagnostics import collapse_check
from kasuri.priors.normal import normal_precisions
from tests.diagnostics.networks import Laplace


def made(family=None, prior=None, **options):
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Linear(40, 20), family or kasuri.MeanField())
    with torch.no_grad():
        for _, q in kasuri.named_posteriors(bnn):
            q.loc.normal_(0, 0.05)
            for name, parameter in q.named_parameters():
                if name == "log_scale":
                    parameter.normal_(math.log(0.5), 0.1)
    return kasuri.ELBO(bnn, kasuri.Gaussian(1.0), prior or kasuri.Normal(0.5), 30, **options)


def elbo_with(prior):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    bnn = kasuri.bayesianize(net, kasuri.KTied(scale=0.3))
    return kasuri.ELBO(bnn, kasuri.Categorical(), prior, num_data=100)


def test_kl_and_shares_are_those_of_normal_distributions():
    elbo = made()
    found = collapse_check(elbo)
    for one, (name, q) in zip(found.layers, kasuri.named_posteriors(elbo.bnn), strict=True):
        each = td.kl_divergence(td.Normal(q.mean, q.scale), td.Normal(0.0, 0.5)).detach()
        assert (one.name, one.shape, one.weights) == (name, tuple(q.shape), q.numel())
        assert one.kl == pytest.approx(float(each.sum()), rel=1e-4)
        assert one.at_prior == pytest.approx(float((each < 0.01).float().mean()), abs=1e-3)
        assert 0.2 < one.at_prior < 0.9
    assert found.kl == pytest.approx(elbo.kl().item())


@pytest.mark.parametrize(("scale", "wide", "narrow"), [(0.76, 1, 0), (0.74, 0, 0), (0.004, 0, 1)])
def test_widths_are_in_units_of_the_prior(scale, wide, narrow):
    elbo = made()
    with torch.no_grad():
        for _, q in kasuri.named_posteriors(elbo.bnn):
            q.log_scale.fill_(math.log(scale))
    found = collapse_check(elbo)
    assert all((one.wide, one.narrow) == (wide, narrow) for one in found.layers)


def test_priors_that_follow_the_posterior_have_no_fixed_width():
    found = collapse_check(made(prior=kasuri.ARD()))
    assert all(one.at_prior is None and one.wide is None for one in found.layers)
    fitted = collapse_check(made(prior=kasuri.Normal(9.0, learn="closed form")))
    assert all(one.at_prior > 0.1 for one in fitted.layers)  # at the scale it has found


def test_it_prints_a_table():
    lines = str(collapse_check(made(temperature=0.1))).splitlines()
    assert lines[0].split() == ["weight", "weights", "KL", "per", "weight", "at", "the", "prior"]
    assert lines[1].split()[:2] == ["weight", "800"]
    assert lines[-1].startswith("KL ")
    assert "–" in str(collapse_check(made(prior=kasuri.ARD())))


@pytest.mark.parametrize("prior", [kasuri.Normal(0.3), kasuri.HeNormal(gain=1.5, bias_scale=2.0)])
def test_precisions_of_normal_priors(prior):
    for shape in ((3, 8), (5,)):
        scale = 0.3
        if isinstance(prior, kasuri.HeNormal):
            scale = prior.scale_for(shape)
        expected = torch.full(shape, scale**-2, dtype=torch.float64)
        torch.testing.assert_close(normal_precisions(prior, shape), expected)
    assert normal_precisions(kasuri.ARD(), (2, 2)) is None


def test_a_prior_of_another_shape_has_no_precision():
    assert normal_precisions(Laplace(), (2, 2)) is None


@pytest.mark.parametrize(
    "prior",
    [
        kasuri.Normal(0.3),
        kasuri.Normal(0.3, learn="gradient"),
        kasuri.Normal(0.3, learn="closed form"),
        kasuri.HeNormal(),
        {"*.bias": kasuri.Normal(1.0), "*": kasuri.Normal(0.3, learn="closed form")},
    ],
)
def test_shares_of_the_kl_add_up(prior):
    elbo = elbo_with(prior)
    shares = {layer.name: layer.kl for layer in collapse_check(elbo).layers}
    assert shares.keys() == dict(kasuri.named_posteriors(elbo.bnn)).keys()
    assert sum(shares.values()) == pytest.approx(elbo.kl().item(), rel=1e-5)

"""Shares of single posteriors in the KL of an objective."""

import pytest
from torch import nn

import kasuri
from kasuri.objectives.kl_shares import kl_by_name


def elbo_with(prior):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    bnn = kasuri.bayesianize(net, kasuri.KTied(scale=0.3))
    return kasuri.ELBO(bnn, kasuri.Categorical(), prior, num_data=100)


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
    shares = kl_by_name(elbo)
    assert shares.keys() == dict(kasuri.named_posteriors(elbo.bnn)).keys()
    assert sum(shares.values()) == pytest.approx(elbo.kl().item(), rel=1e-5)


def test_a_prior_that_cannot_be_divided_says_so():
    class Joint(kasuri.Normal):
        def kl(self, *posteriors):
            return super().kl(*posteriors) * len(posteriors)

    shares = kl_by_name(elbo_with(Joint(0.3)))
    assert set(shares.values()) == {None}

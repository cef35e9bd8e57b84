"""Known posteriors: the exact one, draws of its density, and distances from them."""

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.diagnostics.reference import LogJoint, conjugate, distance
from tests.diagnostics.networks import Laplace

NOISE, PRIOR, ETA = 0.5, 0.8, 0.4


def linear(family=None, inputs=2, data=12, temperature=ETA):
    """A linear model with bias, its data and its objective, in double precision."""
    torch.manual_seed(1)
    x = torch.randn(data, inputs).double()
    y = x @ torch.tensor([[1.0], [-0.5]]).double()[:inputs] + 0.3 + NOISE * torch.randn(data, 1)
    net = nn.Linear(inputs, 1).double()
    bnn = kasuri.bayesianize(net, family or kasuri.MeanField(scale=0.1))
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(NOISE), kasuri.Normal(PRIOR), data, temperature)
    return elbo, (x, y)


def textbook(x, y):
    """Mean and covariance of the tempered posterior, weights first, then the bias."""
    design = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    precision = design.T @ design / (ETA * NOISE**2) + torch.eye(3).double() / PRIOR**2
    covariance = precision.inverse()
    return (covariance @ design.T @ y / (ETA * NOISE**2)).squeeze(-1), covariance


def test_the_joint_is_the_tempered_likelihood_times_the_prior():
    elbo, (x, y) = linear()
    w = torch.tensor([0.3, -0.2, 0.7]).double()
    f = x @ w[:2].unsqueeze(-1) + w[2]
    fit = td.Normal(f, NOISE).log_prob(y).sum()
    prior = td.Normal(0, PRIOR).log_prob(w).sum()
    joint = LogJoint(elbo, (x, y))
    torch.testing.assert_close(joint(w), fit / ETA + prior)


def test_the_joint_leaves_point_estimates_alone_and_the_network_as_it_was():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    bnn = kasuri.bayesianize(net, kasuri.Point(), where="0")
    bnn = kasuri.bayesianize(bnn, kasuri.MeanField(), where="2").train()
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.HeNormal(), 5)
    joint = LogJoint(elbo, (torch.randn(5, 2), torch.randn(5, 1)))
    assert joint.size == 4
    out = joint.outputs(torch.zeros(4), torch.randn(7, 2))
    assert torch.equal(out, torch.zeros(7, 1))
    assert bnn.training
    assert not torch.equal(bnn(torch.ones(1, 2)), bnn(torch.ones(1, 2)))


@pytest.mark.parametrize(
    "prior", [kasuri.ARD(), kasuri.RadialPrior(others=kasuri.HeNormal())], ids=["ard", "radial"]
)
def test_priors_without_a_density_of_weights_are_refused(prior):
    family = kasuri.Radial() if isinstance(prior, kasuri.RadialPrior) else kasuri.MeanField()
    bnn = kasuri.bayesianize(nn.Linear(3, 2, bias=False), family)
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), prior, 5)
    with pytest.raises(TypeError, match="log_prob"):
        LogJoint(elbo, (torch.randn(5, 3), torch.randn(5, 2)))


def test_the_exact_posterior_is_that_of_the_textbook():
    elbo, data = linear()
    truth = conjugate(LogJoint(elbo, data), samples=20000)
    mean, covariance = textbook(*data)
    torch.testing.assert_close(truth.exact.mean, mean)
    torch.testing.assert_close(truth.exact.covariance_matrix, covariance)
    torch.testing.assert_close(truth.weights.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(truth.weights.T.cov(), covariance, atol=0.01, rtol=0.05)


def test_a_random_last_layer_is_linear_and_a_random_first_one_is_not():
    torch.manual_seed(0)
    x, y = torch.randn(9, 2), torch.randn(9, 1)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    last = kasuri.bayesianize(net, kasuri.MeanField(), where=kasuri.last_layer(net))
    elbo = kasuri.ELBO(last, kasuri.Gaussian(0.3), kasuri.HeNormal(), 9)
    truth = conjugate(LogJoint(elbo, (x, y)))
    features = torch.cat([net[1](net[0](x)), torch.ones(9, 1)], 1).detach().double()
    scales = torch.tensor([2 / 4] * 4 + [1.0]).double()  # He's variances, and that of the bias
    precision = features.T @ features / 0.09 + torch.diag(1 / scales)
    torch.testing.assert_close(truth.exact.precision_matrix, precision, rtol=1e-3, atol=1e-3)
    every = kasuri.bayesianize(net, kasuri.MeanField())
    with pytest.raises(ValueError, match="linear"):
        conjugate(LogJoint(kasuri.ELBO(every, kasuri.Gaussian(), kasuri.HeNormal(), 9), (x, y)))
    classes = kasuri.ELBO(last, kasuri.Categorical(), kasuri.HeNormal(), 9)
    with pytest.raises(ValueError, match="Categorical"):
        conjugate(LogJoint(classes, (x, y)))


def test_a_prior_that_is_not_normal_has_no_exact_posterior():
    bnn = kasuri.bayesianize(nn.Linear(3, 2, bias=False), kasuri.MeanField())
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), Laplace(), 5)
    with pytest.raises(ValueError, match="must be normal"):
        conjugate(LogJoint(elbo, (torch.randn(5, 3), torch.randn(5, 2))))


def test_a_sampler_finds_the_exact_posterior():
    """NUTS of Pyro, as the how-to page calls it."""
    infer = pytest.importorskip("pyro.infer")
    elbo, data = linear()
    joint, (mean, covariance) = LogJoint(elbo, data), textbook(*data)
    kernel = infer.NUTS(potential_fn=lambda at: -joint(at["weights"]))
    start = {"weights": joint.mean()}
    chain = infer.MCMC(kernel, 200, 60, initial_params=start, disable_progbar=True)
    torch.manual_seed(3)
    chain.run()
    weights, spread = chain.get_samples()["weights"], covariance.diagonal().sqrt()
    assert ((weights.mean(0) - mean) / spread).abs().max() < 0.35
    assert (weights.std(0) / spread - 1).abs().max() < 0.2


def test_distances_are_those_of_normal_distributions():
    """Against q = N(m, s² I): mean error, spread and KL from torch.distributions."""
    elbo, data = linear(kasuri.MeanField(scale=0.2, noise=0.0))
    mean, covariance = textbook(*data)
    truth = conjugate(LogJoint(elbo, data), samples=1500)
    q = td.MultivariateNormal(torch.tensor([0.9, 0.0, 0.1]).double(), 0.04 * torch.eye(3).double())
    with torch.no_grad():
        named = dict(kasuri.named_posteriors(elbo.bnn))
        named["weight"].loc.copy_(q.mean[:2].unsqueeze(0))
        named["bias"].loc.copy_(q.mean[2:])
    found = distance(elbo, truth, data, data[0], samples=1500)
    exact = td.MultivariateNormal(mean, covariance)
    assert found.kl == pytest.approx(float(td.kl_divergence(q, exact)), rel=1e-6)
    spread = covariance.diagonal().sqrt()
    away = ((q.mean - mean) / spread).square().mean().sqrt()
    assert found.mean == pytest.approx(float(away), rel=0.05)
    assert found.spread == pytest.approx(float((0.2 / spread).log().mean().exp()), rel=0.05)
    design = torch.cat([data[0], torch.ones(12, 1).double()], 1)
    outputs = (design @ covariance @ design.T).diagonal().sqrt()
    ratio = 0.2 * design.norm(dim=1) / outputs
    assert found.predictive_spread == pytest.approx(float(ratio.log().mean().exp()), rel=0.05)
    away = ((design @ (q.mean - mean)) / outputs).square().mean().sqrt()
    assert found.predictive_mean == pytest.approx(float(away), rel=0.05)


def test_richer_families_come_nearer_to_the_truth():
    """Trained, on correlated inputs: mean-field keeps the means and loses spread, full covers it."""
    torch.manual_seed(0)
    shared = torch.randn(30, 1)
    x = shared + 0.3 * torch.randn(30, 3)
    data = x, x.sum(1, keepdim=True) + 0.5 * torch.randn(30, 1)
    elbos = {}
    families = {"mean-field": kasuri.MeanField(scale=0.1), "full": kasuri.FullNormal(scale=0.1)}
    for name, family in families.items():
        torch.manual_seed(0)
        bnn = kasuri.bayesianize(nn.Linear(3, 1, bias=False), family)
        elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.5), kasuri.Normal(1.0), 30, samples=4)
        optimiser = torch.optim.Adam(elbo.parameters(), 0.06)
        for step in range(400):
            if step == 300:
                optimiser.param_groups[0]["lr"] = 0.006
            optimiser.zero_grad()
            elbo(*data).loss.backward()
            optimiser.step()
        elbos[name] = elbo
    truth = conjugate(LogJoint(elbos["full"], data), samples=500)
    field, full = (distance(elbo, truth, data, x, 200) for elbo in elbos.values())
    assert full.kl < 0.1 < field.kl
    assert field.spread < 0.75 < full.spread < 1.25
    assert max(field.predictive_mean, full.predictive_mean) < 0.3


def test_another_networks_truth_is_refused():
    elbo, data = linear()
    small, other = linear(inputs=1)
    with pytest.raises(ValueError, match="same network"):
        distance(elbo, conjugate(LogJoint(small, other)), data, data[0])

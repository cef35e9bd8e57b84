"""The auto-encoder as an objective: its terms, annealing, likelihoods, random weights, refusals."""

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri import vae
from tests.vae.models import FAMILIES, patterns, small


def bayesian(**options):
    latent = vae.DiagonalLatent(3)
    torch.manual_seed(0)
    decoder = kasuri.bayesianize(
        nn.Sequential(nn.Linear(3, 8), nn.ELU(), nn.Linear(8, 12)), kasuri.KTied(rank=2)
    )
    told = {"prior": kasuri.HeNormal(), "num_data": 120} | options
    return vae.VAE(nn.Linear(12, latent.size), decoder, latent, **told)


@pytest.mark.parametrize("latent", FAMILIES, ids=str)
def test_terms_are_those_of_the_definition(latent):
    model, (x, y) = small(latent), patterns(30)
    torch.manual_seed(7)
    loss, nll, kl = model(x, y)
    torch.manual_seed(7)
    q = model.posterior(x)
    logits = model.net.decoder(q.rsample())
    expected = -td.Bernoulli(logits=logits).log_prob(x).sum(1).mean()
    torch.testing.assert_close(nll, expected)
    torch.testing.assert_close(kl, q.kl().mean())
    torch.testing.assert_close(loss, nll + kl)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_labels_are_not_looked_at():
    model, (x, y) = small(), patterns(30)
    found = []
    for targets in (None, y, x):
        torch.manual_seed(7)
        found.append(model(x, targets).loss)
    assert found[0] == found[1] == found[2]


def test_the_kl_is_annealed_exponentially_or_in_a_line():
    x, _ = patterns(20)
    shapes = {
        "exponential": kasuri.schedules.Exponential(10, steps_per_epoch=5, start=0.01),
        "linear": kasuri.schedules.LinearOverEpochs(10, steps_per_epoch=5),
    }
    for name, schedule in shapes.items():
        model = small(kl_weight=schedule)
        torch.manual_seed(0)
        loss, nll, kl = model(x, step=25)
        weight = 0.1 if name == "exponential" else 0.5
        torch.testing.assert_close(loss, nll + weight * kl)
        assert model.is_warming_up(25)
        assert not model.is_warming_up(50)
        with pytest.raises(ValueError, match="step=i"):
            model(x)
    assert not small(kl_weight=0.5).is_warming_up(0)


def test_gaussian_decoders_of_known_and_learned_noise():
    x = patterns(20)[0] - 0.3
    for likelihood, scale in ((kasuri.Gaussian(0.2), 0.2), (kasuri.Gaussian(), 1.0)):
        model = small(likelihood=likelihood)
        torch.manual_seed(3)
        nll = model(x).nll
        torch.manual_seed(3)
        mean = model.net.decoder(model.posterior(x).rsample())
        torch.testing.assert_close(nll, -td.Normal(mean, scale).log_prob(x).sum(1).mean())
    assert any("log_scale" in name for name, _ in model.named_parameters())
    torch.testing.assert_close(
        vae.reconstruct(model, x), model.net.decoder(model.posterior(x).mean).detach()
    )


def test_a_bayesian_decoder_adds_its_share_of_the_kl():
    model, x = bayesian(temperature=0.1), patterns(40)[0]
    _, _, kl = model(x)
    weights = sum(q.kl(kasuri.HeNormal()) for _, q in kasuri.named_posteriors(model.net))
    torch.testing.assert_close(kl, model.posterior(x).kl().mean() + 0.1 * weights / 120)
    kl.backward()
    assert all(q.loc.grad is not None for _, q in kasuri.named_posteriors(model.net))


def test_a_bayesian_decoder_draws_functions_where_it_is_evaluated():
    model, x = bayesian(), patterns(6)[0]
    with torch.no_grad():
        for _, q in kasuri.named_posteriors(model.net):
            for parameter in q.parameters():
                parameter += 0.5 * (parameter is not q.loc)  # wide enough to be seen
    model.eval()
    with torch.no_grad():
        assert not torch.equal(model(x).nll, model(x).nll)
        same = model.net.decoder(torch.ones(1, 3))
        assert torch.equal(same, model.net.decoder(torch.ones(1, 3))), "eval() itself is the mean"
    found = vae.evaluate(model, x, samples=64)
    weights = sum(q.kl(kasuri.HeNormal()) for _, q in kasuri.named_posteriors(model.net))
    assert found["weight_kl"] == pytest.approx(float(weights.detach()) / 120, rel=1e-5)
    gap = found["reconstruction"] - found["kl"] - found["weight_kl"]
    assert found["elbo"] == pytest.approx(gap, rel=1e-5)


def test_the_elbo_has_the_weights_kl_at_temperature_one():
    cold, warm = (vae.elbo(bayesian(temperature=t), patterns(6)[0]) for t in (0.1, 1.0))
    assert torch.equal(cold, warm)


def test_predicted_density_averages_over_weights(monkeypatch):
    """A decoder with a random bias only: p(x) = ∫ p(x | b) q(b) db, by quadrature in one dimension."""
    latent = vae.DiagonalLatent(1)
    decoder = kasuri.bayesianize(nn.Linear(1, 1), kasuri.MeanField(scale=1.0, noise=0.0))
    model = vae.VAE(nn.Linear(1, 2), decoder, latent, prior=kasuri.Normal(1.0), num_data=1)
    with torch.no_grad():
        for name, q in kasuri.named_posteriors(model.net):
            q.loc.fill_(0.3)
            if "weight" in name:
                q.loc.zero_()
                q.log_scale.fill_(-30.0)
        model.net.encoder.weight.zero_()
        model.net.encoder.bias.zero_()  # q(z | x) is the prior: every weight is p(x | b)
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = td.Normal(0.0, 1.0).log_prob(grid).exp() * torch.sigmoid(0.3 + grid)
    exact = torch.trapezoid(density, grid).log()
    monkeypatch.setattr(vae.estimates, "CHUNK", 16)  # every chunk has a draw of the weights
    found = vae.log_likelihood(model, torch.ones(16, 1), samples=4000)
    assert float(found.mean()) == pytest.approx(float(exact), abs=0.025)


def test_what_cannot_be_meant_is_refused():
    latent = vae.DiagonalLatent(2)
    nets = (nn.Linear(6, 4), nn.Linear(2, 6))
    for wrong in (kasuri.FullNormal(), 40):
        with pytest.raises(TypeError, match="family of latent variables"):
            vae.VAE(*nets, wrong)
    with pytest.raises(TypeError, match=r"kasuri\.Bernoulli\(\)"):
        vae.VAE(*nets, latent, "bernoulli")
    with pytest.raises(ValueError, match="random weights"):
        vae.VAE(*nets, latent, prior=kasuri.HeNormal())
    with pytest.raises(ValueError, match="above 0"):
        vae.VAE(*nets, latent, temperature=0)
    with pytest.raises(ValueError, match=r"num_data=len\(train\)"):
        bayesian(num_data=None)
    with pytest.raises(ValueError, match=r"prior=kasuri\.HeNormal\(\)"):
        bayesian(prior=None)
    with pytest.raises(TypeError, match="learned by gradient"):
        vae.VAE(*nets, latent, kasuri.GammaGaussian(learn="closed form"), num_data=5)
    with pytest.raises(ValueError, match=r"shape \(3, 12\) but targets \(3, 6\)|reshape_as"):
        vae.VAE(nn.Linear(6, 4), nn.Linear(2, 12), latent)(torch.ones(3, 6))
    with pytest.raises(TypeError, match="one by one"):
        kasuri.training.fit_many([small(), small(seed=1)], [patterns(20), patterns(20)], epochs=1)

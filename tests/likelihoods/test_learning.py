"""Learning the noise: by gradient and in closed form, by hand and by `kasuri.fit`, killed and resumed."""

import pytest
import torch
from torch import nn

import kasuri
from tests.training import jobs
from tests.training.jobs import Stop, differences
from tests.training.test_distributed import together

LEARN = ["gradient", "closed form"]


def line(count=60, noise=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0]]) + noise * torch.randn(count, 1, generator=generator)
    return x, y


def bayesian(outputs=1, estimator="local"):
    torch.manual_seed(0)
    return kasuri.bayesianize(
        nn.Linear(2, outputs), kasuri.MeanField(scale=0.05), estimator=estimator
    )


def exact_optimum(x, y, prior, rounds=200):
    """(weights' mean, covariance, a, b) of coordinate ascent for y ~ N(xw, 1/τ), w ~ N(0, 1), by hand."""
    a0, b0 = prior
    a, b = a0 + len(y) / 2, torch.tensor(b0).double()
    for _ in range(rounds):
        precision = torch.eye(x.shape[1]).double() + (a / b) * x.T @ x
        covariance = precision.inverse()
        mean = (a / b) * covariance @ x.T @ y
        b = b0 + 0.5 * ((y - x @ mean).square().sum() + ((x @ covariance) * x).sum())
    return mean, covariance, a, float(b)


@pytest.mark.parametrize("learn", LEARN)
def test_the_optimum_of_a_conjugate_problem_is_found(learn):
    """Weights and precision of linear regression, against coordinate ascent with exact moments."""
    x, y = (part.double() for part in line(40))
    x = (
        torch.linalg.qr(x).Q * 40**0.5
    )  # orthogonal inputs: the best posterior has independent weights
    prior = (2.0, 0.5)
    mean, covariance, a, b = exact_optimum(x, y, prior)
    torch.manual_seed(0)
    net = nn.Linear(2, 1, bias=False).double()
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.1), estimator="local")
    likelihood = kasuri.GammaGaussian(prior, learn).double()
    elbo = kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=40)
    steps = 550
    opt = torch.optim.Adam(elbo.parameters(), 0.05, betas=(0.9, 0.99))
    for step in range(steps):
        opt.param_groups[0]["lr"] = 0.05 * (1 - step / steps)
        opt.zero_grad()
        elbo(x, y).loss.backward()
        opt.step()
        assert elbo.update(x, y) == (learn == "closed form")
    if learn == "closed form":  # one draw tells the residuals to some 7 %, so take the mean of many
        with torch.no_grad():
            fs = torch.cat([bnn(x) for _ in range(400)])
            likelihood.update(fs, y.repeat(400, 1), num_data=40)
    ((_, q),) = kasuri.named_posteriors(bnn)
    torch.testing.assert_close(q.mean.detach(), mean.T, rtol=0, atol=0.02)
    torch.testing.assert_close(q.variance.detach()[0], covariance.diagonal(), rtol=0.2, atol=0)
    assert likelihood.concentration.item() == pytest.approx(a, rel=0.02)
    precision = likelihood.concentration / likelihood.rate
    assert precision.item() == pytest.approx(a / b, rel=0.05)


def test_gradient_descent_converges_to_the_closed_form():
    """Without noise in the outputs: the same optimum to six digits, one precision per output."""
    torch.manual_seed(0)
    f = torch.randn(50, 2).double()
    y = f + torch.randn(50, 2).double() * torch.tensor([0.2, 3.0])
    closed = kasuri.GammaGaussian((4.0, 1.0), "closed form", outputs=2).double()
    closed.update(f, y, num_data=50)
    learned = kasuri.GammaGaussian((4.0, 1.0), outputs=2).double()
    opt = torch.optim.LBFGS(learned.parameters(), max_iter=500, line_search_fn="strong_wolfe")
    opt.param_groups[0].update(tolerance_grad=1e-12, tolerance_change=1e-16)

    def loss():
        opt.zero_grad()
        value = learned.kl() - learned.expected_log_prob(f, y).sum()
        value.backward()
        return value

    opt.step(loss)
    torch.testing.assert_close(learned.concentration, closed.concentration, rtol=1e-6, atol=0)
    torch.testing.assert_close(learned.rate, closed.rate, rtol=1e-6, atol=0)
    expected = 1.0 + 0.5 * (y - f).square().sum(0)
    torch.testing.assert_close(closed.rate, expected)
    assert closed.concentration.tolist() == pytest.approx([29.0, 29.0])


def test_small_batches_average_to_the_closed_form():
    """Batches in turn, by shares of batch / num_data: a is exact, b within its own uncertainty."""
    torch.manual_seed(1)
    y = 0.5 * torch.randn(4000, 1).double()
    likelihood = kasuri.GammaGaussian(learn="closed form").double()
    for _ in range(8):
        for batch in y.split(50):
            likelihood.update(torch.zeros_like(batch), batch, num_data=4000)
    whole = kasuri.GammaGaussian(learn="closed form").double()
    whole.update(torch.zeros_like(y), y, num_data=4000)
    assert likelihood.concentration.item() == pytest.approx(2006, rel=1e-3)
    assert likelihood.rate.item() == pytest.approx(whole.rate.item(), rel=3 / 2000**0.5)
    half = kasuri.GammaGaussian(learn="closed form").double()
    half.update(torch.zeros_like(y[:2000]), y[:2000], num_data=4000)
    assert half.concentration.item() == pytest.approx((6 + 2006) / 2)


@pytest.mark.parametrize("objective", ["elbo", "plain"])
def test_its_kl_counts_once_and_whole(objective):
    """Divided by num_data, whatever temperature, warm-up, batch size and number of draws."""
    x, y = line(12)
    likelihood = kasuri.GammaGaussian((2.0, 5.0))
    with torch.no_grad():
        likelihood.log_spread.add_(-0.8)
    if objective == "elbo":
        options = {"temperature": 0.1, "kl_weight": 0.5, "samples": 3}
        made = kasuri.ELBO(bayesian(), likelihood, kasuri.Normal(1.0), num_data=200, **options)
    else:
        made = kasuri.MaximumLikelihood(nn.Linear(2, 1), likelihood, num_data=200)
    ((a, b),) = [(likelihood.concentration.item(), likelihood.rate.item())]
    gamma = torch.distributions.Gamma
    noise_kl = torch.distributions.kl_divergence(gamma(a, b), gamma(2.0, 5.0))
    for rows in (12, 5):
        with kasuri.using(made.net, "mean") if objective == "elbo" else torch.no_grad():
            loss, nll, kl = made(x[:rows], y[:rows])
            data = -likelihood.expected_log_prob(made.net(x[:rows]), y[:rows]).mean()
        torch.testing.assert_close(nll, data + noise_kl / 200, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(loss, nll + 0.05 * kl / 200)
        if objective == "elbo":
            torch.testing.assert_close(kl, made.kl())


def test_an_objective_without_a_posterior_of_the_noise_does_nothing():
    bnn = bayesian()
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(), kasuri.Normal(1.0), num_data=5)
    state = torch.get_rng_state()
    assert elbo.update(*line(5)) is False
    assert torch.equal(torch.get_rng_state(), state), "no forward pass"


def test_update_draws_in_either_mode_and_leaves_gradients_alone():
    x, y = line(40)
    bnn = kasuri.bayesianize(nn.Linear(2, 1), kasuri.MeanField(scale=1.0), estimator="local")
    likelihood = kasuri.GammaGaussian(learn="closed form")
    elbo = kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=40)
    with torch.no_grad():
        residuals = (bnn.eval()(x) - y).square().sum() / 2
    for mode in (True, False):
        elbo.train(mode)
        rates = []
        for _ in range(2):
            elbo.update(x, y)
            rates.append(likelihood.rate.item())
        assert rates[0] != rates[1], "drawn"
        assert min(rates) > 6 + residuals.item() - 5, "the draws' variance is in the residuals"
    assert all(p.grad is None for p in elbo.parameters())


@pytest.mark.parametrize(("learn", "convert"), [("gradient", True), ("closed form", False)])
def test_fit_finds_the_noise(learn, convert):
    x, y = line(300, noise=0.5)
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    model = bayesian() if convert else net
    options = {"temperature": 1.0} if convert else {}
    fitted = kasuri.fit(
        model,
        (x, y),
        likelihood=kasuri.GammaGaussian(learn=learn),
        epochs=80,
        batch_size=50,
        learning_rate=0.03,
        seed=0,
        **options,
    )
    likelihood = fitted.objective.likelihood
    a, b = likelihood.concentration.item(), likelihood.rate.item()
    if learn == "closed form":
        assert a == pytest.approx(156, rel=1e-2)
    else:  # the certainty about the noise, which hardly matters, lags behind its size
        assert 40 < a < 160
    ones = torch.cat([x, torch.ones(300, 1)], 1)
    best = torch.linalg.lstsq(ones, y).solution
    squares = (y - ones @ best).square().sum().item()
    # one standard deviation of the precision is 8 %
    assert a / b == pytest.approx(156 / (6 + squares / 2), rel=0.08)
    assert fitted.evaluate(line(200, 0.5, seed=1))["coverage_90"] == pytest.approx(0.9, abs=0.07)


@pytest.mark.parametrize("learn", LEARN)
@pytest.mark.parametrize("step", [0, 7])
def test_a_stopped_run_ends_as_one_that_was_not(tmp_path, learn, step):
    def go(folder, callback):
        return kasuri.fit(
            bayesian(),
            line(40),
            line(20, seed=1),
            likelihood=kasuri.GammaGaussian(learn=learn),
            epochs=3,
            batch_size=10,
            seed=0,
            folder=folder,
            callbacks=[callback],
        )

    whole = go(tmp_path / "whole", Stop())
    with pytest.raises(kasuri.training.Interrupted):
        go(tmp_path / "two", Stop(step, jobs.interrupt))
    again = go(tmp_path / "two", Stop())
    state = again.objective.state_dict()
    assert differences(whole.objective.state_dict(), state) == []
    assert {"likelihood.log_spread", "likelihood.log_scale"} <= set(state)
    assert state["likelihood.log_spread"] != kasuri.GammaGaussian().log_spread
    assert differences(jobs.timeless(whole.history), jobs.timeless(again.history)) == []


@pytest.mark.parametrize(
    "likelihood",
    [
        kasuri.GammaGaussian((2.0, 3.0), outputs=2),
        kasuri.GammaGaussian(learn="closed form"),
        kasuri.HeteroscedasticGaussian(min_scale=0.01),
    ],
    ids=repr,
)
def test_saved_and_loaded(tmp_path, likelihood):
    outputs = 4 if likelihood.kl() is None else 2
    bnn = bayesian(outputs)
    elbo = kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=50)
    x, y = line(8)[0], torch.randn(8, 2)
    if likelihood.updates:
        elbo.update(x, y)
    else:
        for parameter in likelihood.parameters():
            parameter.data += torch.randn_like(parameter)
    kasuri.save(bnn, tmp_path / "m.safetensors", objective=elbo)
    loaded = kasuri.load(tmp_path / "m.safetensors", nn.Linear(2, outputs))
    again = kasuri.load_objective(tmp_path / "m.safetensors", loaded).likelihood
    assert repr(again) == repr(likelihood)
    assert differences(likelihood.state_dict(), again.state_dict()) == []
    f = torch.randn(8, outputs)
    assert torch.equal(again.expected_log_prob(f, y), likelihood.expected_log_prob(f, y))


def test_networks_trained_together_have_their_own_noise():
    objectives = [
        kasuri.ELBO(
            bayesian(), kasuri.GammaGaussian(learn="closed form"), kasuri.Normal(1.0), num_data=100
        )
        for _ in range(2)
    ]
    trains = [line(100, noise=0.2), line(100, noise=2.0, seed=1)]
    kasuri.training.fit_many(
        objectives, trains, epochs=110, batch_size=25, learning_rate=0.04, seed=0
    )
    for one, (x, y) in zip(objectives, trains, strict=True):
        likelihood, net = one.likelihood, one.net.eval()
        with torch.no_grad():
            squares = (net(x) - y).square().sum().item()
        a0, b0 = likelihood.prior
        best = (a0 + 50) / (b0 + squares / 2)
        precision = (likelihood.concentration / likelihood.rate).item()
        assert precision == pytest.approx(best, rel=0.15)


@pytest.mark.slow
def test_two_processes_end_with_the_same_noise(tmp_path):
    from tests.likelihoods import ranks  # which imports this module

    together(tmp_path, ranks.main, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert differences(first, second) == []


def test_maximum_likelihood_asks_for_the_number_of_data():
    with pytest.raises(ValueError, match=r"num_data=len\(train_set\)"):
        kasuri.MaximumLikelihood(nn.Linear(2, 1), kasuri.GammaGaussian())

"""The ELBO: scaling, terms, schedules, likelihoods, refusals."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.objectives import schedules


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make(num_data=50, **options):
    bnn = kasuri.bayesianize(net(), kasuri.KTied(rank=2))
    return kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(0.5), num_data=num_data, **options)


def data(n=20):
    return torch.randn(n, 4), torch.randint(3, (n,))


def test_terms_are_mean_nll_and_full_kl():
    elbo, (x, y) = make(), data()
    with kasuri.using(elbo.bnn, "mean"):
        loss, nll, kl = elbo(x, y)
        expected = F.cross_entropy(elbo.bnn(x), y)
    torch.testing.assert_close(nll, expected)
    torch.testing.assert_close(
        kl, sum(q.kl(kasuri.Normal(0.5)) for _, q in kasuri.named_posteriors(elbo.bnn))
    )
    torch.testing.assert_close(loss, nll + kl / 50)


def test_value_does_not_depend_on_batch_size():
    """Equal batches of any size average to the same loss."""
    elbo, (x, y) = make(), data(24)
    with kasuri.frozen(elbo.bnn, 0):
        whole = elbo(x, y).loss
        for size in (1, 2, 3, 8, 12):
            parts = [elbo(a, b).loss for a, b in zip(x.split(size), y.split(size), strict=True)]
            torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_more_samples_average_the_nll_of_more_draws_and_count_the_kl_once():
    elbo, (x, y) = make(samples=4), data()
    state = torch.get_rng_state()
    _, nll, kl = elbo(x, y)
    torch.set_rng_state(state)
    elbo.samples = 1
    each = torch.stack([elbo(x, y).nll for _ in range(4)])
    assert each.std() > 0
    torch.testing.assert_close(nll, each.mean())
    assert elbo(x, y).kl == kl


def test_monte_carlo_elbo_equals_the_closed_form_of_a_linear_model():
    """y = w·x + noise with independent w: E_q[log p] is known in closed form."""
    torch.manual_seed(0)
    x, y = torch.randn(30, 5).double(), torch.randn(30, 1).double()
    bnn = kasuri.bayesianize(
        nn.Linear(5, 1).double(), kasuri.MeanField(scale=0.4), estimator="local"
    )
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.7), kasuri.Normal(1.0), num_data=30, samples=1000)
    posteriors = dict(kasuri.named_posteriors(bnn))
    q, b = posteriors["weight"], posteriors["bias"]
    error = (y - x @ q.mean.T - b.mean).square() + x.square() @ q.variance.T + b.variance
    exact = (error / (2 * 0.49) + 0.5 * math.log(2 * math.pi * 0.49)).mean()
    loss, nll, kl = elbo(x, y)
    assert abs(nll - exact) < 0.03
    torch.testing.assert_close(loss, nll + kl / 30)


def test_training_finds_the_exact_posterior_of_a_linear_model():
    """One weight, conjugate: the optimum of the ELBO is the true posterior, its value -log p(y)."""
    torch.manual_seed(0)
    x = torch.randn(20, 1).double()
    y = 0.8 * x + 0.5 * torch.randn(20, 1).double()
    precision = 1 + (x.square().sum() / 0.25)
    mean = (x * y).sum() / 0.25 / precision
    bnn = kasuri.bayesianize(
        nn.Linear(1, 1, bias=False).double(), kasuri.KTied(rank=1), estimator="local"
    )
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.5), kasuri.Normal(1.0), num_data=20, samples=4)
    opt = torch.optim.Adam(elbo.parameters(), 0.1)
    for step in range(300):
        opt.param_groups[0]["lr"] = 0.1 * (1 - step / 300)
        opt.zero_grad()
        elbo(x, y).loss.backward()
        opt.step()
    ((_, q),) = kasuri.named_posteriors(bnn)
    assert q.mean.item() == pytest.approx(mean.item(), abs=0.01)
    assert q.scale.item() == pytest.approx(precision.rsqrt().item(), rel=0.05)
    evidence = td.MultivariateNormal(torch.zeros(20).double(), 0.25 * torch.eye(20) + x @ x.T)
    elbo.samples = 1000
    assert -20 * elbo(x, y).loss.item() == pytest.approx(evidence.log_prob(y[:, 0]).item(), abs=0.1)


def test_temperature_and_kl_weight_multiply():
    x, y = data()
    elbo = make(temperature=0.1, kl_weight=schedules.LinearOverEpochs(2, 10))
    with kasuri.using(elbo.bnn, "mean"):
        for step, beta in ((0, 0.0), (5, 0.25), (20, 1.0), (99, 1.0)):
            loss, nll, kl = elbo(x, y, step=step)
            torch.testing.assert_close(loss, nll + 0.1 * beta * kl / 50)


def test_a_schedule_without_the_step_is_refused():
    elbo, (x, y) = make(temperature=schedules.LinearPerBatch(5e-5)), data()
    with pytest.raises(ValueError, match="step=i"):
        elbo(x, y)


def test_any_function_of_the_step_is_a_schedule():
    elbo, (x, y) = make(temperature=lambda step: 0.5 if step > 3 else 0.0), data()
    with kasuri.using(elbo.bnn, "mean"):
        loss, nll, kl = elbo(x, y, step=0)
        assert loss == nll
        loss, nll, kl = elbo(x, y, step=4)
        torch.testing.assert_close(loss, nll + 0.5 * kl / 50)


@pytest.mark.parametrize("bad", [None, 0, -3, True])
def test_missing_or_impossible_num_data_is_refused(bad):
    with pytest.raises(ValueError, match=f"num_data.*{bad}"):
        make(num_data=bad)


def test_the_wrong_network_or_likelihood_is_refused():
    bnn = kasuri.bayesianize(net(), kasuri.MeanField())
    with pytest.raises(ValueError, match="bayesianize"):
        kasuri.ELBO(net(), kasuri.Categorical(), kasuri.Normal(), num_data=1)
    with pytest.raises(ValueError, match="ELBO"):
        kasuri.MaximumLikelihood(bnn, kasuri.Categorical())
    with pytest.raises(TypeError, match="mse"):
        kasuri.ELBO(bnn, "mse", kasuri.Normal(), num_data=1)
    with pytest.raises(ValueError, match="num_data"):
        kasuri.MaximumLikelihood(net(), kasuri.GammaGaussian())


def test_evaluation_mode_draws_functions_and_training_uses_the_estimator():
    bnn = kasuri.bayesianize(net(), kasuri.MeanField(scale=0.5), estimator="local")
    elbo, (x, y) = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(), num_data=9), data()
    elbo.eval()
    assert elbo(x, y).nll != elbo(x, y).nll  # draws, although the bare network is at its mean
    assert torch.equal(bnn(x), bnn(x))
    same = torch.cat([x[:1], x[:1]])
    with kasuri.using(bnn, "shared"):
        a, b = bnn(same)
    assert torch.equal(a, b)  # one function
    a, b = bnn.train()(same)
    assert not torch.equal(a, b)  # local noise per example


def test_networks_with_other_outputs_need_to_say_which():
    lstm = kasuri.bayesianize(nn.LSTM(4, 3, batch_first=True), kasuri.KTied(rank=1))
    x, y = torch.randn(5, 6, 4), torch.randn(5, 6, 3)
    with pytest.raises(TypeError, match="output=lambda"):
        kasuri.ELBO(lstm, kasuri.Gaussian(1.0), kasuri.Normal(), num_data=5)(x, y)
    elbo = kasuri.ELBO(
        lstm, kasuri.Gaussian(1.0), kasuri.Normal(), num_data=5, output=lambda out: out[0]
    )
    assert torch.isfinite(elbo(x, y).loss)
    assert kasuri.predict(elbo, x, samples=2).mean.shape == y.shape


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (schedules.Constant(0.3), {0: 0.3, 10_000: 0.3}),
        (
            schedules.LinearPerBatch(5e-5, every=100),
            {0: 0, 99: 0, 100: 0.005, 14_700: 0.735, 10**6: 1},
        ),
        (schedules.LinearPerBatch(0.1, every=1, start=0.5), {0: 0.5, 2: 0.7, 9: 1}),
        (schedules.LinearOverEpochs(50, 391), {0: 0, 391 * 25: 0.5, 391 * 50: 1, 10**6: 1}),
        (schedules.Exponential(2, 100, start=1e-4), {0: 1e-4, 100: 1e-2, 200: 1, 999: 1}),
        (schedules.HoldThenRamp(1, 2, 10, end=0.5), {9: 0, 20: 0.25, 30: 0.5, 10**9: 0.5}),
    ],
)
def test_schedules(schedule, values):
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: schedules.LinearPerBatch(0.0),
        lambda: schedules.LinearPerBatch(every=0),
        lambda: schedules.LinearOverEpochs(0, 10),
        lambda: schedules.Exponential(1, 10, start=0.0),
        lambda: schedules.Exponential(1, 10, hold=-1),
        lambda: schedules.HoldThenRamp(1, 0),
        lambda: schedules.HoldThenRamp(-1, 2),
    ],
)
def test_impossible_schedules_are_refused(build):
    with pytest.raises(ValueError, match="must be"):
        build()

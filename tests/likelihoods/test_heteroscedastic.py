"""Noise that the network predicts, against torch.distributions and scipy."""

import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri


def scales(raw, least=1e-3):
    """Σ = least + log(1 + e^(raw + c)), 1 at raw = 0, written out."""
    shift = math.log(math.exp(1 - least) - 1)
    return least + torch.log1p((raw + shift).exp())


def test_log_density():
    f, y = torch.randn(6, 5, 4).double(), torch.randn(6, 5, 2).double()
    expected = td.Normal(f[..., :2], scales(f[..., 2:], 0.1)).log_prob(y).sum((1, 2))
    likelihood = kasuri.HeteroscedasticGaussian(min_scale=0.1)
    torch.testing.assert_close(likelihood.log_prob(f, y), expected)
    torch.testing.assert_close(likelihood(f).log_prob(y).sum((1, 2)), expected)
    torch.testing.assert_close(likelihood.expected_log_prob(f, y), expected)
    assert likelihood.kl() is None
    torch.testing.assert_close(likelihood.parts(torch.zeros(1, 2))[1], torch.ones(1, 1))


def test_mixture_and_moments():
    fs, y = torch.randn(7, 5, 4).double(), torch.randn(5, 2).double()
    mean, scale = fs[..., :2], scales(fs[..., 2:])
    likelihood = kasuri.HeteroscedasticGaussian()
    mixture = likelihood.prediction(fs)
    logs = td.Normal(mean, scale).log_prob(y).sum(-1).logsumexp(0) - math.log(7)
    scores = mixture.score(y)
    torch.testing.assert_close(-scores["nll"], logs)
    torch.testing.assert_close(scores["pit"], td.Normal(mean, scale).cdf(y).mean(0))
    torch.testing.assert_close(mixture.mean, mean.mean(0))
    spread = mean.var(0, correction=0) + scale.square().mean(0)
    torch.testing.assert_close(mixture.std.square(), spread)
    centre, variance, entropy = likelihood.moments(fs[0])
    torch.testing.assert_close(centre, mean[0])
    torch.testing.assert_close(variance, scale[0].square())
    assert entropy is None


@pytest.mark.parametrize("raw", [-100.0, 100.0])
def test_extreme_scales_are_finite(raw):
    likelihood = kasuri.HeteroscedasticGaussian()
    f = torch.tensor([[0.3, raw], [-100.0, raw], [100.0, raw]], requires_grad=True)
    total = likelihood.log_prob(f, torch.zeros(3, 1)).sum()
    total.backward()
    assert total.isfinite()
    assert f.grad.isfinite().all()
    assert (likelihood.moments(f)[1] >= 1e-6).all()


def test_prediction_has_every_draw_s_own_noise():
    """Split of the variance and interval of a converted network."""
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField(scale=0.5))
    x, likelihood = torch.randn(6, 3), kasuri.HeteroscedasticGaussian()
    for chunk in (None, 4):
        pred = kasuri.predict(bnn, x, 40, likelihood=likelihood, seed=1, chunk=chunk)
        raw = kasuri.predict(bnn, x, 40, seed=1).draws
        mean, scale = raw[..., :1], scales(raw[..., 1:])
        torch.testing.assert_close(pred.draws, mean)
        torch.testing.assert_close(pred.aleatoric, scale.square().mean(0))
        torch.testing.assert_close(pred.epistemic, mean.var(0, correction=0))
        torch.testing.assert_close(pred.std.square(), pred.aleatoric + pred.epistemic)
        low, high = pred.interval(0.8)
        below = td.Normal(mean, scale).cdf(low).mean(0), td.Normal(mean, scale).cdf(high).mean(0)
        torch.testing.assert_close(below[0], torch.full((6, 1), 0.1), rtol=0, atol=1e-4)
        torch.testing.assert_close(below[1], torch.full((6, 1), 0.9), rtol=0, atol=1e-4)
    short = kasuri.predict(bnn, x, 40, likelihood=likelihood, seed=1, keep_draws=False)
    torch.testing.assert_close(short.std, pred.std)
    with pytest.raises(ValueError, match="keep_draws=True"):
        short.interval()


@pytest.mark.parametrize("convert", [True, False])
def test_training_finds_where_the_noise_is_large(convert):
    """Noise 0.1 on the left and 1 on the right, seen by the interval's width and coverage."""
    torch.manual_seed(0)
    x = 2 * torch.rand(800, 1) - 1
    y = x + torch.where(x < 0, 0.1, 1.0) * torch.randn(800, 1)
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 2))
    model = kasuri.bayesianize(net, kasuri.MeanField(), estimator="local") if convert else net
    options = {"temperature": 0.1} if convert else {}
    fitted = kasuri.fit(
        model,
        (x[:600], y[:600]),
        likelihood=kasuri.HeteroscedasticGaussian(),
        epochs=80,
        batch_size=100,
        learning_rate=0.05,
        seed=0,
        **options,
    )
    found = kasuri.evaluate(fitted.objective, (x[600:], y[600:]), samples=20)
    # a smooth function cannot jump: look beside the edge
    std, left, right = found.examples["std"], x[600:, 0] < -0.2, x[600:, 0] > 0.2
    assert std[right].mean() > 5 * std[left].mean()
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.06)
    for part in (left, right):
        inside = (2 * found.examples["pit"][part] - 1).abs() <= 0.9
        assert inside.double().mean().item() == pytest.approx(0.9, abs=0.09)
    assert 0.4 < found["rmse"] < 0.95


@pytest.mark.parametrize(
    ("f", "y", "hint"),
    [
        ((5, 3), (5, 1), r"nn\.Linear\(50, 2\)"),
        ((4,), (2,), "last dimension"),
        ((5, 2), (5,), "unsqueeze"),
        ((5, 2), (5, 2), r"\(5, 1\) but targets \(5, 2\)"),
    ],
)
def test_other_shapes_are_refused(f, y, hint):
    with pytest.raises(ValueError, match=hint):
        kasuri.HeteroscedasticGaussian().log_prob(torch.zeros(f), torch.zeros(y))


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan])
def test_impossible_smallest_scales_are_refused(bad):
    with pytest.raises(ValueError, match="between 0 and 1"):
        kasuri.HeteroscedasticGaussian(bad)

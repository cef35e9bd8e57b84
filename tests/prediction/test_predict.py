"""Predictions: moments, decomposition, seeds, memory, loaders, coherence of draws."""

import math

import pytest
import torch
from torch import distributions as td
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kasuri
from kasuri.likelihoods.predictions import Draws
from kasuri.network import calls
from kasuri.streams import seeded


def classifier(scale=0.3, **options):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=scale), **options)


def test_summaries_of_classes_equal_those_of_the_draws():
    bnn, x = classifier(), torch.randn(6, 4)
    pred = kasuri.predict(bnn, x, samples=40, likelihood=kasuri.Categorical(), seed=1)
    p = pred.draws
    assert p.shape == (40, 6, 3)
    torch.testing.assert_close(pred.mean, p.mean(0))
    torch.testing.assert_close(pred.std, p.std(0, correction=0))
    entropy = td.Categorical(probs=p.mean(0)).entropy()
    within = td.Categorical(probs=p).entropy().mean(0)
    torch.testing.assert_close(pred.entropy, entropy)
    torch.testing.assert_close(pred.aleatoric, within)
    torch.testing.assert_close(pred.epistemic, entropy - within, atol=1e-6, rtol=1e-5)
    low, high = pred.interval(0.8)
    torch.testing.assert_close(low, p.quantile(0.1, dim=0))
    torch.testing.assert_close(high, p.quantile(0.9, dim=0))


def test_summaries_of_yes_and_no():
    bnn, x = kasuri.bayesianize(nn.Linear(4, 2), kasuri.MeanField(scale=0.5)), torch.randn(6, 4)
    pred = kasuri.predict(bnn, x, samples=30, likelihood=kasuri.Bernoulli(), seed=1)
    torch.testing.assert_close(pred.entropy, td.Bernoulli(probs=pred.draws.mean(0)).entropy())
    assert pred.epistemic.shape == (6, 2)


def test_regression_of_a_linear_model_has_the_exact_predictive_distribution():
    """One linear layer: f ~ N(x·μ, x²·σ²) exactly, so every summary has a closed form."""
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Linear(4, 1, bias=False).double(), kasuri.MeanField(scale=0.4))
    x, noise = torch.randn(5, 4).double(), 0.3
    pred = kasuri.predict(bnn, x, samples=2500, likelihood=kasuri.Gaussian(noise), seed=0)
    ((_, q),) = kasuri.named_posteriors(bnn)
    mean, epistemic = (x @ q.mean.T).detach(), (x.square() @ q.variance.T).detach()
    total = (epistemic + noise**2).sqrt()
    assert ((pred.mean - mean).abs() < 6 * (epistemic / 2500).sqrt()).all()
    torch.testing.assert_close(pred.epistemic, epistemic, rtol=0.1, atol=0)
    torch.testing.assert_close(pred.aleatoric, torch.full_like(mean, noise**2), rtol=1e-6, atol=0)
    torch.testing.assert_close(pred.std, total, rtol=0.05, atol=0)
    low, high = pred.interval(0.9)
    normal = td.Normal(mean, total)
    torch.testing.assert_close(
        normal.cdf(high) - normal.cdf(low), torch.full_like(mean, 0.9), atol=0.02, rtol=0
    )


def test_without_a_likelihood_the_draws_of_the_function_are_summarised():
    pred = kasuri.predict(classifier(), torch.randn(3, 4), samples=12)
    torch.testing.assert_close(pred.std, pred.draws.std(0, correction=0))
    assert pred.interval(0.5)[0].shape == (3, 3)
    with pytest.raises(ValueError, match="likelihood="):
        pred.score(torch.zeros(3, 3))


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_seed_makes_it_reproducible_and_other_seeds_differ(estimator):
    bnn, x = classifier(), torch.randn(3, 4)
    a, b, c = (kasuri.predict(bnn, x, 5, seed=s, estimator=estimator).mean for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.manual_seed(0)
    a = kasuri.predict(bnn, x, 5).mean
    torch.manual_seed(0)
    assert torch.equal(a, kasuri.predict(bnn, x, 5).mean)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_drawn_outputs_are_those_of_the_network_at_each_seed(estimator):
    """Though moments of the first layer's outputs are found once for all draws."""
    bnn, x = classifier().eval(), torch.randn(7, 4)
    pred = kasuri.predict(bnn, x, 5, seed=1, estimator=estimator)
    for seed, drawn in zip(pred.seeds, pred.draws, strict=True):
        with torch.no_grad(), kasuri.using(bnn, estimator), seeded(seed):
            torch.testing.assert_close(bnn(x), drawn)


def test_neighbouring_seeds_share_no_draw():
    bnn, x = classifier(), torch.randn(3, 4)
    a, b = (kasuri.predict(bnn, x, 20, seed=s) for s in (0, 1))
    assert not set(a.seeds) & set(b.seeds)


def test_one_draw_is_one_function_whatever_the_chunk_and_the_loader():
    bnn, x = classifier(), torch.randn(17, 4)
    whole = kasuri.predict(bnn, x, samples=6, seed=3)
    for chunk in (1, 5, 17, 100):
        torch.testing.assert_close(
            kasuri.predict(bnn, x, 6, seed=3, chunk=chunk).draws, whole.draws
        )
    loader = DataLoader(TensorDataset(x, torch.zeros(17)), batch_size=5)
    torch.testing.assert_close(kasuri.predict(bnn, loader, 6, seed=3).draws, whole.draws)
    torch.testing.assert_close(kasuri.predict(bnn, iter(x.split(4)), 6, seed=3).draws, whole.draws)


def test_draws_can_be_replayed_by_their_seeds():
    bnn, x = classifier(), torch.randn(4, 4)
    pred = kasuri.predict(bnn, x, samples=3, seed=3)
    for draw, seed in zip(pred.draws, pred.seeds, strict=True):
        with kasuri.frozen(bnn, seed):
            torch.testing.assert_close(bnn(x), draw)
        torch.testing.assert_close(kasuri.collapse(bnn, "sample", seed=seed)(x), draw)


def test_chunk_bounds_what_runs_at_once():
    sizes = []

    class Spy(nn.Module):
        def forward(self, x):
            sizes.append(len(x))
            return x

    bnn = kasuri.bayesianize(nn.Sequential(Spy(), nn.Linear(4, 2)), kasuri.MeanField())
    kasuri.predict(bnn, torch.randn(10, 4), samples=3, chunk=4)
    assert sizes == [4, 4, 2] * 3


def test_memory_does_not_grow_with_samples_unless_draws_are_kept():
    bnn, x = classifier(), torch.randn(6, 4)
    kept = kasuri.predict(bnn, x, 30, seed=1, likelihood=kasuri.Categorical())
    lean = kasuri.predict(bnn, x, 30, seed=1, likelihood=kasuri.Categorical(), keep_draws=False)
    for name in ("mean", "std", "entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(lean, name), getattr(kept, name))
    assert not lean.moments.outputs
    with pytest.raises(ValueError, match="keep_draws=True"):
        lean.interval(0.9)


def test_running_moments_are_stable_far_from_zero():
    draws, values = Draws(keep=False), 1e4 + torch.randn(500, 3)
    for value in values[:100]:
        draws.add(value.unsqueeze(0))
    draws.add(values[100:])
    torch.testing.assert_close(draws.mean, values.mean(0))
    variance = values.double().var(0, correction=0).float()
    torch.testing.assert_close(draws.spread, variance, rtol=1e-2, atol=0)


def test_a_draw_that_is_no_number_is_not_lost():
    draws = Draws()
    for value in (1.0, math.nan, 1.0):
        draws.add(torch.full((1, 2), value))
    assert draws.mean.isnan().all()


def test_modes_are_evaluation_inside_and_restored_after():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=1e-9))
    bnn[2].eval()
    before = bnn[1].running_mean.clone()
    pred = kasuri.predict(bnn, torch.randn(6, 4), samples=4)
    assert torch.equal(bnn[1].running_mean, before)
    assert pred.std.max() < 1e-5  # dropout was off
    assert bnn.training
    assert bnn[1].training
    assert not bnn[2].training


def test_an_exception_leaves_everything_as_it_was():
    class Breaks(nn.Module):
        def forward(self, x):
            raise RuntimeError("boom")

    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(4, 2), Breaks()), kasuri.MeanField(scale=0.5))
    with pytest.raises(RuntimeError, match="boom"):
        kasuri.predict(bnn, torch.randn(2, 4))
    assert bnn.training
    assert calls.state.call is None
    assert not calls.state.overrides
    bnn[1].forward = lambda x: x
    assert not torch.equal(bnn(torch.ones(2, 4)), bnn(torch.ones(2, 4)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda b: kasuri.predict(b, torch.ones(1, 4), samples=0), "at least 1"),
        (lambda b: kasuri.predict(b, torch.ones(1, 4), chunk=0), "at least 1"),
        (lambda b: kasuri.predict(nn.Linear(4, 2), torch.ones(1, 4)), "bayesianize"),
        (lambda b: kasuri.predict(b, []), "batches"),
        (lambda b: kasuri.predict(b, torch.ones(1, 4), 3).interval(1.5), "1.5"),
    ],
)
def test_impossible_requests_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(classifier())


def test_what_fit_gave_is_a_model():
    x, y = torch.randn(20, 3), torch.randint(2, (20,))
    fitted = kasuri.fit(
        kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField()),
        (x, y),
        epochs=1,
        seed=0,
        show=False,
    )
    one = kasuri.predict(fitted, x, samples=3, seed=0)
    torch.testing.assert_close(
        one.mean, kasuri.predict(fitted.objective, x, samples=3, seed=0).mean
    )
    assert kasuri.evaluate(fitted, (x, y)) == kasuri.evaluate(fitted.objective, (x, y))
    assert kasuri.predict_moments(fitted, x).mean.shape == (20, 2)


def test_an_ordinary_network_is_one_draw():
    net, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.randn(5, 4)
    objective = kasuri.MaximumLikelihood(net, kasuri.Categorical())
    for pred in (
        kasuri.predict(objective, x),
        kasuri.predict(net, x, likelihood=kasuri.Categorical()),
    ):
        torch.testing.assert_close(pred.mean, net.eval()(x).softmax(-1))
        assert pred.draws.shape == (1, 5, 3)
        assert pred.seeds == ()


def by_wrapping(bnn):
    return torch.compile(bnn, backend="aot_eager")


def in_place(bnn):
    bnn.compile(backend="aot_eager")
    return bnn


def in_part(bnn):
    bnn[0] = torch.compile(bnn[0], backend="aot_eager")
    return bnn


@pytest.mark.parametrize(("estimator", "training"), [("shared", True), ("local", False)])
@pytest.mark.parametrize("compiled", [by_wrapping, in_place, in_part])
def test_compiled_networks_draw_the_same_functions(compiled, training, estimator):
    torch._dynamo.reset()
    bnn, x = classifier().train(training), torch.randn(5, 4)
    expected = kasuri.predict(bnn, x, 6, seed=3, estimator=estimator)
    fast = compiled(bnn)
    for _ in range(2):
        found = kasuri.predict(fast, x, 6, seed=3, estimator=estimator)
        torch.testing.assert_close(found.draws, expected.draws)
    assert fast.training == training
    torch._dynamo.reset()


@pytest.mark.parametrize("ask", [kasuri.predict, kasuri.predict_moments, kasuri.compress])
def test_what_is_no_network_is_refused(ask):
    with pytest.raises(TypeError, match="str"):
        ask("net", torch.randn(2, 3))

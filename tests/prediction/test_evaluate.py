"""Evaluation: every number from an independent computation, whatever the model, data and chunk."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from scipy import stats
from torch import distributions as td
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kasuri
from kasuri.prediction import metrics
from kasuri.prediction.evaluate import evaluate

S = 12


def classifier(scale=0.3, family=kasuri.KTied, **options):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return kasuri.bayesianize(net, family(scale=scale), **options)


def classes(n=40):
    return 2 * torch.randn(n, 4), torch.randint(3, (n,))


def elbo_of(bnn, likelihood, prior=None, **options):
    return kasuri.ELBO(bnn, likelihood, prior or kasuri.Normal(0.5), num_data=100, **options)


def regressor(outputs=1, noise=0.4):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    return elbo_of(kasuri.bayesianize(net, kasuri.MeanField(scale=0.2)), kasuri.Gaussian(noise))


def close(a, b, tolerance=1e-5):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name] == pytest.approx(b[name], rel=tolerance, abs=tolerance), name


# the numbers


def test_numbers_of_a_classifier_are_those_of_its_draws():
    elbo, (x, y) = elbo_of(classifier(), kasuri.Categorical()), classes()
    told = evaluate(elbo, (x, y), samples=S, seed=3)
    pred = kasuri.predict(elbo, x, S, seed=3)
    p = pred.draws.double()
    mean, each = p.mean(0), p[:, torch.arange(40), y]
    gibbs = -each.log().mean(0)
    kl = elbo.kl().item()
    expected = {
        "count": 40,
        "accuracy": (mean.argmax(1) == y).double().mean(),
        "accuracy_sem": stats.sem((mean.argmax(1) == y).double().numpy()),
        "nll": -each.mean(0).log().mean(),
        "nll_sem": stats.sem(each.mean(0).log().numpy()),
        "gibbs_nll": gibbs.mean(),
        "gibbs_nll_sem": stats.sem(gibbs.numpy()),
        "brier": (mean - nn.functional.one_hot(y, 3)).square().sum(1).mean(),
        "brier_sem": stats.sem((mean - nn.functional.one_hot(y, 3)).square().sum(1).numpy()),
        "confidence": mean.amax(1).mean(),
        "entropy": td.Categorical(probs=mean).entropy().mean(),
        "mutual_information": (
            td.Categorical(probs=mean).entropy() - td.Categorical(probs=p).entropy().mean(0)
        ).mean(),
        "ece": metrics.ece(mean, y),
        "ece_sem": told["ece_sem"],
        "kl": kl,
        "neg_elbo": gibbs.mean() + kl / 100,
        "neg_elbo_sem": stats.sem(gibbs.numpy()),
    }
    close(told, {name: float(value) for name, value in expected.items()})
    assert told["nll"] < told["gibbs_nll"]
    assert 0 < told["ece_sem"] < 0.2


def test_neg_elbo_is_what_the_objective_estimates_with_the_whole_kl():
    """Two independent estimates over 1000 draws each: 5 standard errors of a difference."""
    elbo, (x, y) = elbo_of(classifier(), kasuri.Categorical(), temperature=0.1), classes(20)
    told = evaluate(elbo, (x, y), samples=1000)
    elbo.eval()
    with torch.no_grad():
        each = torch.stack([elbo(x, y).nll for _ in range(1000)])
        kl = elbo.kl().item()
    estimate, error = each.mean().item(), each.std().item() / math.sqrt(1000)
    assert told["neg_elbo"] == pytest.approx(estimate + kl / 100, abs=5 * math.sqrt(2) * error)
    assert told["tempered_neg_elbo"] == pytest.approx(told["gibbs_nll"] + 0.1 * kl / 100)
    assert told["kl"] == kl


def test_a_schedule_of_temperatures_has_no_tempered_number():
    ramp = kasuri.schedules.LinearPerBatch()
    told = evaluate(
        elbo_of(classifier(), kasuri.Categorical(), temperature=ramp), classes(), samples=2
    )
    assert "neg_elbo" in told
    assert "tempered_neg_elbo" not in told


@pytest.mark.parametrize("outputs", [1, 2])
def test_numbers_of_a_regression_are_those_of_its_draws(outputs):
    elbo, x, y = regressor(outputs), torch.randn(30, 4), torch.randn(30, outputs)
    told = evaluate(elbo, (x, y), samples=S, seed=1)
    pred = kasuri.predict(elbo, x, S, seed=1)
    squares = (pred.mean - y).square().mean(1)
    logs = td.Normal(pred.draws, 0.4).log_prob(y).sum(-1)
    gibbs, joint = -logs.mean(0), math.log(S) - logs.logsumexp(0)
    crps = metrics.crps(pred.draws, 0.4, y).mean(1)
    low, high = pred.interval(0.9)
    rmse = squares.mean().sqrt()
    expected = {
        "count": 30,
        "nll": joint.mean(),
        "nll_sem": stats.sem(joint),
        "gibbs_nll": gibbs.mean(),
        "gibbs_nll_sem": stats.sem(gibbs),
        "crps": crps.mean(),
        "crps_sem": stats.sem(crps),
        "std": pred.std.mean(),
        "interval_width_90": (high - low).mean(),
        "rmse": rmse,
        "rmse_sem": stats.sem(squares) / (2 * rmse),
        "kl": elbo.kl().item(),
        "neg_elbo": gibbs.mean() + elbo.kl().item() / 100,
        "neg_elbo_sem": stats.sem(gibbs),
    }
    for level in (50, 90, 95):
        low, high = pred.interval(level / 100)
        inside = ((low <= y) & (y <= high)).double().mean(1)
        expected[f"coverage_{level}"] = inside.mean()
        expected[f"coverage_{level}_sem"] = stats.sem(inside)
    close(told, {name: float(value) for name, value in expected.items()})


@pytest.mark.parametrize("shape", [(), (1,)])
def test_yes_and_no_are_two_classes(shape):
    net = kasuri.bayesianize(nn.Linear(4, 1), kasuri.MeanField(scale=0.5))
    output = None if shape else lambda f: f.squeeze(1)
    x, y = torch.randn(25, 4), torch.randint(2, (25, *shape)).float()
    told = evaluate(net, (x, y), likelihood=kasuri.Bernoulli(), samples=S, output=output)
    p = kasuri.predict(
        net, x, S, seed=0, likelihood=kasuri.Bernoulli(), output=output
    ).mean.reshape(25)
    probs, labels = torch.stack([1 - p, p], 1), y.reshape(25).long()
    assert told["accuracy"] == pytest.approx(float(metrics.correct(probs, labels).mean()))
    assert told["brier"] == pytest.approx(metrics.brier(probs, labels).mean().item())
    assert told["ece"] == pytest.approx(metrics.ece(probs, labels))
    assert told["nll"] == pytest.approx(metrics.nll(probs, labels).mean().item(), rel=1e-5)
    assert told.examples["label"].dtype == torch.long


def test_an_example_with_positions_is_one_example():
    """Pictures of classes: nll of all pixels together, the other scores averaged over them."""
    net = kasuri.bayesianize(nn.Conv2d(2, 3, 1), kasuri.MeanField(scale=0.3))
    x, y = torch.randn(9, 2, 4, 5), torch.randint(3, (9, 4, 5))
    like = kasuri.Categorical(dim=1)
    told = evaluate(net, (x, y), likelihood=like, samples=S, chunk=4)
    pred = kasuri.predict(net, x, S, seed=0, likelihood=like)
    probs = pred.mean.movedim(1, -1).reshape(-1, 3)
    rows = metrics.correct(probs, y.flatten())
    assert told["count"] == 9
    assert told["accuracy"] == pytest.approx(rows.mean().item())
    assert told["accuracy_sem"] == pytest.approx(stats.sem(rows.reshape(9, -1).mean(1)))
    assert told["ece"] == pytest.approx(metrics.ece(probs, y.flatten()))
    logs = td.Categorical(probs=pred.draws.movedim(2, -1)).log_prob(y).sum((2, 3))
    assert told["nll"] == pytest.approx((math.log(S) - logs.logsumexp(0)).mean().item(), rel=1e-5)
    assert told.examples["entropy"].shape == (9, 4, 5)


# models


def test_a_plain_network_is_one_draw_in_evaluation_mode():
    net, (x, y) = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), classes()
    told = evaluate(net, (x, y), likelihood=kasuri.Categorical(), chunk=7)
    assert net.training
    loss = nn.functional.cross_entropy(net.eval()(x), y)
    assert told["nll"] == pytest.approx(loss.item(), rel=1e-5)
    assert told["nll"] == told["gibbs_nll"]
    assert told["mutual_information"] == pytest.approx(0, abs=1e-6)
    assert "neg_elbo" not in told
    close(evaluate(kasuri.MaximumLikelihood(net, kasuri.Categorical()), (x, y)), told)


def test_functions_are_evaluated_like_networks():
    bnn, data = classifier(), classes()
    direct = evaluate(bnn, data, likelihood=kasuri.Categorical(), samples=S)
    for keep in (True, False):
        told = evaluate(
            lambda x, keep=keep: kasuri.predict(
                bnn, x, S, likelihood=kasuri.Categorical(), seed=0, keep_draws=keep
            ),
            data,
        )
        assert ("gibbs_nll" in told) == keep
        close(told, {name: direct[name] for name in told})


# data, chunks, seeds


def test_chunks_loaders_and_objects_give_the_same_numbers():
    elbo, (x, y) = elbo_of(classifier(), kasuri.Categorical()), classes()
    whole = evaluate(elbo, (x, y), samples=5)
    for chunk in (1, 7, 40, 99):
        close(evaluate(elbo, (x, y), samples=5, chunk=chunk), whole)
    close(evaluate(elbo, SimpleNamespace(x=x, y=y), samples=5), whole)
    for loader in (DataLoader(TensorDataset(x, y), 16), [(x[:9], y[:9]), (x[9:], y[9:])]):
        close(evaluate(elbo, loader, samples=5, chunk=6), whole)
    real, y = regressor(), torch.randn(40, 1)
    close(evaluate(real, (x, y), samples=5, chunk=9), evaluate(real, (x, y), samples=5))


def test_several_and_named_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

        def forward(self, left, right):
            return {"logits": self.a(left) + self.b(right)}

    bnn, left, right, y = (
        kasuri.bayesianize(Two(), kasuri.MeanField(scale=0.2)),
        *torch.randn(9, 6).split([4, 2], 1),
        classes(9)[1],
    )
    options = {
        "likelihood": kasuri.Categorical(),
        "output": lambda out: out["logits"],
        "samples": 3,
    }
    a = evaluate(bnn, ((left, right), y), chunk=2, outside=(left, right), **options)
    b = evaluate(bnn, ({"left": left, "right": right}, y), **options)
    close({name: a[name] for name in b}, b)
    pairs = DataLoader([((u, v), t) for u, v, t in zip(left, right, y, strict=True)], 4)
    close(evaluate(bnn, pairs, **options), b)


def test_seeded_and_without_traces():
    elbo, data = elbo_of(classifier(), kasuri.Categorical()), classes()
    elbo.bnn[1].eval()
    torch.manual_seed(4)
    expected = torch.randn(2)
    torch.manual_seed(4)
    a, b, c = (evaluate(elbo, data, samples=3, seed=s, outside=data[0]) for s in (1, 1, 2))
    assert torch.equal(torch.randn(2), expected)
    assert a == b
    assert a["gibbs_nll"] != c["gibbs_nll"]
    assert [module.training for module in (elbo, elbo.bnn, elbo.bnn[0], elbo.bnn[1])] == [
        True,
        True,
        True,
        False,
    ]
    assert all(p.grad is None for p in elbo.parameters())


def test_threads_do_not_disturb_each_other_or_the_global_generator():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    plain = kasuri.MaximumLikelihood(net, kasuri.Categorical())
    elbo, data = elbo_of(classifier(), kasuri.Categorical()), classes()
    models = [
        elbo,
        kasuri.prediction.mc_dropout(plain, 5),
        kasuri.prediction.ensemble([elbo, elbo], 3),
    ]
    alone = [evaluate(model, data, samples=5, seed=1) for model in models]
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda n: evaluate(models[n % 3], data, samples=5, seed=1), range(24))
        )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert found == alone * 8
    assert elbo.training
    assert net.training


def test_a_single_example_has_no_standard_error():
    told = evaluate(classifier(), classes(1), likelihood=kasuri.Categorical(), samples=3)
    assert not [name for name in told if name.endswith("_sem")]
    json.dumps(told, allow_nan=False)


# outside


@pytest.mark.parametrize("score", ["entropy", "mutual_information"])
def test_the_second_set_is_told_apart_by_uncertainty(score):
    elbo, (x, y), other = elbo_of(classifier(), kasuri.Categorical()), classes(), torch.randn(30, 4)
    told = evaluate(elbo, (x, y), samples=S, outside=other, chunk=13)
    scores = [getattr(kasuri.predict(elbo, z, S, seed=0), score) for z in (x, other)]
    assert told[f"ood_auroc_{score}"] == pytest.approx(metrics.auroc(*scores), abs=1e-3)
    assert told[f"{score}_outside"] == pytest.approx(scores[1].mean().item(), rel=1e-5)
    loader = DataLoader(TensorDataset(other, torch.zeros(30)), 11)
    close(evaluate(elbo, (x, y), samples=S, outside=loader), told)
    close(evaluate(elbo, (x, y), samples=S, outside=SimpleNamespace(x=other, y=None)), told)


def test_regressions_are_more_uncertain_far_away():
    net = kasuri.bayesianize(nn.Linear(4, 1), kasuri.MeanField(scale=0.3))
    told = evaluate(
        elbo_of(net, kasuri.Gaussian(0.1)),
        (torch.randn(50, 4), torch.randn(50, 1)),
        samples=50,
        outside=20 * torch.randn(50, 4),
    )
    assert told["ood_auroc_std"] > 0.95
    assert told["std_outside"] > told["std"]


# refusals


def nan_net():
    net = nn.Linear(4, 3)
    nn.init.constant_(net.bias, float("nan"))
    return net


def shapeless(x):
    return kasuri.predict(classifier(), x, 2, likelihood=CAT)


DATA, CAT = (torch.ones(5, 4), torch.zeros(5, dtype=torch.long)), kasuri.Categorical()
SOFT = (torch.ones(5, 4), torch.full((5, 1), 0.3))
REAL = (torch.ones(5, 4), torch.tensor([[1.0], [float("nan")], [2.0], [float("inf")], [0.0]]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: evaluate(nn.Linear(4, 3), DATA), "likelihood=kasuri.Categorical"),
        (lambda: evaluate(nn.Linear(4, 3), DATA, likelihood=CAT, samples=0), "at least 1"),
        (lambda: evaluate(nn.Linear(4, 3), DATA, likelihood=CAT, chunk=0), "at least 1"),
        (
            lambda: evaluate(elbo_of(classifier(), CAT), DATA, likelihood=kasuri.Bernoulli()),
            "its own",
        ),
        (lambda: evaluate(lambda x: x, DATA, likelihood=CAT), "leave it out"),
        (lambda: evaluate(nn.Linear(4, 1), SOFT, likelihood=kasuri.Bernoulli()), "y.round"),
        (lambda: evaluate(shapeless, (DATA[0], torch.zeros(5, 1).long())), r"y.reshape\(5,\)"),
        (lambda: evaluate(lambda x: x, DATA), "must return"),
        (lambda: evaluate(nan_net(), DATA, likelihood=CAT), "5 of 5 rows are not finite"),
        (lambda: evaluate(regressor(), REAL, samples=2), "2 of 5 rows are not finite"),
        (lambda: evaluate(nn.Linear(4, 3), (DATA[0], DATA[1][:4]), likelihood=CAT), r"\[5, 4\]"),
        (lambda: evaluate(nn.Linear(4, 3), (DATA[0],), likelihood=CAT), "got tuple"),
        (lambda: evaluate(nn.Linear(4, 3), [DATA[0]], likelihood=CAT), "Tensor"),
        (lambda: evaluate(nn.Linear(4, 3), DATA[0], likelihood=CAT), r"give \(x, y\)"),
        (lambda: evaluate(nn.Linear(4, 3), TensorDataset(*DATA), likelihood=CAT), "DataLoader"),
        (lambda: evaluate(nn.Linear(4, 3), [], likelihood=CAT), "no examples"),
        (lambda: evaluate(nn.Linear(4, 3), DATA, likelihood=CAT, target_scale=2), "real targets"),
        (lambda: evaluate(regressor(), (DATA[0], torch.ones(5, 1)), target_scale=-1), "positive"),
        (lambda: evaluate(lambda x: kasuri.predict(classifier(), x, 2), DATA), "likelihood="),
    ],
)
def test_impossible_requests_are_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()

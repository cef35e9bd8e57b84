"""Validation during training: early stopping, the state that is kept, the estimate itself."""

import math

import pytest
import torch
from torch import nn

import kasuri
from kasuri.network.random import named_layers
from kasuri.objectives.temperature import is_better
from kasuri.streams import Stream, mix
from kasuri.training import Validation, defaults
from kasuri.training.validation import examine, log_mean
from tests.training.jobs import bayesian, differences, moons, network


def test_patience_counts_validations_without_improvement():
    x, y = moons(40)
    fitted = kasuri.fit(
        network(),
        (x, y),
        Validation((x, 1 - y), patience=3),  # the better it learns, the worse its validation
        epochs=defaults.CHECKS,
        learning_rate=0.05,
        seed=0,
    )
    assert [row["epoch"] for row in fitted.history] == [1, 2, 3, 4]
    assert fitted.best_epoch == 1


class States(kasuri.training.Callback):
    """Keeps the state of every epoch."""

    def __init__(self):
        self.kept = []

    def on_epoch(self, objective, row):
        self.kept.append({k: v.clone() for k, v in objective.state_dict().items()})


@pytest.mark.parametrize("make", [bayesian, network])
def test_an_epoch_that_the_best_does_not_beat_clearly_is_what_is_returned(make):
    x, y = moons(40)
    (a, b), states = moons(30, seed=1), States()
    valid = a, torch.where(torch.arange(30) < 12, 1 - b, b)  # learning too well is punished
    settings = {"epochs": 12, "learning_rate": 0.3, "seed": 3, "callbacks": [states]}
    fitted = kasuri.fit(make(), (x, y), Validation(valid, samples=5), **settings)
    kept = fitted.best_epoch - 1
    assert differences(states.kept[kept], fitted.objective.state_dict()) == []
    losses, scores = check(fitted.objective, valid)
    assert scores["nll"] == fitted.history[kept]["valid_nll"]
    assert scores["accuracy"] == fitted.history[kept]["valid_accuracy"]
    lowest = min(fitted.history, key=lambda row: row["valid_nll"])
    fitted.objective.load_state_dict(states.kept[lowest["epoch"] - 1])
    assert not is_better(check(fitted.objective, valid)[0], losses)


def check(objective, valid):
    return examine(objective, *valid, samples=5, seed=mix(3, Stream.VALIDATION))


def pretending(monkeypatch, curve, **more):
    """Training of one epoch per entry; what validation finds is made up: mean NLL, same noise."""
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0))
    noise -= noise.mean()
    made_up = enumerate(curve)

    def validation(objective, x, y, samples, seed):
        number, nll = next(made_up)
        own = torch.randn(100, generator=torch.Generator().manual_seed(number))
        losses = nll + noise + 0.1 * (own - own.mean())
        return losses, {"nll": float(losses.mean())}

    monkeypatch.setattr("kasuri.training.loop.examine", validation)
    settings = {"epochs": len(curve), "batch_size": 20, "seed": 0}
    return kasuri.fit(network(), moons(20), Validation(moons(20), **more), **settings)


def test_the_newest_epoch_within_a_standard_error_of_the_best_is_kept(monkeypatch):
    assert pretending(monkeypatch, [0.9, 0.7, 0.5, 0.501, 0.499, 0.502]).best_epoch == 6
    assert pretending(monkeypatch, [0.9, 0.7, 0.5, 0.6, 0.7, 0.8]).best_epoch == 3


def test_the_last_epoch_can_be_kept_whatever_validation_says(monkeypatch):
    rising = [0.5, 0.7, 0.9, 1.1]
    fitted = pretending(monkeypatch, rising, keep="last")
    assert fitted.best_epoch == 4
    monkeypatch.undo()
    states, settings = States(), {"epochs": 3, "batch_size": 20, "seed": 0, "learning_rate": 0.3}
    x, y = moons(40)
    last = Validation((x, 1 - y), keep="last")
    kept = kasuri.fit(network(), (x, y), last, callbacks=[states], **settings)
    assert differences(states.kept[-1], kept.objective.state_dict()) == []


def test_small_steps_do_not_creep_away_from_the_best_epoch(monkeypatch):
    rising = [0.9, 0.5, *(0.5 + 0.02 * i for i in range(1, 18))]  # 0.02 is within chance, 0.3 not
    fitted = pretending(monkeypatch, rising)
    assert fitted.history[fitted.best_epoch - 1]["valid_nll"] < 0.55


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_epoch_whose_validation_is_not_a_number_is_not_kept(monkeypatch, bad):
    assert pretending(monkeypatch, [0.9, 0.7, 0.5, bad, bad]).best_epoch == 3
    fitted = pretending(monkeypatch, [bad, 0.9, 0.5, 0.7, 0.8], patience=3)
    assert (fitted.best_epoch, len(fitted.history)) == (3, 5)


def test_long_runs_are_validated_now_and_then_and_at_the_end():
    epochs = 2 * defaults.CHECKS + 1
    fitted = kasuri.fit(network(), moons(20), moons(20, seed=1), epochs=epochs, seed=0)
    checked = [row["epoch"] for row in fitted.history if "valid_nll" in row]
    assert checked == [*range(2, epochs, 2), epochs]


def test_validation_is_in_evaluation_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x, y = moons(30, seed=1)
    fitted = kasuri.fit(net, moons(40), (x, y), epochs=1, batch_size=10, seed=0)
    assert int(net[1].num_batches_tracked) == 4  # of training alone
    nll = nn.functional.cross_entropy(net.eval()(x), y)
    assert fitted.history[0]["valid_nll"] == pytest.approx(float(nll.detach()), rel=1e-6)


def test_validation_is_of_the_mean_over_draws_of_whole_weights():
    fitted = kasuri.fit(bayesian(), moons(40), epochs=1, temperature=0.1, seed=0)
    x, y = moons(30, seed=1)
    with torch.no_grad(), kasuri.frozen(fitted.net, mix(9, 0)):
        draw = drawn(fitted.net)
    pair = [draw, {k: 2 * mean - draw[k] for k, mean in means(fitted.net).items()}]
    likelihoods = [
        torch.func.functional_call(network(), one, x).softmax(-1)[torch.arange(30), y]
        for one in pair
    ]
    expected = -torch.stack(likelihoods).mean(0).log()
    losses, scores = examine(fitted.objective, x, y, samples=2, seed=9)
    torch.testing.assert_close(losses, expected)
    assert scores["nll"] == pytest.approx(float(expected.mean()), rel=1e-5)
    one, _ = examine(fitted.objective, x, y, samples=1, seed=9)
    torch.testing.assert_close(one, -likelihoods[0].log())


def test_the_estimate_from_few_draws_is_nearly_unbiased():
    g = torch.Generator().manual_seed(0)
    logs = 0.5 * torch.randn(8, 20_000, generator=g)
    truth = 0.5**2 / 2  # log of the mean of a log-normal
    plain = logs.logsumexp(0) - math.log(8)
    assert abs(plain.mean() - truth) > 0.01
    assert abs(log_mean(logs).mean() - truth) < 0.004
    torch.testing.assert_close(log_mean(logs + 700.0), log_mean(logs) + 700.0, atol=1e-3, rtol=0)
    torch.testing.assert_close(log_mean(torch.full((8, 3), -2.5)), torch.full((3,), -2.5))


def test_no_estimate_is_above_the_largest_of_the_draws():
    logs = torch.full((8, 4), -20.0)
    logs[2:4, 0] = -0.01  # one pair of draws likes the first example, the others do not at all
    logs[0, 1] = -0.01
    logs[:, 2] = torch.tensor([-0.01, -90.0] * 4)
    assert (log_mean(logs) <= logs.amax(0)).all()


def means(net):
    return {name: q.mean.detach() for name, q in kasuri.named_posteriors(net)}


def drawn(net):
    return {
        f"{place}.{name}": getattr(layer, name)
        for place, layer, conversion in named_layers(net)
        for name in conversion.views
    }

"""Successive halving of temperatures."""

import math

import pytest
import torch

import kasuri
from kasuri.training import halving
from kasuri.training.halving import FACTORS, fit_halving
from tests.training.jobs import bayesian, moons

WEIGHTS = sum(q.numel() for _, q in kasuri.named_posteriors(bayesian()))
START = 0.4 * 20 / WEIGHTS  # below 1/3, so that no temperature is cut off at 1


def watched(monkeypatch, score):
    """Runs of fit as (temperature, epochs), and validation scores made up from the temperature."""
    runs, true = [], halving.fit

    def fit(model, *args, **options):
        fitted = true(model, *args, **options)
        runs.append((round(fitted.temperature / START, 3), options["epochs"]))
        return fitted

    monkeypatch.setattr(halving, "fit", fit)
    monkeypatch.setattr(
        halving, "validate", lambda one, *_: {"nll": score(one.weight_at(0) / START)}
    )
    return runs


@pytest.mark.parametrize("best", FACTORS)
def test_the_better_half_goes_on_and_the_cost_is_that_of_one_run(monkeypatch, best):
    runs = watched(monkeypatch, lambda factor: abs(math.log(factor / best)))
    bnn = bayesian()
    fitted = fit_halving(bnn, moons(20), moons(50), epochs=32, batch_size=20, seed=0)
    assert fitted.temperature == pytest.approx(best * START)
    assert fitted.net is bnn
    assert fitted.objective.bnn is bnn
    warm, *rungs, last = runs
    assert warm == (1.0, 8)
    assert sorted(f for f, _ in rungs[:4]) == sorted(round(f, 3) for f in FACTORS)
    assert [epochs for _, epochs in rungs] == [2] * 4 + [4] * 2
    assert last == (round(best, 3), 8)
    assert sum(epochs for _, epochs in runs) == 32


def test_a_candidate_that_is_not_a_number_loses(monkeypatch):
    watched(monkeypatch, lambda factor: math.nan if factor > 0.9 else factor)
    fitted = fit_halving(bayesian(), moons(20), moons(50), epochs=16, batch_size=20, seed=0)
    assert fitted.temperature < 0.5 * START


def test_the_history_goes_through_and_the_best_epoch_is_in_it():
    fitted = fit_halving(bayesian(), moons(60), moons(50), epochs=32, batch_size=20, seed=0)
    assert [row["epoch"] for row in fitted.history] == list(range(1, 17))
    assert [row["step"] for row in fitted.history] == [3 * e for e in range(1, 17)]
    assert fitted.history[fitted.best_epoch - 1]["temperature"] == fitted.temperature
    assert fitted.best_epoch > 8
    assert fitted.objective.weight_at(None) == fitted.temperature
    assert kasuri.evaluate(fitted.objective, moons(40), samples=5)["nll"] < 1


def test_it_repeats_itself_and_leaves_the_generator_alone():
    before = torch.get_rng_state()
    settings = {"epochs": 16, "batch_size": 20, "seed": 3}
    first = fit_halving(bayesian(), moons(60), **settings)
    torch.manual_seed(99)
    again = fit_halving(bayesian(), moons(60), **settings)
    state = again.net.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in first.net.state_dict().items())
    torch.set_rng_state(before)


def test_options_of_fit_are_taken():
    fitted = fit_halving(
        bayesian(),
        moons(60),
        epochs=16,
        prior=kasuri.Normal(0.3),
        likelihood=kasuri.Categorical(),
        learning_rate=0.01,
        clip=1.0,
        factors=(0.5, 2.0),
        seed=0,
    )
    assert fitted.objective.priors[0].scale == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factors": (1.0, 2.0, 3.0)}, "2, 4, 8"),
        ({"factors": (1.0, 1.0)}, "different"),
        ({"factors": (0.0, 1.0)}, "above 0"),
        ({"epochs": 7}, "at least 16"),
        ({"folder": "runs"}, r"folder=\.\.\."),
        ({"temperature": 1.0}, r"temperature=\.\.\."),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        fit_halving(bayesian(), moons(60), moons(50), **{"epochs": 16, **options})


def test_an_objective_is_refused():
    elbo = kasuri.ELBO(bayesian(), kasuri.Categorical(), kasuri.HeNormal(), 60)
    with pytest.raises(TypeError, match="give the network"):
        fit_halving(elbo, moons(60))

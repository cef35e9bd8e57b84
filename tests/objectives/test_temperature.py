"""Temperatures: one that follows the size of the network, one that follows validation."""

import itertools
import math

import pytest
import torch

import kasuri
from kasuri.objectives.temperature import END, HALF, Tempering, resolve
from tests.training.jobs import bayesian, moons, network

NOW = 0.3 + 0.2 * torch.rand(50, generator=torch.Generator().manual_seed(0))  # NLL of examples

WEIGHTS = 2 * 6 + 6 + 6 * 2 + 2  # of `bayesian()`


def objective(value, num_data=90):
    options = {"num_data": num_data, "temperature": value}
    return kasuri.ELBO(bayesian(), kasuri.Categorical(), kasuri.Normal(0.7), **options)


@pytest.mark.parametrize("num_data", [90, 12345])
def test_the_balanced_loss_is_nll_plus_tau_kl_over_weights(num_data):
    elbo = objective(kasuri.Balanced(0.3), num_data)
    loss, nll, kl = elbo(*moons(11))
    torch.testing.assert_close(loss, nll + 0.3 * kl / WEIGHTS)
    torch.testing.assert_close(kl, elbo.kl())


def test_fit_takes_balanced_and_a_file_keeps_it(tmp_path):
    balance, data = kasuri.Balanced(0.05), moons(20)
    fitted = kasuri.fit(bayesian(), data, temperature=balance, epochs=2, seed=0)
    assert fitted.temperature == pytest.approx(0.05 * 20 / WEIGHTS)
    kasuri.save(fitted.net, tmp_path / "m", objective=fitted.objective)
    again = kasuri.load_objective(tmp_path / "m", kasuri.load(tmp_path / "m", network()))
    assert again.temperature == fitted.objective.temperature
    fits = kasuri.training.fit_many(
        [bayesian(), bayesian()], [data] * 2, temperature=balance, epochs=1
    )
    assert [one.temperature for one in fits] == [fitted.temperature] * 2


def test_auto_is_the_default_of_fit_and_a_start_in_an_objective(tmp_path):
    data, settings = moons(11), {"epochs": 3, "batch_size": 4, "seed": 0}
    said = kasuri.fit(bayesian(), data, data, temperature="auto", **settings)
    default = kasuri.fit(bayesian(), data, data, **settings)
    assert [r["valid_nll"] for r in said.history] == [r["valid_nll"] for r in default.history]
    elbo = objective("auto", num_data=40)
    assert elbo.weight_at(0) == pytest.approx(0.3 * 40 / WEIGHTS)
    elbo.temperature.chosen = 0.123
    kasuri.save(elbo.bnn, tmp_path / "m", objective=elbo)
    net = kasuri.load(tmp_path / "m", network())
    assert kasuri.load_objective(tmp_path / "m", net).temperature(0) == 0.123


def test_numbers_and_schedules_are_taken_as_they_are():
    ramp = kasuri.schedules.LinearPerBatch(rate=0.1)
    assert resolve(ramp, bayesian(), 10, 1.0, (0.1, 1.0)) is ramp
    assert resolve(0.2, bayesian(), 10, 1.0, (0.1, 1.0))(99) == 0.2
    with pytest.raises(ValueError, match="-1"):
        kasuri.Balanced(-1.0)
    with pytest.raises(ValueError, match=r"best.*kasuri\.Balanced"):
        objective("best")


def risen(best, usual=0.1, begin=0.25, noise=0.0, broken=(), steps=200, stop=None):
    """A temperature under losses that are lowest at `best`, its path, and the looks it asked for."""
    tempering = Tempering(usual, begin, end=3.0)
    tempering.rise(steps)
    path, looks = [], []
    for step in range(1, steps + 1 if stop is None else stop):
        path.append(tempering(step))
        if tempering.is_looking(step):
            far = math.log(tempering(step) / best)
            own = torch.randn(50, generator=torch.Generator().manual_seed(step))
            losses = NOW + 0.05 * far**2 + noise * own
            if len(looks) in broken:
                losses[3] = math.nan
            looks.append(step)
            tempering.update(losses, step)
    return tempering, path, looks


def test_it_is_the_usual_one_outside_of_training():
    assert Tempering(0.1, 0.25, 3.0)(0) == Tempering(0.1, 0.25, 3.0)(10**6) == 0.1


@pytest.mark.parametrize("usual", [0.001, 0.1, 1.0])
def test_it_rises_from_far_below_the_usual_one_to_far_above(usual):
    _, path, looks = risen(best=1e6, usual=usual)
    assert path[0] == pytest.approx(0.25 * usual, rel=0.05)
    assert all(b > a for a, b in itertools.pairwise(path[: looks[-1]]) if b < 1.0)
    assert path[-1] == pytest.approx(min(1.0, usual * 3.0), rel=0.3)
    assert 20 <= len(looks) <= 40
    assert looks[-1] == END * 200


@pytest.mark.parametrize("best", [0.07, 0.1, 0.25])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_it_ends_where_losses_are_lowest(best, noise):
    tempering, path, _ = risen(best, noise=noise)
    assert abs(math.log(tempering(200) / best)) < (0.3 if noise == 0 else 0.6)
    assert path[-5:] == [tempering.chosen] * 5


def test_what_chance_explains_does_not_move_it_from_the_usual_one():
    tempering, *_ = risen(best=0.03, noise=3.0)
    assert abs(math.log(tempering(200) / 0.1)) < 0.7


def test_it_stops_rising_where_the_posterior_has_become_worse_but_not_before_half_of_training():
    _, path, looks = risen(best=0.05)
    assert HALF * 200 < looks[-1] < (HALF + 0.1) * 200
    assert max(path) < 0.2


@pytest.mark.parametrize("best", [0.1, 1e6])
def test_losses_that_are_not_numbers_do_not_attract(best):
    everywhere, *_ = risen(best, broken=range(40))
    assert everywhere(200) == pytest.approx(0.1, rel=0.5)
    here, *_ = risen(best=0.1, broken=(9, 10, 11))
    assert abs(math.log(here(200) / 0.1)) < 1.0


def test_a_stored_state_goes_on_where_it_was():
    whole, *_ = risen(best=0.3)
    half, *_ = risen(best=0.3, stop=130)
    other = Tempering(0.1, 0.25, 3.0)
    other.load_state_dict(half.state_dict())
    for step in range(130, 201):
        if other.is_looking(step):
            far = math.log(other(step) / 0.3)
            other.update(NOW + 0.05 * far**2, step)
    assert other(200) == whole(200)


def test_fit_follows_what_validation_finds_and_tells_it(monkeypatch):
    usual, ended = 0.3 * 60 / WEIGHTS, []
    for best in (0.1, 10.0):

        def made_up(objective, x, y, samples, seed, best=best):
            far = math.log(objective.temperature(objective.looked_at) / (best * usual))
            return NOW + 0.05 * far**2, {"nll": 0.0}

        class Watching(kasuri.training.Callback):
            def on_step(self, objective, step, terms):
                objective.looked_at = step

        monkeypatch.setattr("kasuri.training.loop.examine", made_up)
        monkeypatch.setattr(kasuri.Categorical, "rise", (0.05, 3.0))
        valid = kasuri.training.Validation(moons(50), keep="last")
        settings = {"epochs": 40, "batch_size": 20, "seed": 0, "callbacks": [Watching()]}
        fitted = kasuri.fit(bayesian(), moons(60), valid, **settings)
        told = [row["temperature"] for row in fitted.history]
        assert told[0] < 0.1 * usual
        assert told[-3:] == [fitted.temperature] * 3
        assert fitted.objective.weight_at(None) == fitted.temperature
        ended.append(fitted.temperature)
    assert ended[0] < usual < ended[1]


def test_one_tempering_object_serves_one_run():
    data, settings = moons(60), {"epochs": 3, "batch_size": 20, "seed": 0}
    first = kasuri.fit(bayesian(), data, **settings)
    again = kasuri.fit(first.net, data, **settings)  # training goes on from the trained network
    assert again.history[0]["temperature"] == first.history[0]["temperature"]

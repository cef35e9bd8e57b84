"""Temperatures: one that follows the size of the network, one that follows validation."""

import copy
import itertools
import math

import pytest
import torch

import kasuri
from kasuri.objectives import temperature
from kasuri.objectives.temperature import FACTORS, Tempering, resolve
from kasuri.training.validation import examine, widths
from tests.training.jobs import bayesian, moons, network

START = 0.1
NOW = 0.3 + 0.2 * torch.rand(50, generator=torch.Generator().manual_seed(0))  # NLL of examples
NOISE = torch.randn(50, generator=torch.Generator().manual_seed(1))
NOISE = (NOISE - NOISE.mean()) / NOISE.std()
ERROR = 1 / math.sqrt(50)  # standard error of its mean


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
    assert elbo.weight_at(0) == pytest.approx(0.4 * 40 / WEIGHTS)
    elbo.temperature.value = 0.123
    kasuri.save(elbo.bnn, tmp_path / "m", objective=elbo)
    net = kasuri.load(tmp_path / "m", network())
    assert kasuri.load_objective(tmp_path / "m", net).temperature(0) == 0.123


def test_numbers_and_schedules_are_taken_as_they_are():
    ramp = kasuri.schedules.LinearPerBatch(rate=0.1)
    assert resolve(ramp, bayesian(), 10) is ramp
    assert resolve(0.2, bayesian(), 10)(99) == 0.2
    with pytest.raises(ValueError, match="-1"):
        kasuri.Balanced(-1.0)
    with pytest.raises(ValueError, match=r"best.*kasuri\.Balanced"):
        objective("best")


def updated(narrower, now, wider, start=START, times=1):
    tempering = Tempering(start)
    for _ in range(times):
        tempering.update([narrower, now, wider])
    return tempering.value


def test_it_goes_where_all_examples_are_better_off_by_a_bounded_step():
    assert START < updated(NOW + 0.1, NOW, NOW - 0.1) <= START * FACTORS[2] ** 2
    assert START > updated(NOW - 0.1, NOW, NOW + 0.1) >= START * FACTORS[0] ** 2
    assert updated(NOW + 0.1, NOW, NOW + 0.1) == START


@pytest.mark.parametrize("sign", [-1, 1])
def test_it_moves_only_for_gains_that_chance_does_not_explain(sign):
    for gain, moves in ((0.9, False), (1.1, True)):
        other = NOW - 0.1 * (NOISE + gain * temperature.ERRORS * ERROR)
        losses = (NOW + 1, NOW, other) if sign > 0 else (other, NOW, NOW + 1)
        assert (updated(*losses) != START) == moves
        assert (updated(*losses) - START) * sign >= 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_widths_that_are_not_numbers_do_not_attract(bad):
    broken = NOW - 0.1
    broken[3] = bad
    assert updated(NOW + 0.1, NOW, broken) == START
    assert updated(broken, NOW, NOW + 0.1) == START
    assert updated(NOW[:1] + 0.1, NOW[:1], NOW[:1] - 0.1) == START  # one example says nothing
    assert updated(NOW, NOW, NOW) == START


def test_a_present_width_that_overflows_goes_down():
    now, wider = NOW.clone(), NOW.clone()
    now[3] = wider[3] = math.inf
    assert updated(NOW, now, wider) < START


@pytest.mark.parametrize("start", [1e-4, 0.9, 1.0])
def test_the_temperature_has_bounds_on_both_sides(start):
    up, down = (NOW + 0.1, NOW, NOW - 0.1), (NOW - 0.1, NOW, NOW + 0.1)
    highest, lowest = updated(*up, start, times=100), updated(*down, start, times=100)
    assert 0 < lowest < start <= highest <= 1
    assert (updated(*up, start, times=101), updated(*down, start, times=101)) == (highest, lowest)


@pytest.mark.parametrize("best", [0.4, 1.0, 2.5])
def test_it_settles_near_the_temperature_whose_width_is_best(best):
    tempering = Tempering(START)
    for _ in range(30):
        off = [math.log(f) + 0.5 * math.log(tempering.value / (best * START)) for f in FACTORS]
        tempering.update([NOW + 0.5 * far**2 + 1e-3 * NOISE * far for far in off])
    assert abs(math.log(tempering.value / (best * START))) <= 2 * math.log(FACTORS[2])
    assert tempering(0) == tempering(10**6) == tempering.value


def test_widths_are_those_of_wider_posteriors():
    bnn = bayesian(family=kasuri.MeanField(scale=0.3))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=10)
    x, y = moons(50)
    found = widths(elbo, x, y, samples=6, seed=1, factors=(0.5, 1.0, 3.0))
    for factor, losses in zip((0.5, 1.0, 3.0), found, strict=True):
        wide = copy.deepcopy(bnn)
        with torch.no_grad():
            for _, posterior in kasuri.named_posteriors(wide):
                posterior.log_scale += math.log(factor)
        other = kasuri.ELBO(wide, kasuri.Categorical(), kasuri.HeNormal(), num_data=10)
        expected, _ = examine(other, x, y, samples=6, seed=1)
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


def test_measuring_widths_leaves_no_trace():
    bnn = bayesian().train()
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=10)
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in elbo.state_dict().items()}
    widths(elbo, *moons(50), samples=3, seed=1, factors=FACTORS)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[k], v) for k, v in elbo.state_dict().items())
    assert all(module.training for module in bnn.modules())
    assert not torch.equal(bnn(moons(5)[0]), bnn(moons(5)[0]))  # draws anew again


def test_fit_moves_it_when_training_has_settled_and_tells_it(monkeypatch):
    def wider(objective, x, y, samples, seed, factors):
        return [NOW + 10.0, NOW - 10.0]

    monkeypatch.setattr("kasuri.training.loop.widths", wider)
    fitted = kasuri.fit(bayesian(), moons(60), moons(50), epochs=10, batch_size=20, seed=0)
    told = [row["temperature"] for row in fitted.history]
    moved = [b > a for a, b in itertools.pairwise(told)]
    first = math.ceil(temperature.SETTLED * 10)  # the epoch whose validation may move it
    assert moved[: first - 1] == [False] * (first - 1)
    assert moved[first - 1]
    assert fitted.temperature == told[fitted.best_epoch - 1]
    assert fitted.objective.weight_at(None) == fitted.temperature


def test_one_tempering_object_serves_one_run():
    data, settings = moons(60), {"epochs": 3, "batch_size": 20, "seed": 0}
    first = kasuri.fit(bayesian(), data, **settings)
    again = kasuri.fit(first.net, data, **settings)  # training goes on from the trained network
    assert again.history[0]["temperature"] == first.history[0]["temperature"]

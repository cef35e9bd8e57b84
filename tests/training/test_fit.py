"""`kasuri.fit`: learns, takes what people have, refuses what cannot be meant."""

import pytest
import torch
from torch import nn

import kasuri
from kasuri.network import calls
from kasuri.training import Clip, Validation, defaults
from tests.training import jobs
from tests.training.jobs import bayesian, equal, line, moons, network


def test_classes_are_learned():
    fitted = kasuri.fit(
        bayesian("local"), moons(400), epochs=15, batch_size=40, learning_rate=0.03, seed=0
    )
    x, y = moons(300, seed=7)
    guess = kasuri.predict(fitted.net, x, samples=20, likelihood=kasuri.Categorical(), seed=0).mean
    assert (guess.argmax(-1) == y).double().mean() > 0.9  # a coin gets one half
    assert fitted.history[-1]["nll"] < 0.5 * fitted.history[0]["nll"]


def test_real_targets_and_the_size_of_their_noise_are_learned():
    fitted = kasuri.fit(
        bayesian(outputs=1), line(400), epochs=25, batch_size=40, learning_rate=0.03, seed=0
    )
    assert isinstance(fitted.objective.likelihood, kasuri.Gaussian)
    assert float(fitted.objective.likelihood.scale.detach()) == pytest.approx(0.2, rel=0.4)
    x, y = line(300, seed=7)
    guess = kasuri.predict(fitted.objective, x, samples=20, seed=0).mean
    assert (guess - y).square().mean() < 0.1 * y.var()


def test_a_plain_network_is_trained_by_maximum_likelihood():
    net = network()
    fitted = kasuri.fit(net, moons(200), epochs=15, batch_size=20, learning_rate=0.03, seed=0)
    assert isinstance(fitted.objective, kasuri.MaximumLikelihood)
    assert fitted.net is net
    assert fitted.temperature is None
    assert all(row["kl"] == 0 and row["loss"] == row["nll"] for row in fitted.history)
    assert not {"temperature", "kl_weight", "valid_nll"} & fitted.history[-1].keys()
    assert fitted.best_epoch == 15
    x, y = moons(300, seed=7)
    assert (net(x).argmax(-1) == y).double().mean() > 0.9


def test_one_step_is_the_one_written_by_hand():
    x, y = moons(20)
    net, twin = network(), network()
    kasuri.fit(
        net,
        (x, y),
        epochs=1,
        batch_size=20,
        optimiser=lambda o: torch.optim.SGD(o.parameters(), 0.5),
        scheduler=kasuri.training.constant,
        seed=0,
    )
    nn.functional.cross_entropy(twin(x), y).backward()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b - 0.5 * b.grad)


def test_an_objective_is_taken_as_it_is():
    bnn = bayesian()
    elbo = kasuri.ELBO(
        bnn, kasuri.Categorical(), kasuri.Normal(0.7), num_data=12345, temperature=0.25
    )
    fitted = kasuri.fit(elbo, moons(40), epochs=2, batch_size=10, seed=0)
    assert fitted.objective is elbo
    assert fitted.net is bnn
    assert (elbo.num_data, fitted.temperature) == (12345, 0.25)
    for row in fitted.history:  # nothing was held out, no warm-up was added
        assert row["loss"] == pytest.approx(row["nll"] + 0.25 * row["kl"] / 12345, rel=1e-5)
        assert "valid_nll" not in row
    assert [row["step"] for row in fitted.history] == [4, 8]


PARTS = {
    "likelihood": kasuri.Categorical(),
    "prior": kasuri.Normal(1.0),
    "temperature": 0.5,
    "kl_weight": 0.5,
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_an_objective_that_has_its_own_or_no_use_for_them(name):
    elbo = kasuri.ELBO(bayesian(), kasuri.Categorical(), kasuri.Normal(1.0), num_data=40)
    with pytest.raises(ValueError, match=name):
        kasuri.fit(elbo, moons(40), **{name: PARTS[name]})
    if name != "likelihood":
        with pytest.raises(ValueError, match=f"{name}.*bayesianize"):
            kasuri.fit(network(), moons(40), **{name: PARTS[name]})


@pytest.mark.parametrize(
    ("words", "act"),
    [
        ("epochs.*0", lambda: go(epochs=0)),
        ("batch_size.*0", lambda: go(batch_size=0)),
        ("learning_rate.*0", lambda: go(learning_rate=0.0)),
        ("learning_rate.*optimiser", lambda: go(optimiser=torch.optim.Adam, learning_rate=0.1)),
        ("parameters", lambda: go(optimiser=torch.optim.SGD(network().parameters(), 0.1))),
        ("samples.*-1", lambda: Validation(moons(20), samples=-1)),
        ("patience.*0", lambda: Validation(moons(20), patience=0)),
        ("keep.*newest", lambda: Validation(moons(20), keep="newest")),
        ("norm.*0", lambda: Clip(0.0)),
        ("patience=1", lambda: kasuri.fit(network(), moons(40), Validation(patience=1))),
    ],
)
def test_numbers_that_cannot_be_meant(words, act):
    with pytest.raises(ValueError, match=words):
        act()


def go(**settings):
    return kasuri.fit(bayesian(), moons(40), moons(20), **{"epochs": 1} | settings)


# -- seeds and modes ---------------------------------------------------------------------------------


def test_the_seed_decides():
    def go(ambient, seed):
        net = bayesian()
        torch.manual_seed(ambient)
        return kasuri.fit(net, moons(40), epochs=2, batch_size=10, seed=seed)

    first = go(1, 7)
    again = go(2, 7)
    assert equal(first.net, again.net)
    assert jobs.differences(jobs.timeless(first.history), jobs.timeless(again.history)) == []
    assert not equal(go(1, 8).net, first.net)
    assert equal(go(1, None).net, go(1, None).net)
    assert not equal(go(1, None).net, go(2, None).net)


def test_training_mode_during_training_whatever_it_was_before():
    class Modes(kasuri.training.Callback):
        def __init__(self):
            self.seen = set()

        def on_step(self, objective, step, terms):
            self.seen.add(("step", all(m.training for m in objective.modules())))

    modes = Modes()
    fitted = kasuri.fit(
        bayesian().eval(), moons(40), moons(20), epochs=3, batch_size=10, seed=0, callbacks=[modes]
    )
    assert modes.seen == {("step", True)}  # also after a validation
    assert not calls.state.overrides
    twin = kasuri.fit(bayesian().train(), moons(40), moons(20), epochs=3, batch_size=10, seed=0)
    assert equal(twin.net, fitted.net)
    assert fitted.net.training == twin.net.training


def test_the_temperature_told_is_the_one_at_the_end():
    rising = kasuri.schedules.LinearOverEpochs(2, 4, start=0.1, end=0.9)
    fitted = kasuri.fit(bayesian(), moons(40), temperature=rising, epochs=2, batch_size=10, seed=0)
    assert fitted.temperature == pytest.approx(0.9)
    chosen = kasuri.fit(bayesian(), moons(40), epochs=2, batch_size=10, seed=0)
    assert chosen.temperature == chosen.objective.weight_at(10**9)


def test_the_weight_of_the_kl_rises_over_the_first_epochs():
    class Weights(kasuri.training.Callback):
        def __init__(self):
            self.values = []

        def on_step(self, objective, step, terms):
            loss, nll, kl = (term.detach().double() for term in terms)
            self.values.append(float((loss - nll) / kl * objective.num_data))

    weights = Weights()
    kasuri.fit(
        bayesian(), moons(40), temperature=0.5, epochs=8, batch_size=10, seed=0, callbacks=[weights]
    )
    ramp = defaults.WARM_UP * 8 * 4
    wanted = [0.5 * min(1, step / ramp) for step in range(32)]
    assert weights.values == pytest.approx(wanted, abs=1e-4)

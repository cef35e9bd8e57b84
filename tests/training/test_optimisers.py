"""Any optimiser and any schedule: used as by hand, resumed bit by bit."""

import math

import pytest
import torch

import kasuri
from kasuri.training import Clip
from tests.training import jobs
from tests.training.jobs import Stop, bayesian, equal, line, moons, network

SCHEDULES = {
    "one cycle": lambda o, steps: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=steps),
    "sequence": lambda o, steps: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        milestones=[2],
    ),
    "function": lambda o, steps: torch.optim.lr_scheduler.LambdaLR(o, lambda s: 0.5**s),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_is_stepped_per_batch_and_resumed(tmp_path, kind):
    def go(folder, step=None):
        return kasuri.fit(
            network(),
            moons(40),
            optimiser=lambda o: torch.optim.SGD(o.parameters(), 0.1, momentum=0.9),
            scheduler=SCHEDULES[kind],
            epochs=3,
            batch_size=10,
            seed=0,
            folder=folder,
            callbacks=[Stop(step, jobs.interrupt)],
        )

    whole = go(tmp_path / "whole")
    by_hand = torch.optim.SGD(network().parameters(), 0.1, momentum=0.9)
    schedule = SCHEDULES[kind](by_hand, 12)
    rates = []
    for _ in range(12):
        by_hand.step()
        schedule.step()
        rates.append(by_hand.param_groups[0]["lr"])
    assert [row["learning_rate"] for row in whole.history] == rates[3::4]
    with pytest.raises(kasuri.training.Interrupted):
        go(tmp_path / "two", step=5)
    assert equal(go(tmp_path / "two").net, whole.net)


OPTIMISERS = {
    "SGD": lambda o: torch.optim.SGD(o.parameters(), 0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda o: torch.optim.AdamW(o.parameters(), 0.01, amsgrad=True),
    "two groups": lambda o: torch.optim.Adam(
        [
            {"params": list(o.parameters())[:1], "lr": 0.02},
            {"params": list(o.parameters())[1:], "betas": (0.8, 0.9)},
        ],
        lr=0.01,
    ),
}


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_every_optimiser_learns_and_is_resumed(tmp_path, kind):
    def go(folder, step=None):
        settings = {"epochs": 3, "batch_size": 10, "temperature": 0.01, "seed": 0}
        return kasuri.fit(
            bayesian(),
            moons(40),
            optimiser=OPTIMISERS[kind],
            folder=folder,
            callbacks=[Stop(step, jobs.interrupt)],
            **settings,
        )

    whole = go(tmp_path / "whole")
    assert not equal(whole.net, bayesian())
    with pytest.raises(kasuri.training.Interrupted):
        go(tmp_path / "two", step=5)
    assert equal(go(tmp_path / "two").net, whole.net)


def test_the_optimiser_gets_the_objective():
    taken = []

    def make(objective):
        taken.append(objective)
        return torch.optim.SGD(objective.parameters(), 0.1)

    bnn = bayesian(outputs=1)
    bnn[0].requires_grad_(False)
    frozen = [p.clone() for p in bnn[0].parameters()]
    prior = kasuri.Normal(0.3, learn="gradient")
    fitted = kasuri.fit(bnn, line(40), epochs=1, batch_size=10, seed=0, prior=prior, optimiser=make)
    assert taken == [fitted.objective]
    assert prior.log_scale.item() != pytest.approx(math.log(0.3), abs=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(bnn[0].parameters(), frozen, strict=True))


def test_gradients_are_clipped_after_callbacks_saw_them():
    class Norms(kasuri.training.Callback):
        def __init__(self):
            self.values = []

        def on_step(self, objective, step, terms):
            grads = [p.grad for p in objective.parameters()]
            self.values.append(torch.cat([g.flatten() for g in grads]).norm().item())

    net, norms, before = network(), Norms(), network()
    x, y = moons(20)
    kasuri.fit(
        net,
        (30 * x, 1 - y),
        epochs=1,
        optimiser=lambda o: torch.optim.SGD(o.parameters(), 1.0),
        scheduler=kasuri.training.constant,
        callbacks=[norms, Clip(1e-3)],
        seed=0,
    )
    moved = [(a - b).flatten() for a, b in zip(net.parameters(), before.parameters(), strict=True)]
    assert norms.values[0] > 0.01
    assert torch.cat(moved).norm().item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("given", ["function", "object"])
def test_an_optimiser_may_be_given_ready_made(given):
    net = network()
    make = lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)  # noqa: E731
    optimiser = make if given == "function" else make(net)
    kasuri.fit(net, moons(40), optimiser=optimiser, epochs=2, batch_size=10, seed=0)
    twin = network()
    kasuri.fit(twin, moons(40), optimiser=make, epochs=2, batch_size=10, seed=0)
    assert equal(net, twin)
    assert not equal(net, network())


@pytest.mark.parametrize(
    ("word", "settings"),
    [
        ("LBFGS", {"optimiser": lambda o: torch.optim.LBFGS(o.parameters())}),
        (
            "ReduceLROnPlateau",
            {"scheduler": lambda o, steps: torch.optim.lr_scheduler.ReduceLROnPlateau(o)},
        ),
    ],
)
def test_what_needs_another_loop_is_refused(word, settings):
    with pytest.raises(ValueError, match=word):
        kasuri.fit(network(), moons(40), moons(20), epochs=2, **settings)

"""Any optimiser and any schedule: used as by hand, resumed bit by bit."""

import math
from functools import partial

import pytest
import torch

import kasuri
from kasuri.training import Clip
from tests.training import jobs
from tests.training.jobs import Stop, bayesian, equal, line, moons, network


def sequence(optimiser, steps):
    rising = torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, total_iters=2)
    falling = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
    return torch.optim.lr_scheduler.SequentialLR(optimiser, [rising, falling], milestones=[2])


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3)
CASES = {
    "SGD, a sequence": (lambda o: SGD(o.parameters()), sequence),
    "AdamW, a function": (
        lambda o: torch.optim.AdamW(o.parameters(), 0.01, amsgrad=True),
        lambda o, steps: torch.optim.lr_scheduler.LambdaLR(o, lambda s: 0.5**s),
    ),
    "two groups": (
        lambda o: torch.optim.Adam(
            [
                {"params": list(o.parameters())[:1], "lr": 0.02},
                {"params": list(o.parameters())[1:], "betas": (0.8, 0.9)},
            ]
        ),
        kasuri.training.constant,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_optimiser_and_schedule_steps_per_batch_and_is_resumed(tmp_path, case):
    make, schedule = CASES[case]

    def go(folder, step=None):
        return kasuri.fit(
            bayesian(),
            moons(40),
            temperature=0.01,
            optimiser=make,
            scheduler=schedule,
            epochs=3,
            batch_size=10,
            seed=0,
            folder=folder,
            callbacks=[Stop(step, jobs.interrupt)],
        )

    whole = go(tmp_path / "whole")
    assert not equal(whole.net, bayesian())
    by_hand = make(network())
    rates, stepped = [], schedule(by_hand, 12)
    for _ in range(12):
        by_hand.step()
        stepped.step()
        rates.append(by_hand.param_groups[0]["lr"])
    assert [row["learning_rate"] for row in whole.history] == rates[3::4]
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

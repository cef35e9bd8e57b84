"""What the processes of test_distributed.py run."""

import contextlib
import os
import random
import signal
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import kasuri
from kasuri.network import calls
from kasuri.objectives.elbo import Objective
from kasuri.training import Batches, checkpoint, defaults, started_by_torchrun
from tests.training.jobs import SEED, Stop, interrupt, moons, network

BATCH, EPOCHS = 20, 8
WARM_UP = defaults.WARM_UP * EPOCHS


class Watch(kasuri.training.Callback):
    """Keeps the gradients of the first step, and the loss of every step."""

    def __init__(self):
        self.grads, self.losses = {}, []

    def on_step(self, objective, step, terms):
        self.losses.append(float(terms.loss.detach()))
        if step == 0:
            named = objective.named_parameters()
            self.grads = {name: p.grad.clone() for name, p in named if p.grad is not None}


class OnlyKL(Objective):
    """An objective in which data have no say."""

    output = None

    def __init__(self, bnn):
        super().__init__()
        self.bnn, self.likelihood = bnn, kasuri.Categorical()
        self.elbo = kasuri.ELBO(bnn, self.likelihood, kasuri.Normal(1.0), num_data=40)

    @property
    def net(self):
        return self.bnn

    def parts(self, x, y):
        kl = self.elbo.kl()
        return torch.zeros_like(kl), kl

    def kl_factor(self, step):
        return 1 / 40


def converted(seed=0):
    return kasuri.bayesianize(network(seed=seed), kasuri.KTied(rank=1), estimator="shared")


def learn(net, callbacks=(), **settings):
    """Many batches of 20 in all, however many processes share them."""
    return kasuri.fit(
        net,
        moons(200),
        moons(100, seed=1),
        batch_size=BATCH,
        seed=SEED,
        epochs=EPOCHS,
        learning_rate=0.03,
        callbacks=callbacks,
        **settings,
    )


def only_kl(watch):
    fitted = kasuri.fit(
        OnlyKL(converted()),
        moons(40),
        batch_size=20,
        epochs=2,
        seed=SEED,
        optimiser=lambda o: torch.optim.SGD(o.parameters(), 1e-3),
        callbacks=[watch],
    )
    return fitted.objective.state_dict(), fitted.history


def refusal(act):
    try:
        act()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def many_things(folder, group):
    """One rank's view of several small runs."""
    found, draws, inputs = {}, [], []
    draw = calls.draw

    def recorded(posterior):
        weight = draw(posterior)
        if weight.requires_grad:
            draws.append(weight.detach().clone())
        return weight

    net = converted(seed=group.rank)  # rank 0's is what everybody trains
    net.register_forward_pre_hook(
        lambda module, x: inputs.append(x[0].clone()) if module.training else None
    )
    watch = Watch()
    calls.draw = recorded
    fitted = learn(net, [watch], folder=folder / f"rank {group.rank}")
    calls.draw = draw
    found["state"] = {k: v.clone() for k, v in fitted.objective.state_dict().items()}
    found |= {"draws": draws, "inputs": inputs, "grads": watch.grads, "losses": watch.losses}
    found |= {
        "history": fitted.history,
        "best": fitted.best_epoch,
        "temperature": fitted.temperature,
    }

    watch = Watch()
    found["kl"] = *only_kl(watch), watch.grads
    found["refusals"] = refusals(group)
    found["loader"] = loader(group)
    found["unseeded"] = unseeded(group)
    uneven = [moons(41), Batches(*moons(41), 10, seed=0)]
    settings = [{"batch_size": 10}, {}]
    found["uneven"], found["batches"] = (
        kasuri.fit(network(), data, epochs=2, seed=0, **more).net.state_dict()
        for data, more in zip(uneven, settings, strict=True)
    )
    found["mistake"] = mistake()
    found["stopped"] = stopped_by_one(folder / "stopped", group)
    return found


def refusals(group):
    data = moons(40)
    return [
        refusal(lambda: kasuri.fit(network(), data, batch_size=7, epochs=1)),
        refusal(lambda: kasuri.fit(network(), DataLoader(TensorDataset(*data), 10), epochs=1)),
    ]


def mistake():
    """An error that has nothing to do with the other process."""
    try:
        kasuri.fit(network(), (torch.zeros(40, 3), torch.zeros(40).long()), batch_size=10, epochs=1)
    except RuntimeError as error:
        return str(error)
    return "no error"


def loader(group):
    """A DataLoader with torch's own sampler of shares."""
    seen, data = [], TensorDataset(*moons(40))
    batches = DataLoader(data, 5, sampler=DistributedSampler(data, seed=3))
    net = network()
    net.register_forward_pre_hook(lambda module, x: seen.append(x[0].clone()))
    fitted = kasuri.fit(net, batches, epochs=2, seed=0)
    return {"seen": seen, "state": fitted.net.state_dict(), "step": fitted.history[-1]["step"]}


def unseeded(group):
    """Without a seed the processes must agree on one, though their generators differ."""
    net = network()
    torch.manual_seed(group.rank)
    return kasuri.fit(net, moons(40), epochs=2, batch_size=10).net.state_dict()


def stopped_by_one(folder, group):
    """Ctrl-C reaches one process; all stop after the same step."""
    act = Stop(3, interrupt) if group.rank == 1 else Stop()
    try:
        learn(converted(), [act], folder=folder)
    except kasuri.training.Interrupted as stop:
        return str(stop)
    return "nobody stopped"


def long_run(folder, group, death=None):
    """To be killed in the middle: rank 1 kills itself at the step of its death, if any."""
    random.seed(0)
    np.random.seed(0)
    die = Stop()
    if death is not None and group.rank == 1:
        die = Stop(death, lambda: os.kill(os.getpid(), signal.SIGKILL))
    fitted = learn(converted(), [die], folder=folder)
    return {"epochs": len(fitted.history)}


def start(rank, port, log, act, *arguments):
    """Act as a process that torchrun started; what it says on standard error goes to a file."""
    signal.alarm(100)  # never outlive the test
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in address.items()}
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.exit(act(*arguments))


def command_line(words, log):
    """`kasuri ...`, with its standard output in a file."""
    from experiments.cli import main

    with log.open("a") as file, contextlib.redirect_stdout(file):
        return main(words)


def main(task, folder, *more):
    torch.set_num_threads(1)
    checkpoint.EVERY = 0.0
    with started_by_torchrun() as group:
        found = {"things": many_things, "long": long_run}[task](folder, group, *more)
        torch.save(found, folder / f"found {task} {group.rank}.pt")
        if task == "things":  # the reference for the run that is killed
            long_run(folder / "whole", group)

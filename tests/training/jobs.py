"""Small training runs that the tests of this folder share, and how to compare their ends."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import kasuri
from kasuri.training import Batches, Clip, Validation, checkpoint

SEED = 5


def moons(count=96, seed=0):
    """Two classes that a line separates badly: inputs (count, 2), classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    angle = 3.14 * torch.rand(count, generator=g)
    x = torch.stack([angle.cos() + y, (1 - 2 * y) * angle.sin() + 0.4 * y], 1)
    return x + 0.1 * torch.randn(count, 2, generator=g), y


def line(count=96, seed=0):
    """Real targets (count, 1) with noise of standard deviation 0.2."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=g)
    y = x[:, :1] - 0.5 * x[:, 1:] + 0.2 * torch.randn(count, 1, generator=g)
    return x, y


def network(outputs=2, hidden=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def bayesian(estimator="local", outputs=2, seed=0, family=None):
    family = kasuri.KTied(rank=1) if family is None else family
    return kasuri.bayesianize(network(outputs, seed=seed), family, estimator=estimator)


class Stop(kasuri.training.Callback):
    """Does something to training at a step or after an epoch; by default nothing."""

    def __init__(self, step=None, act=None, epoch=None):
        self.step, self.act, self.epoch = step, act, epoch

    def on_step(self, objective, step, terms):
        if self.step in (step, "any"):
            self.act()

    def on_epoch(self, objective, row):
        if row["epoch"] == self.epoch:
            self.act()


class Boom(Exception):
    """Raised in the middle of a step."""


def raise_boom():
    raise Boom


def send(number):
    """Send this process a signal."""
    return lambda: os.kill(os.getpid(), number)


interrupt = send(signal.SIGINT)


class Shaken(Dataset):
    """Examples with noise from every generator that a dataset may draw from."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        noise = torch.randn(2) + random.gauss(0, 1) + float(np.random.randn())
        return self.x[index] + 0.01 * noise, self.y[index]


# -- runs of 4 epochs of 4 steps each, for tests that interrupt them ---------------------------------


def local(start, **circumstances):
    return kasuri.fit(bayesian(seed=start), moons(40), batch_size=9, **circumstances)


def shared(start, **circumstances):
    return kasuri.fit(
        bayesian("shared", seed=start),
        moons(40),
        Validation(moons(20, seed=1), patience=2),
        batch_size=12,
        optimiser=lambda o: torch.optim.SGD(o.parameters(), 0.1, momentum=0.9, nesterov=True),
        scheduler=lambda o, steps: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=steps),
        **circumstances | {"callbacks": [*circumstances["callbacks"], Clip(0.5)]},
    )


def norms(start, **circumstances):
    torch.manual_seed(start)
    net = nn.Sequential(
        nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )
    return kasuri.fit(net, moons(40), moons(20, seed=1), batch_size=10, **circumstances)


def learned_scales(start, **circumstances):
    return kasuri.fit(
        bayesian(outputs=1, seed=start, family=kasuri.MeanField()),
        line(40),
        line(20, seed=1),
        prior={"0": kasuri.Normal(0.3, learn="gradient"), "*": kasuri.HeNormal()},
        temperature=kasuri.schedules.Exponential(4, 4, start=0.1),
        kl_weight=kasuri.schedules.LinearPerBatch(0.05, every=2),
        batch_size=10,
        optimiser=lambda o: torch.optim.RMSprop(o.parameters()),
        scheduler=lambda o, steps: torch.optim.lr_scheduler.MultiStepLR(o, [3, 9]),
        **circumstances,
    )


def augmented(start, **circumstances):
    def shake(x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    data = Batches(*moons(40), 10, seed=3, augment=shake)
    return kasuri.fit(bayesian(seed=start), data, moons(20, seed=1), **circumstances)


def loader(start, **circumstances):
    data = DataLoader(Shaken(*moons(40)), batch_size=10, shuffle=True)
    valid = Validation(moons(20, seed=1), samples=3)
    return kasuri.fit(bayesian("flipout", seed=start), data, valid, **circumstances)


def loader_with_generator(start, **circumstances):
    own = torch.Generator().manual_seed(start)  # its state is not that of the interrupted process
    data = DataLoader(TensorDataset(*moons(40)), batch_size=10, shuffle=True, generator=own)
    return kasuri.fit(bayesian(seed=start), data, temperature=0.1, **circumstances)


def sampler_with_generator(start, **circumstances):
    data = TensorDataset(*moons(40))
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(start))
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    return kasuri.fit(bayesian(seed=start), loader, temperature=0.1, **circumstances)


class Loop(nn.Module):
    """A layer that is used several times in one pass: under `auto` that is found out in the first call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x


def repeated(start, **circumstances):
    torch.manual_seed(start)
    bnn = kasuri.bayesianize(Loop(), kasuri.KTied(1, scale=0.3), estimator="auto")
    return kasuri.fit(
        bnn, moons(40), batch_size=10, temperature=0.1, optimiser=kasuri.Natural, **circumstances
    )


JOBS = {
    job.__name__: job
    for job in (
        local,
        shared,
        norms,
        learned_scales,
        augmented,
        loader,
        loader_with_generator,
        sampler_with_generator,
        repeated,
    )
}


def run(job, folder, callback=None, save_every=0, callbacks=(), **more):
    """A job under circumstances that a resumed process would not have unless it read them.

    Network and generators begin elsewhere if there is a checkpoint to take them from.
    """
    checkpoint.EVERY = save_every  # conftest.py puts it back
    other = checkpoint.exists(Path(folder))
    random.seed(2 if other else 1)
    np.random.seed(2 if other else 1)
    return JOBS[job](
        start=100 if other else 1,
        **{"epochs": 4, "show": False} | more,
        seed=SEED,
        folder=folder,
        callbacks=[callback or Stop(), *callbacks],
    )


# -- comparing ---------------------------------------------------------------------------------------


def ending(folder):
    """Everything in a folder's checkpoint but the wall time."""
    return timeless(checkpoint.read(Path(folder)))


def timeless(value):
    if isinstance(value, dict):
        left_out = ("seconds", "epoch_began")
        return {k: timeless(v) for k, v in value.items() if k not in left_out}
    return [timeless(v) for v in value] if isinstance(value, list | tuple) else value


def differences(a, b, where=""):
    """Places where two nested things are not bitwise equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        missing = [f"{where}.{key} is there once" for key in a.keys() ^ b.keys()]
        return missing + [
            d for k in a.keys() & b.keys() for d in differences(a[k], b[k], f"{where}.{k}")
        ]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [d for i in range(len(a)) for d in differences(a[i], b[i], f"{where}[{i}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and torch.equal(a, b)
    else:
        same = type(a) is type(b) and a == b
    return [] if same else [f"{where}: {a} and {b}"]


def equal(a, b):
    """Whether two modules have bitwise the same parameters and buffers."""
    return differences(a.state_dict(), b.state_dict()) == []

"""Who gets to a given −ELBO first, in seconds: `python -m benchmarks.race` from the repository.

MNIST, 784-400-400-10, prior N(0, 0.2²), the whole KL from the first step. Contenders take turns of
equal numbers of steps in one process; what counts is the time of their steps alone. Writes
results/race/mnist-mlp.json and docs/images/race.svg.
"""

import time
from collections.abc import Callable
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import kasuri
from benchmarks import peers, results
from benchmarks.contenders import (
    LEARNING_RATE,
    NUM_DATA,
    PRIOR_SCALE,
    Contender,
    Run,
    mlp,
    ours,
    with_kl,
)
from experiments import data as datasets
from experiments.data import Dataset
from kasuri.training import Batches
from tools.charts import COLOURS, Panel, Series, draw

STEPS, BUDGET = 8000, 80.0  # seconds per contender
GOALS = (10.0, 5.0, 2.0, 1.0, 0.7)
BATCH, TURN, DRAWS = 256, 50, 4
POINTS = 40  # of a curve in the picture
OUT, PICTURE = results.ROOT / "results/race/mnist-mlp.json", results.ROOT / "docs/images/race.svg"


class Curve:
    """A contender on its way."""

    def __init__(self, run: Run) -> None:
        self.run, self.steps, self.seconds = run, [0], [0.0]
        self.neg_elbo: list[float] = []

    def look(self, x: Tensor, y: Tensor) -> None:
        self.run.net.train()
        with torch.no_grad():
            values = [float(self.run.loss(x, y)) for _ in range(DRAWS)]
        self.neg_elbo.append(round(sum(values) / DRAWS, 4))

    def turn(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.run.net.train()
        began = time.perf_counter()
        for x, y in batches:
            self.run.step(x, y)
        self.seconds.append(round(self.seconds[-1] + time.perf_counter() - began, 3))
        self.steps.append(self.steps[-1] + len(batches))

    def as_json(self) -> dict[str, Any]:
        """The curve, and seconds and steps to each goal, None for those not reached."""
        places = list(zip(self.neg_elbo, self.seconds, self.steps, strict=True))
        reached = {}
        for goal in GOALS:
            there = ({"seconds": t, "steps": n} for value, t, n in places if value <= goal)
            reached[f"{goal:g}"] = next(there, None)
        points = {"step": self.steps, "seconds": self.seconds, "neg_elbo": self.neg_elbo}
        return points | {"reached": reached}


def contenders() -> list[Contender]:
    """Kasuri's, and bayesian-torch if it can be imported."""
    theirs = [c for c in peers.available() if c.name == "bayesian-torch reparameterization"]
    return [
        *ours([kasuri.KTied(rank=2), kasuri.MeanField()], "local", "shared"),
        *(Contender(c.name, _summed(c.build), peer=True) for c in theirs),
    ]


def _summed(build: Callable[[nn.Sequential], Run]) -> Callable[[nn.Sequential], Run]:
    """The peer with the KL of its posteriors in full: its own is a mean over weights."""

    def made(net: nn.Sequential) -> Run:
        model = build(net).net
        named = dict(model.named_parameters())
        pairs = [(p, named[n.replace("mu_", "rho_")]) for n, p in named.items() if "mu_" in n]

        def kl() -> Tensor:
            p = Normal(0.0, PRIOR_SCALE)
            laws = [Normal(mean, nn.functional.softplus(rho)) for mean, rho in pairs]
            return torch.stack([kl_divergence(q, p).sum() for q in laws]).sum()

        return with_kl(model, kl)

    return made


def race(data: Dataset, steps: int, budget: float) -> dict[str, Any]:
    """All contenders, turn by turn, until `steps` or until `budget` seconds of their own."""
    x, y = data.valid.x[:2000], data.valid.y[:2000]
    curves: dict[str, Curve] = {}
    for contender in contenders():
        torch.manual_seed(0)
        curves[contender.name] = Curve(contender.build(mlp(400, 400)))
        curves[contender.name].look(x, y)
    batches = Batches(data.train.x, data.train.y, BATCH, seed=0)
    waiting = chain.from_iterable(batches.epoch(epoch) for epoch in count())
    for _ in range(0, steps, TURN):
        now = list(islice(waiting, TURN))
        for curve in curves.values():
            if curve.seconds[-1] < budget:
                curve.turn(now)
                curve.look(x, y)
    return {"contenders": {name: curve.as_json() for name, curve in curves.items()}}


def picture(result: results.Result) -> str:
    """−ELBO against seconds, both on logarithmic axes, as SVG."""
    curves = result["contenders"]
    series, ends = [], []
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        points = list(zip(curve["seconds"], curve["neg_elbo"], strict=True))[1:]
        stride = 1 + len(points) // POINTS
        series.append(Series(points[::-stride][::-1], colour))
        ends.append(f"{name} {points[-1][1]:.2f} after {points[-1][0]:.0f} s")
    title = "Validation −ELBO, nats per example"
    panel = Panel(title, "seconds of training steps", series, log=True)
    legend = [(f"● {name}", colour) for name, colour in zip(curves, COLOURS, strict=False)]
    return draw(
        f"−ELBO falls with time: {'; '.join(ends)}.", legend, [panel], width=720, height=420
    )


def main() -> None:
    torch.set_num_threads(1)
    settings = {
        "data": "mnist",
        "batch": BATCH,
        "learning rate": LEARNING_RATE,
        "prior scale": PRIOR_SCALE,
        "number of data": NUM_DATA,
        "threads": 1,
        "steps": STEPS,
        "budget": BUDGET,
        "seed": 0,
    }
    result = results.measured(settings, lambda: race(datasets.load("mnist"), STEPS, BUDGET))
    results.write(OUT, result)
    PICTURE.write_text(picture(result))


if __name__ == "__main__":
    main()

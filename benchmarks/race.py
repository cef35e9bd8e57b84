"""Who gets to a given −ELBO first, in seconds: `python -m benchmarks.race` from the repository.

MNIST, 784-400-400-10, prior N(0, 0.2²), the whole KL from the first step. Contenders take turns of
equal numbers of steps in one process; what counts is the time of their steps alone. Writes
results/race/mnist-mlp.json and docs/images/race.svg.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kasuri
from benchmarks import peers, results
from benchmarks.contenders import (
    LEARNING_RATE,
    NUM_DATA,
    PRIOR_SCALE,
    Contender,
    Run,
    kasuri_contender,
    mlp,
)
from experiments import data as datasets
from experiments.data import Dataset
from tools.charts import COLOURS, Panel, Series, draw

GOALS = (10.0, 5.0, 2.0, 1.0, 0.7)
BATCH, TURN, DRAWS = 256, 50, 4
POINTS = 40  # of a curve in the picture
OUT, PICTURE = Path("results/race/mnist-mlp.json"), Path("docs/images/race.svg")


@dataclass
class Curve:
    """A contender on its way."""

    run: Run
    steps: list[int] = field(default_factory=lambda: [0])
    seconds: list[float] = field(default_factory=lambda: [0.0])
    neg_elbo: list[float] = field(default_factory=list)

    def look(self, x: Tensor, y: Tensor) -> None:
        """−ELBO on validation data, the mean over a few draws."""
        self.run.net.train()
        with torch.no_grad():
            values = [float(self.run.loss(x, y)) for _ in range(DRAWS)]
        self.neg_elbo.append(sum(values) / DRAWS)

    def turn(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """Some steps, timed."""
        self.run.net.train()
        began = time.perf_counter()
        for x, y in batches:
            self.run.step(x, y)
        self.seconds.append(self.seconds[-1] + time.perf_counter() - began)
        self.steps.append(self.steps[-1] + len(batches))

    def reached(self) -> dict[str, dict[str, float] | None]:
        """Seconds and steps to each goal, None for those not reached."""
        found: dict[str, dict[str, float] | None] = {}
        for goal in GOALS:
            index = next((i for i, value in enumerate(self.neg_elbo) if value <= goal), None)
            found[f"{goal:g}"] = (
                None
                if index is None
                else {"seconds": round(self.seconds[index], 2), "steps": self.steps[index]}
            )
        return found


def contenders() -> list[Contender]:
    """Kasuri's, and bayesian-torch if it can be imported."""
    families = (kasuri.KTied(rank=2), kasuri.MeanField())
    ours = [kasuri_contender(family, how) for family in families for how in ("local", "shared")]
    theirs = [c for c in peers.available()[0] if c.name == "bayesian-torch reparameterization"]
    return ours + [Contender(c.name, _summed(c.build), peer=True) for c in theirs]


def _summed(build: Callable[[nn.Sequential], Run]) -> Callable[[nn.Sequential], Run]:
    """The peer with the KL of its posteriors in full: its own is a mean over weights."""

    def made(net: nn.Sequential) -> Run:
        model = build(net).net
        named = dict(model.named_parameters())
        pairs = [(p, named[n.replace("mu_", "rho_")]) for n, p in named.items() if "mu_" in n]

        def kl() -> Tensor:
            terms = []
            for mean, rho in pairs:
                q = torch.distributions.Normal(mean, nn.functional.softplus(rho))
                p = torch.distributions.Normal(0.0, PRIOR_SCALE)
                terms.append(torch.distributions.kl_divergence(q, p).sum())
            return torch.stack(terms).sum()

        return Run(model, kl)

    return made


def race(data: Dataset, steps: int, budget: float) -> dict[str, Any]:
    """All contenders, turn by turn, until `steps` or until `budget` seconds of their own."""
    curves: dict[str, Curve] = {}
    for contender in contenders():
        torch.manual_seed(0)
        curves[contender.name] = Curve(contender.build(mlp(400, 400)))
    x, y = data.valid.x[:2000], data.valid.y[:2000]
    for curve in curves.values():
        curve.look(x, y)
    batches = datasets.Batches(data.train.x, data.train.y, BATCH, seed=0)
    epoch, waiting = 0, list(batches.epoch(0))
    for _ in range(0, steps, TURN):
        while len(waiting) < TURN:
            epoch += 1
            waiting += list(batches.epoch(epoch))
        now, waiting = waiting[:TURN], waiting[TURN:]
        running = [curve for curve in curves.values() if curve.seconds[-1] < budget]
        if not running:
            break
        for curve in running:
            curve.turn(now)
            curve.look(x, y)
    return {
        name: {
            "step": curve.steps,
            "seconds": [round(value, 3) for value in curve.seconds],
            "neg_elbo": [round(value, 4) for value in curve.neg_elbo],
            "reached": curve.reached(),
        }
        for name, curve in curves.items()
    }


def picture(result: results.Result) -> str:
    """−ELBO against seconds, both on logarithmic axes, as SVG."""
    curves = result["contenders"]
    series, ends = [], []
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        points = list(zip(curve["seconds"], curve["neg_elbo"], strict=True))[1:]
        every = 1 + len(points) // POINTS
        series.append(Series(points[::-every][::-1], colour))
        ends.append(f"{name} {points[-1][1]:.2f} after {points[-1][0]:.0f} s")
    title = "Validation −ELBO, nats per example"
    panel = Panel(title, "seconds of training steps", series, log=True)
    legend = [(f"● {name}", colour) for name, colour in zip(curves, COLOURS, strict=False)]
    return draw(
        f"−ELBO falls with time: {'; '.join(ends)}.", legend, [panel], width=720, height=420
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--budget", type=float, default=80.0, help="seconds per contender")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", default="mnist", choices=["mnist", "fashion-mnist"])
    parser.add_argument("--out", type=Path, default=results.ROOT / OUT)
    parser.add_argument("--picture", type=Path, default=results.ROOT / PICTURE)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began, about = time.perf_counter(), results.about(only_kasuri=False)
    found = race(datasets.load(args.data), args.steps, args.budget)
    result = {
        "settings": {
            "data": args.data,
            "batch": BATCH,
            "learning rate": LEARNING_RATE,
            "prior scale": PRIOR_SCALE,
            "number of data": NUM_DATA,
            "threads": args.threads,
            "steps": args.steps,
            "budget": args.budget,
            "seed": 0,
        },
        **about,
        "wall_seconds": round(time.perf_counter() - began, 1),
        "contenders": found,
    }
    results.write(args.out, result)
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    args.picture.write_text(picture(result))


if __name__ == "__main__":
    main()

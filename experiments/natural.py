"""Natural-gradient training: steps to a bound, the noise of gradients, and the choice of a temperature.

docs/training.md shows the results.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor
from tyro.conf import Fixed

import kasuri
from experiments import k_tied, quality
from experiments.convergence import Convergence
from experiments.networks import MLP, LeNet
from experiments.spec import Experiment, Outcome, Where, table
from experiments.supervised import Supervised, trained_numbers
from experiments.wide import point
from kasuri.training import Batches

_FAMILIES: Mapping[str, kasuri.Family] = {
    "mean-field": kasuri.MeanField(mean="he"),
    **{f"k-tied-{k}": kasuri.KTied(k, mean="he") for k in (1, 2, 3)},
    "matrix-normal": kasuri.MatrixNormal(mean="he"),
}

# --- steps to a bound, in the setting of the k-tied paper's Figure 2 but for the length

PER_EPOCH = 49  # batches of 1,024 of 50,000 images
_LENGTHS = {"490": 10, "980": 20, "2989": 61}  # steps: epochs


def _convergence(name: str, inputs: str, **options: Any) -> list[Convergence]:
    base = Convergence(
        name=f"natural/{name}",
        variant="",
        title=f"MNIST, 784-400-400-10, {inputs}: −ELBO after so many steps in all (T = 1)",
        data="mnist",
        options=options,
        network=MLP((400, 400)),
        estimator="auto",
        batch_size=1024,
        looks=(100, 300),
        every=PER_EPOCH,
        temperature=1.0,
        prior_scale=0.2,
        annealing="none",
        keep="last",
    )
    rows: dict[str, dict[str, Any]] = {
        f"{family}-{steps}": {"family": _FAMILIES[family], "steps": epochs * PER_EPOCH}
        for family in _FAMILIES
        for steps, epochs in _LENGTHS.items()
        if family != "matrix-normal" or steps == "980"
    }
    adam = {"family": _FAMILIES["k-tied-2"], "steps": 20 * PER_EPOCH, "learning_rate": 3e-3}
    return table(base, rows | {"k-tied-2-980-adam": adam})


# --- the k-tied paper's LSTM, to the end of a training short enough for natural steps


_IMDB = [
    dataclasses.replace(
        row,
        name="natural/imdb-lstm",
        title="IMDB reviews, the LSTM of the k-tied paper, whole KL from the first step (T = 1)",
        estimator="auto",
        epochs=12,
        learning_rate=0.0,
        falling=True,
        annealing="none",
        patience=0,
        keep="last",
    )
    for row in k_tied.EXPERIMENTS
    if row.name == "k-tied/imdb-lstm" and isinstance(row, Supervised)
]

# --- noise of gradients


@dataclass(frozen=True, kw_only=True)
class GradientNoise(Supervised):
    """How noisy natural steps of log σ are under each estimator, at the end of training.

    The noise is the standard deviation of a step of log σ at rate 1 over batches and draws, the median over
    all standard deviations of weights, or their factors.
    """

    batches: int = 100
    estimators: Fixed[tuple[str, ...]] = ("shared", "local", "flipout", "auto")

    def smoke(self) -> "GradientNoise":
        return dataclasses.replace(self, epochs=2, limit=200, samples=4, batches=4)

    def run(self, seed: int, where: Where) -> Outcome:
        data = self.load(self.data, seed)
        fitted = self.train(data, seed, where)
        elbo: Any = fitted.objective
        scores = dict(self.assess([fitted], data, "test", seed)) if where.test else {}
        for estimator in self.estimators:
            torch.manual_seed(seed)
            batches = Batches(data.train.x, data.train.y, self.batch_size or None, seed=seed)
            endless = chain.from_iterable(batches.epoch(epoch) for epoch in count())
            with kasuri.using(elbo.net, estimator):
                began = time.perf_counter()
                steps = [_natural_step(elbo, x, y) for x, y in islice(endless, self.batches)]
                seconds = time.perf_counter() - began
            scores[f"noise_{estimator}"] = float(torch.stack(steps).std(0).median())
            scores[f"milliseconds_{estimator}"] = 1000 * seconds / self.batches
        return Outcome(
            metrics=scores,
            validation={},
            history=fitted.history,
            figures={},
            parameters=trained_numbers(fitted.net),
            seconds=fitted.seconds,
        )


SMALL = 1e-3  # share of a step: whole ones are bounded


def _natural_step(elbo: Any, x: Tensor, y: Tensor) -> Tensor:
    """The natural step of all standard deviations of weights at rate 1, without bounds."""
    elbo.train().zero_grad()
    elbo(x, y).loss.backward()
    data = elbo.num_data / elbo.weight_at(None)
    return torch.cat(list(_moves(elbo.net, data)))


def _moves(net: torch.nn.Module, data: float) -> Iterator[Tensor]:
    for name, posterior in kasuri.named_posteriors(net):
        if name.endswith("weight"):
            parameters = {n: p for n, p in posterior.named_parameters() if n != "loc"}
            gradients = {
                n: p.grad * (SMALL * data) for n, p in parameters.items() if p.grad is not None
            }
            for move in posterior.natural_step(gradients).values():
                yield move.detach().flatten() / SMALL


_NOISE = GradientNoise(
    name="natural/noise",
    variant="",
    title="Fashion-MNIST: noise of natural steps of log σ, by estimator",
    data="fashion-mnist",
    options={"scale": "standard"},
    temperature=0.05,
    limit=20_000,
    epochs=5,
)
_NETWORKS: Mapping[str, dict[str, Any]] = {
    "dense": {"network": MLP((400, 400))},
    "lenet": {
        "network": LeNet((16, 32), kernel=3, hidden=128),
        "options": {"scale": "standard", "flat": False},
    },
}
_NOISES = table(
    _NOISE,
    {
        f"{net}-{name}": {**options, "family": family, "estimator": "auto"}
        for net, options in _NETWORKS.items()
        for name, family in (("mean-field", kasuri.MeanField()), ("k-tied-2", kasuri.KTied(2)))
    },
)

# --- temperatures


@dataclass(frozen=True, kw_only=True)
class AtTemperature(Supervised):
    """A network trained at one temperature, or at the one that validation chooses: a point of a curve."""

    def run(self, seed: int, where: Where) -> Outcome:
        outcome = super().run(seed, where)
        kept = outcome.history[-1]["temperature"]
        series = "chosen by fit" if self.temperature == "auto" else "given"
        sweep = point("temperature", kept, series, ("nll",), {})
        return dataclasses.replace(outcome, figures=outcome.figures | {"sweep": sweep})


TEMPERATURES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)


def _temperatures(row: Supervised) -> list[AtTemperature]:
    """The k-tied network of a quality table at nine temperatures, and at the chosen one."""
    settings = {f.name: getattr(row, f.name) for f in dataclasses.fields(Supervised)}
    base = AtTemperature(
        **settings
        | {
            "name": row.name.replace("quality/", "natural/temperature-"),
            "title": "k = 2: NLL at nine temperatures, and at the one that fit chooses in one run",
        }
    )
    rows: dict[str, dict[str, Any]] = {"auto": {}}
    rows |= {f"{value:g}": {"temperature": value} for value in TEMPERATURES}
    return table(base, rows)


EXPERIMENTS: list[Experiment] = [
    *_convergence("convergence", "inputs in [-1, 1]"),
    *_convergence("convergence-standardised", "standardised inputs", scale="standard"),
    *_IMDB,
    *_NOISES,
    *(
        point_of_curve
        for row in quality.EXPERIMENTS
        if row.variant == "k-tied-2" and row.name.startswith("quality/")
        for point_of_curve in _temperatures(row)  # type: ignore[arg-type]
    ),
]

"""Networks that grow wider: the toy that can be solved, and one with ReLU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from tyro.conf import Fixed

import kasuri
from experiments.networks import Divide
from experiments.spec import Experiment, Outcome, Where, table
from experiments.supervised import trained_numbers
from kasuri.diagnostics import collapse_check
from kasuri.streams import Stream, mix

Rule = Literal["eta-1", "balanced"]
_NAMES = {"eta-1": "η = 1", "balanced": "η = τ p / N"}
_SCORES = ("count", "nll", "nll_sem", "gibbs_nll", "kl", "neg_elbo", "neg_elbo_sem", "rmse_sem")


@dataclass(frozen=True, kw_only=True)
class Wide(Experiment):
    """A network of N neurons, whose output is their average, at η = 1 or at η = τ p / N."""

    # "toy" is f = (1/N) Σ w_j with unit noise, which has a closed form; "relu" is a hidden layer on 32 points
    # of 2 sin 3x with noise of variance 0.1
    kind: Fixed[Literal["toy", "relu"]] = "relu"
    neurons: int = 8  # N
    rule: Fixed[Rule] = "eta-1"  # "eta-1" for Bayes, "balanced" for τ p / N
    tau: float = 0.01  # τ of the balanced rule
    epochs: int = 2500  # steps, since a batch is all the data
    learning_rate: float = 0.02  # of Adam, falling to 0 along a cosine
    draws: int = 2  # of the weights per step
    samples: int = 100  # draws per evaluation

    def smoke(self) -> "Wide":
        """Five steps, four draws."""
        return replace(self, epochs=5, samples=4, draws=1)

    def run(self, seed: int, where: Where) -> Outcome:
        """Make data, train, compare with the prior and, if there is one, with the closed form."""
        torch.manual_seed(mix(seed, Stream.START))
        x, y, noise, truth = self.data()
        elbo = self.objective(len(y), noise)
        fitted = kasuri.fit(
            elbo,
            (x, y),
            epochs=self.epochs,
            batch_size=len(y),
            optimiser=lambda elbo: torch.optim.Adam(elbo.parameters(), self.learning_rate),
            seed=mix(seed, Stream.ORDER),
            show=self.bar(where),
        )
        metrics = self.scores(elbo, x, y, truth, mix(seed, Stream.EVALUATION))
        curves: tuple[str, ...] = ("rmse", "kl", "kl_per_neuron", "at_prior")
        exact: dict[str, float] = {}
        if self.kind == "toy":
            curves = ("kl", "posterior_mean")
            best = wide_optimum(len(y), float(y.mean()), self.neurons, elbo.weight_at(0))
            exact = {"kl": best.kl, "posterior_mean": best.mean}
        sweep = point("neurons", self.neurons, _NAMES[self.rule], curves, {})
        return Outcome(
            metrics=metrics | {f"{name}_exact": value for name, value in exact.items()},
            validation={},
            history=fitted.history,
            figures={"sweep": sweep | {"beside": exact}},
            parameters=trained_numbers(elbo.bnn),
            seconds=fitted.seconds,
        )

    def data(self) -> tuple[Tensor, Tensor, float, Tensor]:
        """Inputs, targets, the standard deviation of the noise, and targets without noise."""
        if self.kind == "toy":
            y = torch.randn(30, 1).double()
            y = (y - y.mean()) / y.std() + 1.5  # mean exactly 1.5
            return torch.ones(30, self.neurons).double(), y, 1.0, torch.full_like(y, 1.5)
        x = torch.linspace(-1, 1, 32).double().unsqueeze(-1)
        truth, noise = 2 * torch.sin(3 * x), math.sqrt(0.1)
        return x, truth + noise * torch.randn(32, 1), noise, truth

    def objective(self, count: int, noise: float) -> kasuri.ELBO:
        width = self.neurons
        if self.kind == "toy":
            net = nn.Sequential(nn.Linear(width, 1, bias=False), Divide(width)).double()
        else:
            net = nn.Sequential(
                nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 1, bias=False), Divide(width)
            ).double()
            for parameter in net.parameters():
                nn.init.normal_(parameter)
        return kasuri.ELBO(
            kasuri.bayesianize(net, kasuri.MeanField(scale=0.1), estimator="local"),
            kasuri.Gaussian(noise),
            kasuri.Normal(1.0),
            num_data=count,
            temperature=self.tau * count / width if self.rule == "balanced" else 1.0,
            samples=self.draws,
        )

    def scores(
        self, elbo: kasuri.ELBO, x: Tensor, y: Tensor, truth: Tensor, seed: int
    ) -> dict[str, float]:
        """Error from the true function, NLL on the training data, KL, and the share that equals the prior."""
        evaluation = kasuri.evaluate(elbo, (x, y), samples=self.samples, seed=seed)
        scores = {name: evaluation[name] for name in _SCORES if name in evaluation}
        mean = kasuri.predict(elbo, x, self.samples, seed=seed).mean
        scores["rmse"] = float((mean - truth).double().square().mean().sqrt())
        collapse = collapse_check(elbo)
        weights = sum(layer.weights for layer in collapse.layers)
        same = sum(layer.weights * (layer.at_prior or 0.0) for layer in collapse.layers)
        scores |= {"kl_per_neuron": collapse.kl / self.neurons, "at_prior": same / weights}
        if self.kind == "toy":
            ((_, posterior),) = kasuri.named_posteriors(elbo.bnn)
            scores["posterior_mean"] = float(posterior.mean.detach().mean())
        return scores


def point(
    x: str, value: float, series: str, curves: Sequence[str], marks: dict[str, float]
) -> dict[str, Any]:
    """A run as a point of curves over `x`, for the report; curves are scores, marks places on the axis."""
    return {"x": x, "value": value, "series": series, "curves": list(curves), "marks": marks}


def widths(base: Wide, neurons: Sequence[int]) -> list[Wide]:
    """Every width by both rules."""
    rows = {f"{rule}-n-{n}": {"rule": rule, "neurons": n} for rule in _NAMES for n in neurons}
    return table(base, rows)


class WideOptimum(NamedTuple):
    """The best independent posterior: every weight N(mean, variance), KL in nats over all of them."""

    mean: float
    variance: float
    kl: float


def wide_optimum(
    num_data: int, target_mean: float, neurons: int, temperature: float
) -> WideOptimum:
    """The best posterior of f = (1/N) Σ w_j with unit noise and prior N(0, 1) on every weight.

    It is the optimum of the tempered ELBO: m = pȳ/(p + ηN), σ² = 1/(1 + p/(ηN²)). At η = 1 mean and KL go
    to 0 as N grows: the network ignores its data. At η = τp/N the mean stays at ȳ/(1 + τ) and the KL per
    weight has a limit.

    Args:
        num_data: p, number of targets.
        target_mean: ȳ, their mean.
        neurons: N.
        temperature: η.

    Examples:
        >>> [round(wide_optimum(30, 1.5, n, 1.0).kl, 2) for n in (1, 10, 100, 1000, 10_000)]
        [2.29, 6.49, 5.99, 0.95, 0.1]
        >>> [round(wide_optimum(30, 1.5, n, 0.1 * 30 / n).mean, 3) for n in (1, 10_000)]
        [1.364, 1.364]
    """
    mean = num_data * target_mean / (num_data + temperature * neurons)
    variance = 1 / (1 + num_data / (temperature * neurons**2))
    # expm1 and log1p: at large N the variance is 1 - tiny, and its logarithm all that is left
    log_variance = -math.log1p(num_data / (temperature * neurons**2))
    kl = neurons / 2 * (mean**2 + math.expm1(log_variance) - log_variance)
    return WideOptimum(mean, variance, kl)

"""Networks that grow wider: the toy that can be solved, and one with ReLU."""

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from experiments.spec import FIXED, Experiment, Outcome, Where
from experiments.supervised import trained_numbers
from experiments.tempered import point
from experiments.tempered_networks import Divide
from kasuri.diagnostics import collapse_check
from kasuri.diagnostics.reference import wide_optimum
from kasuri.likelihoods import Gaussian
from kasuri.network.convert import bayesianize
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.mean_field import MeanField
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.metrics import rmse
from kasuri.prediction.predict import predict
from kasuri.priors.normal import Normal
from kasuri.streams import mix
from kasuri.training.fit import fit

Rule = Literal["eta-1", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Wide(Experiment):
    """A network of N neurons, whose output is their average, at η = 1 or at η = τ p / N.

    Args:
        kind: "toy" is f = (1/N) Σ w_j with unit noise, which has a closed form; "relu" is a hidden layer on
            32 points of 2 sin 3x with noise of variance 0.1.
        neurons: N.
        rule: "eta-1" for Bayes, "balanced" for τ p / N.
        tau: τ of the balanced rule.
        epochs: steps, since a batch is all the data.
        learning_rate: of Adam, falling to 0 along a cosine.
        draws: of the weights per step.
        samples: draws per evaluation.
    """

    kind: Literal["toy", "relu"] = field(default="relu", metadata=FIXED)
    neurons: int = 8
    rule: Rule = field(default="eta-1", metadata=FIXED)
    tau: float = 0.01
    epochs: int = 2500
    learning_rate: float = 0.02
    draws: int = 2
    samples: int = 100

    def smoke(self) -> "Wide":
        """Five steps, four draws."""
        return dataclasses.replace(self, epochs=5, samples=4, draws=1)

    def run(self, seed: int, where: Where) -> Outcome:
        """Make data, train, compare with the prior and, if there is one, with the closed form."""
        began = time.monotonic()
        torch.manual_seed(mix(seed, 0))
        x, y, noise, truth = self.data()
        elbo = self.objective(len(y), noise)
        fitted = fit(
            elbo,
            (x, y),
            epochs=self.epochs,
            batch_size=len(y),
            learning_rate=self.learning_rate,
            seed=mix(seed, 1),
            show=where.show,
            title=f"{self.name} {self.variant}",
        )
        trained = time.monotonic()
        metrics = self.scores(elbo, x, y, truth, seed)
        figures: dict[str, Any] = {}
        if self.kind == "toy":
            best = wide_optimum(len(y), float(y.mean()), self.neurons, elbo.weight_at(0))
            metrics |= {"posterior_mean_exact": best.mean, "kl_exact": best.kl}
        curves = self.curves()
        figures["sweep"] = point("neurons", self.neurons, _NAMES[self.rule], curves, {}) | {
            "beside": {
                name: metrics[f"{name}_exact"] for name in curves if f"{name}_exact" in metrics
            }
        }
        return Outcome(
            metrics=metrics,
            validation={},
            history=fitted.history,
            figures=figures,
            parameters=trained_numbers(elbo.bnn),
            seconds={"total": time.monotonic() - began, "train": trained - began},
        )

    def curves(self) -> tuple[str, ...]:
        """What the report draws over the width."""
        if self.kind == "toy":
            return ("kl", "posterior_mean")
        return ("rmse", "kl", "kl_per_neuron", "at_prior")

    def data(self) -> tuple[Tensor, Tensor, float, Tensor]:
        """Inputs, targets, the standard deviation of the noise, and targets without noise."""
        if self.kind == "toy":
            y = torch.randn(30, 1).double()
            y = (y - y.mean()) / y.std() + 1.5  # mean exactly 1.5
            return torch.ones(30, self.neurons).double(), y, 1.0, torch.full_like(y, 1.5)
        x = torch.linspace(-1, 1, 32).double().unsqueeze(-1)
        truth, noise = 2 * torch.sin(3 * x), math.sqrt(0.1)
        return x, truth + noise * torch.randn(32, 1), noise, truth

    def objective(self, count: int, noise: float) -> ELBO:
        """The network with its posterior, prior N(0, 1) and temperature."""
        width = self.neurons
        if self.kind == "toy":
            net = nn.Sequential(nn.Linear(width, 1, bias=False), Divide(width)).double()
        else:
            net = nn.Sequential(
                nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 1, bias=False), Divide(width)
            ).double()
            for parameter in net.parameters():
                nn.init.normal_(parameter)
        bnn = bayesianize(net, MeanField(scale=0.1), estimator="local")
        return ELBO(
            bnn,
            Gaussian(noise),
            Normal(1.0),
            num_data=count,
            temperature=self.tau * count / width if self.rule == "balanced" else 1.0,
            samples=self.draws,
        )

    def scores(
        self, elbo: ELBO, x: Tensor, y: Tensor, truth: Tensor, seed: int
    ) -> dict[str, float]:
        """Error from the true function, NLL on the training data, KL, and the share that equals the prior."""
        found = evaluate(elbo, (x, y), samples=self.samples, seed=mix(seed, 7))
        collapse = collapse_check(elbo)
        weights = sum(one.weights for one in collapse.layers)
        same = sum(one.weights * (one.at_prior or 0.0) for one in collapse.layers) / weights
        told = {name: found[name] for name in _SCORES if name in found}
        mean = predict(elbo, x, self.samples, seed=mix(seed, 7)).mean
        told |= {
            "rmse": rmse(mean, truth),
            "kl_per_neuron": collapse.kl / self.neurons,
            "at_prior": same,
        }
        if self.kind == "toy":
            (posterior,) = (q for group in elbo._posteriors for q in group)
            told["posterior_mean"] = float(posterior.mean.detach().mean())
        return told


_SCORES = (
    "count",
    "rmse",
    "rmse_sem",
    "nll",
    "nll_sem",
    "gibbs_nll",
    "kl",
    "neg_elbo",
    "neg_elbo_sem",
)
_NAMES = {"eta-1": "η = 1", "balanced": "η = τ p / N"}


def widths(base: Wide, neurons: tuple[int, ...]) -> list[Wide]:
    """Every width by both rules.

    Examples:
        >>> base = Wide(name="e", variant="", title="")
        >>> [one.variant for one in widths(base, (8, 32))]
        ['eta-1-n-8', 'eta-1-n-32', 'balanced-n-8', 'balanced-n-32']
    """
    rules: tuple[Rule, ...] = ("eta-1", "balanced")
    return [
        dataclasses.replace(base, variant=f"{rule}-n-{n}", rule=rule, neurons=n)
        for rule in rules
        for n in neurons
    ]

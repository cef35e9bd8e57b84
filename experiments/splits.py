"""All published splits of a regression table at once: select on validation, fit again, test."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch

from experiments import data as datasets
from experiments.data.dataset import Dataset, Split
from experiments.data.tables import read_uci
from experiments.networks import MLP
from experiments.rdp_audit import as_published
from experiments.spec import FIXED, Experiment, Outcome, Where
from experiments.supervised import trained_numbers
from kasuri.likelihoods import GammaGaussian, Gaussian, HeteroscedasticGaussian, Likelihood
from kasuri.network.convert import bayesianize
from kasuri.posteriors.base import Family
from kasuri.posteriors.mean_field import MeanField
from kasuri.posteriors.radial.prior import RadialPrior
from kasuri.prediction.baselines import ensemble, mc_dropout
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.metrics import mean_sem
from kasuri.prediction.predict import predict
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal, Normal
from kasuri.streams import mix
from kasuri.training.fitted import Fitted
from kasuri.training.together import fit_many

Scores = dict[str, float]
_NOISES: Mapping[str, type[Likelihood]] = {
    "constant": Gaussian,
    "input": HeteroscedasticGaussian,
    "gamma": GammaGaussian,
}
_PRIORS: Mapping[str, Callable[[], Prior]] = {
    "he": HeNormal,
    "normal": Normal,
    "radial": lambda: RadialPrior(others=HeNormal()),  # biases and stand-ins as everywhere else
    "radial-augmented": lambda: RadialPrior(1.0, 1.0, form="augmented", gap=0.5),
}


Noise = Literal["constant", "input", "both", "gamma"]


@dataclass(frozen=True)
class Choice:
    """Hyperparameters that validation chooses between."""

    temperature: float
    dropout: float
    noise: Noise = "constant"

    @property
    def programs(self) -> tuple[tuple[float, str], ...]:
        """Rate of dropout and kind of noise: what networks have in common that are trained together."""
        kinds = ("constant", "input") if self.noise == "both" else (self.noise,)
        return tuple((self.dropout, kind) for kind in kinds)


@dataclass(frozen=True, kw_only=True)
class Splits(Experiment):
    """One network for each published split of a UCI table, trained together by `kasuri.fit_many`.

    Inside the training part of every split a validation part chooses temperature, kind of noise and rate
    of dropout;
    then a network is fitted to the whole training part with that choice and tested once.

    Args:
        table: name of the UCI table.
        count: number of splits; 0 for all that are published.
        hidden: units of the hidden layer.
        family: posterior family; kasuri.Point() for an ordinary network with weight decay.
        estimator: how noise enters during training.
        noises: to choose from: of one learned size ("constant"), of one size with a posterior ("gamma"), of a
            size that is a second output of the network ("input"), or the mixture of networks with a constant
            and with a predicted size ("both").
        temperatures: to choose from.
        dropouts: rates to choose from.
        prior: "he" (normal, scaled by fan-in), "normal" (of scale 1), "radial", or "radial-augmented" (from
            the radial-directional paper).
        members: networks in an ensemble; of each kind of noise so many.
        steps: of the optimiser.
        batch_size: examples per step.
        learning_rate: of Adam, falling to 0 along a cosine.
        valid: share of a split's training part that validates.
        samples: draws per prediction.
        audit: also score the estimator of the radial-directional paper's public code; for constant noise.
        limit: use only so many examples of each part; 0 for all.
    """

    table: str = "yacht"
    count: int = 0
    hidden: int = 50
    family: Family = field(default=MeanField(), metadata=FIXED)
    estimator: str = "shared"
    noises: tuple[Noise, ...] = field(default=("constant",), metadata=FIXED)
    temperatures: tuple[float, ...] = field(default=(1.0,), metadata=FIXED)
    dropouts: tuple[float, ...] = field(default=(0.0,), metadata=FIXED)
    prior: Literal["he", "normal", "radial", "radial-augmented"] = "he"
    members: int = 1
    steps: int = 6000
    batch_size: int = 64
    learning_rate: float = 0.01
    valid: float = 0.15
    samples: int = 100
    audit: bool = False
    limit: int = 0

    def smoke(self) -> "Splits":
        """Two splits, a few steps, four draws, little choice."""
        return dataclasses.replace(
            self,
            count=2,
            limit=60,
            steps=6,
            samples=4,
            members=min(self.members, 2),
            temperatures=self.temperatures[:1],
            dropouts=self.dropouts[:1],
        )

    def run(self, seed: int, where: Where) -> Outcome:
        """Choose, fit again, test."""
        began = time.monotonic()
        inner = self.load(self.valid)
        choices, validation, training = self.choose(inner, seed, where)
        found: list[Scores] = []
        history: list[dict[str, float]] = []
        parameters = 0
        if where.test:
            outer = self.load(0.0)
            groups = self.train(outer, choices, mix(seed, 1), self.members, where)
            found = [
                self.score(fits, one.test, one, seed)
                for fits, one in zip(groups, outer, strict=True)
            ]
            history = groups[0][0].history
            training += sum(fit.seconds for fits in groups for fit in fits)
            parameters = sum(trained_numbers(fit.net) for fit in groups[0])
        done = time.monotonic()
        return Outcome(
            metrics=pooled(found) if found else {},
            validation=pooled(validation),
            history=history,
            figures={"splits": _listed(choices, validation, found)},
            parameters=parameters,
            seconds={
                "total": done - began,
                "train": training,
                "evaluate": done - began - training,
            },
        )

    def load(self, valid: float) -> list[Dataset]:
        """Every split, standardised by what is trained on."""
        count = self.count or len(read_uci(self.table)[2])
        parts = [datasets.uci(self.table, split, valid) for split in range(count)]
        return [one.small(self.limit) for one in parts] if self.limit else parts

    def choose(
        self, parts: Sequence[Dataset], seed: int, where: Where
    ) -> tuple[list[Choice], list[Scores], float]:
        """The best choice of every split, its validation scores, and the seconds of training."""
        options = [Choice(*one) for one in product(self.temperatures, self.dropouts, self.noises)]
        if len(options) == 1:  # nothing to choose
            return [options[0]] * len(parts), [], 0.0
        tried = self.train(
            [part for part in parts for _ in options], options * len(parts), seed, 1, where
        )
        best, scores = [], []
        for index, part in enumerate(parts):
            mine = tried[index * len(options) : (index + 1) * len(options)]
            found = [self.score(fits, part.valid, part, seed) for fits in mine]
            top = min(range(len(options)), key=lambda i: _order(found[i]["nll"]))
            best.append(options[top])
            scores.append(found[top])
        return best, scores, sum(fit.seconds for fits in tried for fit in fits)

    def train(
        self,
        parts: Sequence[Dataset],
        choices: Sequence[Choice],
        seed: int,
        members: int,
        where: Where,
    ) -> list[list[Fitted]]:
        """The members of every part; those of one make in one program."""
        found: list[list[Fitted]] = [[] for _ in parts]
        for rate, noise in sorted({one for choice in choices for one in choice.programs}):
            mine = [
                index
                for index, choice in enumerate(choices)
                if (rate, noise) in choice.programs
                for _ in range(members)
            ]
            torch.manual_seed(mix(seed, 2))
            network = MLP((self.hidden,), rate, per_target=2 if noise == "input" else 1)
            nets = [
                bayesianize(network(parts[i]), self.family, estimator=self.estimator) for i in mine
            ]
            batches = math.ceil(len(parts[0].train) / self.batch_size)
            fits = fit_many(
                nets,
                [parts[i].train for i in mine],
                likelihood=_NOISES[noise](),
                prior=_PRIORS[self.prior](),
                temperature=[choices[i].temperature for i in mine],
                epochs=math.ceil(self.steps / batches),
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                seed=seed,
                show=where.show,
                title=f"{self.name} {self.variant}",
            )
            for index, fit in zip(mine, fits, strict=True):
                found[index].append(fit)
        return found

    def score(self, fits: Sequence[Fitted], part: Split, data: Dataset, seed: int) -> Scores:
        """Metrics of one split in units of the target."""
        model: Any = fits[0].objective
        if len(fits) > 1:
            each = math.ceil(self.samples / len(fits))
            model = ensemble([one.objective for one in fits], each, mix(seed, 7))
        elif any(self.dropouts):
            model = mc_dropout(model, self.samples, seed)
        found = evaluate(
            model,
            part,
            samples=self.samples,
            seed=mix(seed, 7),
            target_scale=data.target_scale,
            target_mean=data.target_mean,
        )
        return found | self.audited(fits[0], part, data, seed) if self.audit else found

    def audited(self, fit: Fitted, part: Split, data: Dataset, seed: int) -> Scores:
        """What the public code would print as the log-likelihood of this network.

        Normal noise of one size is a precision that is known almost surely.
        """
        noise = fit.objective.likelihood
        assert isinstance(noise, Gaussian)
        draws = predict(fit.net, part.x, self.samples, seed=mix(seed, 7)).draws
        sure = 1e6
        rate = sure * float(noise.scale.detach()) ** 2
        score = as_published((part.y - draws).squeeze(-1), sure, rate, data.target_scale)
        return {"as_published": score}


def pooled(scores: Sequence[Scores]) -> Scores:
    """Means over splits, and their standard errors.

    Examples:
        >>> pooled([{"nll": 1.0}, {"nll": 3.0}])
        {'nll': 2.0, 'nll_sem': 1.0}
    """
    told: Scores = {}
    for key in scores[0] if scores else ():
        # a split at temperature 1 has no tempered ELBO apart from its ELBO
        if not key.endswith("_sem") and all(key in one for one in scores):
            told[key], told[f"{key}_sem"] = mean_sem(torch.tensor([one[key] for one in scores]))
    return told


def _order(value: float) -> float:
    """What is not a number is the worst."""
    return value if math.isfinite(value) else math.inf


def _listed(
    choices: Sequence[Choice], validation: Sequence[Scores], found: Sequence[Scores]
) -> list[dict[str, float | str]]:
    """A row for each split: what was chosen and what it gave."""
    rows = []
    for index, choice in enumerate(choices):
        row: dict[str, float | str] = {"split": float(index), **dataclasses.asdict(choice)}
        for name, scores in (("valid", validation), ("test", found)):
            if scores:
                row |= {f"{name}_{key}": scores[index][key] for key in ("nll", "rmse")}
        rows.append(row)
    return rows

"""The UCI benchmark: nine tables, their published splits, one recipe for every table and family.

One hidden layer of 50 units and 6,000 steps (protein: 100 and 25,000), inputs and targets standardised by
what is trained on. Settings and results: docs/papers/radial-directional.md.

`as_published` is the "test log-likelihood" that the public code of the radial-directional paper prints. It
differs from a log-likelihood in two places:

1. It takes the log-sum-exp over test points instead of draws, and subtracts log S: that adds about log(N/S).
2. It takes the precision of standardised targets with residuals in the target's own unit.

So what it prints grows with the size of the test set, and changes with the unit of the target in the wrong
way. It is here to show that a network scored with it gives the published values; it is not for scoring
anything else.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

import kasuri
from experiments import data as datasets
from experiments import published
from experiments.data import Dataset, Split
from experiments.data.tables import FOLDERS, read_uci
from experiments.networks import MLP
from experiments.spec import FIXED, Experiment, Outcome, Where
from experiments.supervised import trained_numbers
from kasuri.streams import Stream, mix

Scores = dict[str, float]
Noise = Literal["constant", "input", "both", "gamma"]
_NOISES: Mapping[str, type[kasuri.Likelihood]] = {
    "constant": kasuri.Gaussian,
    "input": kasuri.HeteroscedasticGaussian,
    "gamma": kasuri.GammaGaussian,
}
_PRIORS: Mapping[str, Callable[[], kasuri.Prior]] = {
    "he": kasuri.HeNormal,
    # biases and stand-ins as everywhere else
    "radial": lambda: kasuri.RadialPrior(others=kasuri.HeNormal()),
    "radial-augmented": lambda: kasuri.RadialPrior(1.0, 1.0, form="augmented", gap=0.5),
}


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
    of dropout; then a network is fitted to the whole training part with that choice and tested once.

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
        prior: "he" (normal, scaled by fan-in), "radial", or "radial-augmented" (from
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
    family: kasuri.Family = field(default=kasuri.MeanField(), metadata=FIXED)
    estimator: str = "shared"
    noises: tuple[Noise, ...] = field(default=("constant",), metadata=FIXED)
    temperatures: tuple[float, ...] = field(default=(1.0,), metadata=FIXED)
    dropouts: tuple[float, ...] = field(default=(0.0,), metadata=FIXED)
    prior: Literal["he", "radial", "radial-augmented"] = "he"
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
        return replace(
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
        began = time.monotonic()
        choices, validation, training = self.choose(self.load(self.valid), seed, where)
        scores: list[Scores] = []
        history: list[dict[str, float]] = []
        parameters = 0
        if where.test:
            whole = self.load(0.0)
            again = mix(seed, Stream.ORDER)  # the number behind the stored results
            groups = self.train(whole, choices, again, self.members, where)
            scores = [
                self.score(members, data.test, data, seed)
                for members, data in zip(groups, whole, strict=True)
            ]
            history = groups[0][0].history
            training += sum(member.seconds for members in groups for member in members)
            parameters = sum(trained_numbers(member.net) for member in groups[0])
        done = time.monotonic()
        return Outcome(
            metrics=pooled(scores),
            validation=pooled(validation),
            history=history,
            figures={"splits": _rows_by_split(choices, validation, scores)},
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
        parts = [
            datasets.load(f"uci/{self.table}", split=split, valid=valid) for split in range(count)
        ]
        return [part.small(self.limit) for part in parts] if self.limit else parts

    def choose(
        self, parts: Sequence[Dataset], seed: int, where: Where
    ) -> tuple[list[Choice], list[Scores], float]:
        """The best choice of every split, its validation scores, and the seconds of training."""
        options = [Choice(*o) for o in product(self.temperatures, self.dropouts, self.noises)]
        if len(options) == 1:  # nothing to choose
            return options * len(parts), [], 0.0
        every = [(part, option) for part in parts for option in options]
        tried = self.train([part for part, _ in every], [o for _, o in every], seed, 1, where)
        choices, best = [], []
        for index, part in enumerate(parts):
            mine = tried[index * len(options) : (index + 1) * len(options)]
            scores = [self.score(members, part.valid, part, seed) for members in mine]
            # what is not a number is the worst
            losses = [s["nll"] if math.isfinite(s["nll"]) else math.inf for s in scores]
            top = losses.index(min(losses))
            choices.append(options[top])
            best.append(scores[top])
        return choices, best, sum(member.seconds for members in tried for member in members)

    def train(
        self,
        parts: Sequence[Dataset],
        choices: Sequence[Choice],
        seed: int,
        members: int,
        where: Where,
    ) -> list[list[kasuri.Fitted]]:
        """The members of every part; those of one make in one program."""
        groups: list[list[kasuri.Fitted]] = [[] for _ in parts]
        for rate, noise in sorted({make for choice in choices for make in choice.programs}):
            mine = [
                index
                for index, choice in enumerate(choices)
                if (rate, noise) in choice.programs
                for _ in range(members)
            ]
            torch.manual_seed(mix(seed, Stream.FETCH))  # the number behind the stored results
            network = MLP((self.hidden,), rate, per_target=2 if noise == "input" else 1)
            fits = kasuri.fit_many(
                [
                    kasuri.bayesianize(network(parts[i]), self.family, estimator=self.estimator)
                    for i in mine
                ],
                [parts[i].train for i in mine],
                likelihood=_NOISES[noise](),
                prior=_PRIORS[self.prior](),
                temperature=[choices[i].temperature for i in mine],
                epochs=math.ceil(self.steps / math.ceil(len(parts[0].train) / self.batch_size)),
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                seed=seed,
                show=where.show,
                title=f"{self.name} {self.variant}",
            )
            for index, fitted in zip(mine, fits, strict=True):
                groups[index].append(fitted)
        return groups

    def score(
        self, members: Sequence[kasuri.Fitted], part: Split, data: Dataset, seed: int
    ) -> Scores:
        """Metrics of one split in units of the target."""
        seed_of_draws = mix(seed, Stream.EVALUATION)
        model: Any = members[0].objective
        if len(members) > 1:
            each = math.ceil(self.samples / len(members))
            model = kasuri.ensemble([member.objective for member in members], each, seed_of_draws)
        elif any(self.dropouts):
            model = kasuri.mc_dropout(model, self.samples, seed)
        scores = kasuri.evaluate(
            model,
            part,
            samples=self.samples,
            seed=seed_of_draws,
            target_scale=data.target_scale,
            target_mean=data.target_mean,
        )
        if self.audit:
            noise: Any = members[0].objective.likelihood
            draws = kasuri.predict(members[0].net, part.x, self.samples, seed=seed_of_draws).draws
            residuals = data.target_scale * (part.y - draws).squeeze(-1)
            scores["as_published"] = as_published(residuals, float(noise.scale.detach()))
        return scores


def as_published(residuals: Tensor, noise: float) -> float:
    """What the public code prints: log Σ_n N(r_sn; 0, σ²) - log S, averaged over draws s.

    Args:
        residuals: (S, N), S draws on N test points, in the target's own unit.
        noise: σ of standardised targets.

    Examples:
        >>> unit = 0.5 * math.log(2 * math.pi)  # minus the log-density at 0
        >>> math.isclose(as_published(torch.zeros(100, 957), 1.0) + unit, math.log(957 / 100))
        True
    """
    log_probs = torch.distributions.Normal(0.0, noise).log_prob(residuals.double())
    return float(log_probs.logsumexp(1).mean()) - math.log(len(residuals))


def pooled(scores: Sequence[Scores]) -> Scores:
    """Means over splits, and their standard errors.

    Examples:
        >>> pooled([{"nll": 1.0}, {"nll": 3.0}])
        {'nll': 2.0, 'nll_sem': 1.0}
    """
    means: Scores = {}
    for key in scores[0] if scores else ():
        # a split at temperature 1 has no tempered ELBO apart from its ELBO
        if not key.endswith("_sem") and all(key in split for split in scores):
            values = torch.tensor([split[key] for split in scores])
            means[key], means[f"{key}_sem"] = kasuri.metrics.mean_sem(values)
    return means


def _rows_by_split(
    choices: Sequence[Choice], validation: Sequence[Scores], test: Sequence[Scores]
) -> list[dict[str, float | str]]:
    """For each split what was chosen, and what it gave."""
    rows = []
    for index, choice in enumerate(choices):
        row: dict[str, float | str] = {"split": float(index), **dataclasses.asdict(choice)}
        for name, scores in (("valid", validation), ("test", test)):
            if scores:
                row |= {f"{name}_{key}": scores[index][key] for key in ("nll", "rmse")}
        rows.append(row)
    return rows


COLUMNS = published.table("radial_directional", "uci")  # by table and method


def _variants(table: str) -> list[Experiment]:
    base = Splits(
        name=f"uci/{table}",
        variant="mean-field",
        title=f"UCI {table}: test log-likelihood of posteriors and of what people use, all splits at once",
        table=table,
        hidden=100 if table == "protein" else 50,
        steps=25_000 if table == "protein" else 6_000,  # at least 40 epochs of every table
        noises=("constant", "input"),
        temperatures=(1.0, 0.3, 0.1),
    )
    plain = replace(base, family=kasuri.Point())
    k_tied = replace(base, family=kasuri.KTied(rank=2))
    radial = replace(base, prior="radial")
    # the published estimator wants noise of one size; nothing to choose
    audited = replace(base, audit=True, noises=("constant",), temperatures=(1.0,))

    def beside(method: str) -> dict[str, tuple[float, float | None]]:
        value, error = COLUMNS[table][method]
        return {"nll": (-value, error)}

    return [
        replace(plain, variant="plain"),
        replace(plain, variant="ensemble-5", members=5),
        replace(
            plain,
            variant="mc-dropout",
            temperatures=(0.3,),
            dropouts=(0.005, 0.02, 0.1),
            published=beside("Dropout"),
        ),
        replace(base, published=beside("VI")),
        replace(k_tied, variant="k-tied-2"),
        replace(k_tied, variant="k-tied-2-mixture", noises=("both",), members=3),
        replace(
            base,
            variant="matrix-normal",
            family=kasuri.MatrixNormal(),
            published=beside("VMG"),
        ),
        replace(audited, variant="mean-field-audited"),
        replace(audited, variant="mean-field-quick-audited", steps=4_000, learning_rate=1e-3),
        replace(radial, variant="radial-row", family=kasuri.Radial(grouping="row")),
        replace(radial, variant="radial-double", family=kasuri.Radial(grouping="double")),
        replace(
            radial,
            variant="radial-double-published",  # start, prior and noise of the paper, nothing to choose
            family=kasuri.Radial(
                grouping="double", factors=2, gap=0.005, min_gap=2e-3, spread=1e-4
            ),
            prior="radial-augmented",
            noises=("gamma",),
            temperatures=(1.0,),
        ),
    ]


EXPERIMENTS: list[Experiment] = [row for table in FOLDERS for row in _variants(table)]

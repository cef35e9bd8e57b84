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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor
from tyro.conf import Fixed

import kasuri
from experiments import data as datasets
from experiments import published
from experiments.data import Dataset, Split
from experiments.data.tables import FOLDERS, read_uci
from experiments.networks import MLP
from experiments.spec import Experiment, Outcome, Where, table
from experiments.supervised import model_of, trained_numbers
from kasuri.streams import Stream, mix

Scores = dict[str, float]
_ROW = ("nll", "rmse")  # of the report's rows by split
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
    """One network for each published split of a UCI table, trained together by `kasuri.training.fit_many`.

    Inside the training part of every split a validation part chooses temperature, kind of noise and rate
    of dropout; then a network is fitted to the whole training part with that choice and tested once.
    """

    table: str = "yacht"  # name of the UCI table
    count: int = 0  # number of splits; 0 for all that are published
    hidden: int = 50  # units of the hidden layer
    # of posteriors; kasuri.Point() for an ordinary network with weight decay
    family: Fixed[kasuri.Family] = field(default=kasuri.MeanField())
    estimator: str = "shared"  # how noise enters during training
    # to choose from: noise of one learned size ("constant"), of one size with a posterior ("gamma"), of a
    # size that is a second output of the network ("input"), or a mixture of "constant" and "input" ("both")
    noises: Fixed[tuple[Noise, ...]] = ("constant",)
    temperatures: Fixed[tuple[float, ...]] = (1.0,)  # to choose from
    dropouts: Fixed[tuple[float, ...]] = (0.0,)  # rates to choose from
    # "he" is normal, scaled by fan-in; "radial-augmented" is that of the radial-directional paper
    prior: Literal["he", "radial", "radial-augmented"] = "he"
    members: int = 1  # networks in an ensemble; of each kind of noise so many
    steps: int = 6000  # of the optimiser
    batch_size: int = 64  # examples per step
    learning_rate: float = 0.01  # of Adam, falling to 0 along a cosine
    valid: float = 0.15  # share of a split's training part that validates
    samples: int = 100  # draws per prediction
    audit: bool = False  # also score `as_published`; for constant noise
    limit: int = 0  # use only so many examples of each part; 0 for all

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
        choices, validation, training = self.choose(self.load(self.valid), seed, where)
        scores: list[Scores] = []
        groups: list[list[kasuri.Fitted]] = [[]]
        if where.test:
            whole = self.load(0.0)
            again = mix(seed, Stream.ORDER)  # the number behind the stored results
            groups = self.train(whole, choices, again, self.members, where)
            scores = [
                self.score(members, data.test, data, seed)
                for members, data in zip(groups, whole, strict=True)
            ]
            training += sum(member.seconds for members in groups for member in members)
        return Outcome(
            metrics=pooled(scores),
            validation=pooled(validation),
            history=groups[0][0].history if where.test else [],
            figures={
                "splits": [
                    {"split": float(index), **dataclasses.asdict(choice)}
                    | {f"valid_{key}": validation[index][key] for key in _ROW if validation}
                    | {f"test_{key}": scores[index][key] for key in _ROW if scores}
                    for index, choice in enumerate(choices)
                ]
            },
            parameters=sum(trained_numbers(member.net) for member in groups[0]),
            seconds=training,
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
        repeated = [part for part in parts for _ in options]
        tried = self.train(repeated, options * len(parts), seed, 1, where)
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
            fits = kasuri.training.fit_many(
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
                optimiser=lambda stack: torch.optim.Adam(stack.parameters(), self.learning_rate),
                seed=seed,
                show=self.bar(where),
            )
            for index, fitted in zip(mine, fits, strict=True):
                groups[index].append(fitted)
        return groups

    def score(
        self, members: Sequence[kasuri.Fitted], part: Split, data: Dataset, seed: int
    ) -> Scores:
        """Metrics of one split in units of the target."""
        seed_of_draws = mix(seed, Stream.EVALUATION)
        scores = kasuri.evaluate(
            model_of(members, self.samples, seed),
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


COLUMNS = published.table("radial_directional", "uci")  # by table and method


def _rows(name: str) -> list[Splits]:
    base = Splits(
        name=f"uci/{name}",
        variant="",
        title=f"UCI {name}: test log-likelihood of posteriors and of what people use, all splits at once",
        table=name,
        hidden=100 if name == "protein" else 50,
        steps=25_000 if name == "protein" else 6_000,  # at least 40 epochs of every table
        noises=("constant", "input"),
        temperatures=(1.0, 0.3, 0.1),
    )
    plain: dict[str, Any] = {"family": kasuri.Point()}
    k_tied: dict[str, Any] = {"family": kasuri.KTied(rank=2)}
    # the published estimator wants noise of one size; nothing to choose
    audited: dict[str, Any] = {"audit": True, "noises": ("constant",), "temperatures": (1.0,)}
    variants: dict[str, dict[str, Any]] = {
        "plain": plain,
        "ensemble-5": plain | {"members": 5},
        "mc-dropout": plain | {"temperatures": (0.3,), "dropouts": (0.005, 0.02, 0.1)},
        "mean-field": {},
        "k-tied-2": k_tied,
        "k-tied-2-mixture": k_tied | {"noises": ("both",), "members": 3},
        "matrix-normal": {"family": kasuri.MatrixNormal()},
        "mean-field-audited": audited,
        "mean-field-quick-audited": audited | {"steps": 4_000, "learning_rate": 1e-3},
        "radial-row": {"family": kasuri.Radial(grouping="row"), "prior": "radial"},
        "radial-double": {"family": kasuri.Radial(grouping="double"), "prior": "radial"},
        "radial-double-published": {  # start, prior and noise of the paper, nothing to choose
            "family": kasuri.Radial(grouping="double", gap=0.005),
            "prior": "radial-augmented",
            "noises": ("gamma",),
            "temperatures": (1.0,),
        },
    }
    methods = {"mc-dropout": "Dropout", "mean-field": "VI", "matrix-normal": "VMG"}
    columns = {variant: COLUMNS[name][method] for variant, method in methods.items()}
    beside = {variant: {"nll": (-value, error)} for variant, (value, error) in columns.items()}
    return table(base, variants, beside)


EXPERIMENTS: list[Experiment] = [row for name in FOLDERS for row in _rows(name)]

"""Classification and regression: load, train, evaluate."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tyro.conf import Fixed

import kasuri
from experiments import data as datasets
from experiments.data import Dataset, Split
from experiments.figures import figures
from experiments.networks import MLP, Network
from experiments.spec import Experiment, Outcome, Where
from kasuri.prediction import Evaluation
from kasuri.streams import Stream, mix
from kasuri.training import (
    Augmentation,
    Batches,
    MakeScheduler,
    Validation,
    constant,
    cosine,
    processes,
)

Callbacks = Sequence[kasuri.training.Callback]
Change = Callable[[kasuri.Fitted], kasuri.Fitted]
Scored = tuple[dict[str, float], dict[str, Any]]  # metrics, and the data of figures


@dataclass(frozen=True, kw_only=True)
class Supervised(Experiment):
    """A network trained on a data set, by one of several methods.

    A family makes it Bayesian; without one it is trained by maximum likelihood, alone, as an
    ensemble (members > 1), or to be averaged over dropout masks (dropout in the network).
    """

    data: str = "digits"  # name of the data set
    options: Fixed[Mapping[str, Any]] = field(default_factory=dict)  # those of its loader
    # a data set with inputs of the same shape, for out-of-distribution scores, or "noise" for uniform
    # noise in the range of the inputs
    outside: str | None = None
    network: Fixed[Network] = field(default=MLP())  # makes the network
    family: Fixed[kasuri.Family | None] = None  # of posteriors; None for ordinary weights
    where: str | None = None  # glob of the layers to convert; None for all
    rest: Fixed[kasuri.Family | None] = None  # family of the layers that `where` leaves out
    bias: bool = True  # whether biases get posteriors as well
    # makes the likelihood; None for that of the targets' type
    likelihood: Fixed[Callable[[], kasuri.Likelihood] | None] = None
    estimator: str = "local"  # how noise enters during training
    epochs: int = 0  # passes over the training data; 0 for the default of `kasuri.fit`
    batch_size: int = 0  # examples per step; 0 for the default of `kasuri.fit`
    augment: Fixed[Augmentation | None] = None  # changes training inputs, e.g. kasuri.training.flip
    # of Adam for all parameters, as in the papers; 0 for the optimiser and the rate of `kasuri.fit`
    learning_rate: float = 0.0
    spread_rate: float = 1.0  # Adam's rate for standard deviations, in units of that for the means
    falling: bool = True  # whether the learning rate falls to 0 along a cosine
    patience: int = 0  # stop after so many validations without improvement; 0 for never
    keep: Literal["best", "last"] = "best"  # the best validated epoch, or the last
    temperature: float | Literal["auto"] = "auto"  # "auto" has it chosen on validation data
    prior_scale: float = 0.0  # of a normal prior; 0 for He's scaling
    # KL weight added per batch, in steps of 100 batches; 0 for the default warm-up, "none" for the whole
    # KL from the first batch on
    annealing: float | Literal["none"] = 0.0
    members: int = 1  # networks in an ensemble
    samples: int = 100  # draws per test prediction
    # share of training and validation data together that validates, chosen at random by the seed; 0 keeps
    # the data set's own validation part
    held_out: float = 0.0
    limit: int = 0  # use only so many examples of each part; 0 for all

    def smoke(self) -> "Supervised":
        """Two epochs on 200 examples, four draws."""
        return dataclasses.replace(
            self, epochs=2, limit=200, samples=4, members=min(self.members, 2)
        )

    def run(self, seed: int, where: Where) -> Outcome:
        return self.run_changed(seed, where, lambda fitted: fitted)

    def run_changed(self, seed: int, where: Where, change: Change) -> Outcome:
        """The same, with a change of what was trained before it is evaluated."""
        data = self.load(self.data, seed)
        members = [change(member) for member in self.train_members(data, seed, where)]
        valid = self.assess(members, data, "valid", seed)
        metrics, drawn = self.test(members, data, seed) if where.test else ({}, {})
        return Outcome(
            metrics=dict(metrics),
            validation=dict(valid),
            history=members[0].history,
            figures=drawn,
            parameters=sum(trained_numbers(member.net) for member in members),
            seconds=sum(member.seconds for member in members),
        )

    def load(self, name: str, seed: int) -> Dataset:
        """A data set, cut down to `limit`."""
        split = {"split": seed} if name.startswith("uci/") else {}  # seeds count published splits
        data = datasets.load(name, **self.options, **split)
        if self.held_out:
            whole = data.everything().train
            order = torch.randperm(
                len(whole), generator=torch.Generator().manual_seed(mix(seed, Stream.SPLIT))
            )
            count = max(1, round(self.held_out * len(whole)))
            valid, train = (
                whole.subset(part.sort().values) for part in order.tensor_split([count])
            )
            data = dataclasses.replace(data, train=train, valid=valid)
        return data.small(self.limit) if self.limit else data

    def train_members(self, data: Dataset, seed: int, where: Where) -> list[kasuri.Fitted]:
        """Every member, trained; from its checkpoint if it was trained before."""
        places = [where.below(f"member-{member}") for member in range(self.members)]
        places = [where] if self.members == 1 else places
        return [self.train(data, mix(seed, member), at) for member, at in enumerate(places)]

    def train(
        self, data: Dataset, seed: int, where: Where, callbacks: Callbacks = ()
    ) -> kasuri.Fitted:
        """One network: made, converted, trained; resumed if it was interrupted."""
        torch.manual_seed(seed)
        return self.fit(self.convert(self.network(data)), data, seed, where, callbacks)

    def fit(
        self, net: nn.Module, data: Dataset, seed: int, where: Where, callbacks: Callbacks = ()
    ) -> kasuri.Fitted:
        """A network that was made and converted, trained; resumed if it was interrupted."""
        is_bayesian = self.family is not None
        train: Any = data.train
        size = self.batch_size or None
        if self.augment is not None:
            train, size = Batches(train.x, train.y, size, seed=seed, augment=self.augment), None
        fitted = kasuri.fit(
            net,
            train,
            Validation(data.valid, patience=self.patience or None, keep=self.keep),
            likelihood=None if self.likelihood is None else self.likelihood(),
            epochs=self.epochs or None,
            batch_size=size,
            scheduler=self.scheduler(),
            seed=seed,
            folder=where.folder,
            show=self.bar(where),
            callbacks=callbacks,
            **self.rates(net),
            **(self.objective(data) if is_bayesian else {}),
        )
        if is_bayesian and where.folder is not None and processes().is_first:
            kasuri.save(fitted.net, where.folder / "model.safetensors")
        return fitted

    def convert(self, net: nn.Module) -> nn.Module:
        if self.family is None:
            return net
        how: dict[str, Any] = {"estimator": self.estimator, "bias": self.bias}
        net = kasuri.bayesianize(net, self.family, where=self.where, **how)
        if self.rest is None:
            return net
        done = {name.rpartition(".")[0] for name, _ in kasuri.named_posteriors(net)}
        return kasuri.bayesianize(net, self.rest, where=lambda name, _: name not in done, **how)

    def rates(self, net: nn.Module) -> dict[str, Any]:
        """Learning rate or optimiser, as `kasuri.fit` takes them."""
        if self.family is None or not self.learning_rate:
            if self.spread_rate != 1.0:
                raise ValueError(f"spread_rate={self.spread_rate} must come with a learning_rate")
            return {"learning_rate": self.learning_rate or None}
        spread = {
            id(parameter)
            for _, posterior in kasuri.named_posteriors(net)
            for name, parameter in posterior.named_parameters()
            if name != "loc"
        }

        def optimizer(objective: nn.Module) -> Optimizer:
            means = [p for p in objective.parameters() if id(p) not in spread]
            spreads = [p for p in objective.parameters() if id(p) in spread]
            groups = [
                {"params": means, "lr": self.learning_rate},
                {"params": spreads, "lr": self.learning_rate * self.spread_rate},
            ]
            return torch.optim.Adam(groups, fused=True)

        return {"optimiser": optimizer}

    def scheduler(self) -> MakeScheduler:
        return cosine if self.falling else constant

    def objective(self, data: Dataset) -> dict[str, Any]:
        """Prior, temperature and weight of the KL, as `kasuri.fit` takes them."""
        weight: Any = None
        if self.annealing == "none":
            weight = 1.0
        elif self.annealing:
            weight = kasuri.schedules.LinearPerBatch(self.annealing, every=100)
        temperature = None if self.temperature == "auto" else self.temperature
        return {"prior": self.prior(), "temperature": temperature, "kl_weight": weight}

    def prior(self) -> kasuri.Prior:
        return kasuri.Normal(self.prior_scale) if self.prior_scale else kasuri.HeNormal()

    def test(self, members: Sequence[kasuri.Fitted], data: Dataset, seed: int) -> Scored:
        """Scores on the test part, and the data of figures; those of posteriors if there is one network."""
        scores = self.assess(members, data, "test", seed)
        return scores, figures(scores, members[0].objective if len(members) == 1 else None)

    def assess(
        self, members: Sequence[kasuri.Fitted], data: Dataset, part: str, seed: int
    ) -> Evaluation:
        inside: Split = getattr(data, part)
        return kasuri.evaluate(
            model_of(members, self.samples, seed),
            inside,
            samples=self.samples,
            outside=self.foreign(inside, seed) if part == "test" else None,
            seed=mix(seed, Stream.EVALUATION),
            target_scale=data.target_scale,
            target_mean=data.target_mean,
        )

    def foreign(self, inside: Split, seed: int) -> Tensor | None:
        """Inputs of another kind, if there are to be any."""
        if self.outside is None:
            return None
        if self.outside != "noise":
            return self.load(self.outside, seed).test.x
        low, high = float(inside.x.min()), float(inside.x.max())
        numbers = torch.rand(inside.x.shape, generator=torch.Generator().manual_seed(0))
        return low + (high - low) * numbers


def model_of(members: Sequence[kasuri.Fitted], samples: int, seed: int) -> Any:
    """What predicts: a network, several that are averaged, or one averaged over dropout masks."""
    if len(members) > 1:
        draws_of_each = math.ceil(samples / len(members))
        return kasuri.prediction.ensemble(members, draws_of_each, mix(seed, Stream.EVALUATION))
    (fitted,) = members
    if any(isinstance(module, nn.Dropout) for module in fitted.net.modules()):
        return kasuri.prediction.mc_dropout(fitted, samples, seed)
    return fitted


def trained_numbers(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters() if p.requires_grad)

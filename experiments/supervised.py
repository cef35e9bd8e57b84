"""Classification and regression: load, train, evaluate."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments import data as datasets
from experiments.data.dataset import Dataset, Split
from experiments.networks import MLP, Network
from experiments.spec import FIXED, Experiment, Outcome, Where
from kasuri.likelihoods import Likelihood
from kasuri.network.convert import bayesianize
from kasuri.network.random import named_layers, named_posteriors
from kasuri.network.saving import save
from kasuri.objectives.schedules import LinearPerBatch
from kasuri.posteriors.base import Family
from kasuri.prediction.baselines import ensemble, mc_dropout
from kasuri.prediction.evaluate import Evaluation, assess
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal, Normal
from kasuri.streams import mix
from kasuri.training.augment import Augmentation
from kasuri.training.callbacks import Callback
from kasuri.training.defaults import LEARNING_RATE, MakeScheduler, constant, cosine
from kasuri.training.distributed import processes
from kasuri.training.fit import fit
from kasuri.training.fitted import Fitted
from kasuri.training.sources import hold_out


@dataclass(frozen=True, kw_only=True)
class Supervised(Experiment):
    """A network trained on a data set, by one of several methods.

    A family makes it Bayesian; without one it is trained by maximum likelihood, alone, as an
    ensemble (members > 1), or to be averaged over dropout masks (dropout in the network).

    Args:
        data: name of the data set; `options` are those of its loader.
        outside: name of a data set with inputs of the same shape, for out-of-distribution scores, or
            "noise" for uniform noise in the range of the inputs.
        network: makes the network.
        family: posterior family; None for ordinary weights.
        where: glob of the layers to convert; None for all.
        rest: posterior family of the layers that `where` leaves out; None for ordinary weights.
        bias: whether biases get posteriors as well.
        likelihood: makes the likelihood; None for that of the targets' type.
        estimator: how noise enters during training.
        epochs: passes over the training data; 0 for the default of `kasuri.fit`.
        batch_size: examples per step; 0 for the default of `kasuri.fit`.
        augment: changes training inputs, e.g. datasets.flip.
        learning_rate: of Adam; 0 for the default of `kasuri.fit`.
        falling: whether the learning rate falls to 0 along a cosine.
        patience: stop after so many validations without improvement; 0 for never.
        keep: the "best" validated epoch or the "last".
        temperature: a number, or "auto" to have it chosen on validation data.
        prior_scale: of a normal prior; 0 for He's scaling.
        spread_rate: learning rate of standard deviations, in units of that of the means.
        annealing: KL weight added per batch, in steps of 100 batches; 0 for the default warm-up, "none"
            for the whole KL from the first batch on.
        members: networks in an ensemble.
        samples: draws per test prediction.
        split: of a UCI table; -1 for the one that the seed counts to.
        held_out: share of training and validation data together that validates, chosen at random by
            the seed; 0 keeps the data set's own validation part.
        limit: use only so many examples of each part; 0 for all.
    """

    data: str = "digits"
    options: Mapping[str, Any] = field(default_factory=dict, metadata=FIXED)
    outside: str | None = None
    network: Network = field(default=MLP(), metadata=FIXED)
    family: Family | None = field(default=None, metadata=FIXED)
    where: str | None = None
    rest: Family | None = field(default=None, metadata=FIXED)
    bias: bool = True
    likelihood: Callable[[], Likelihood] | None = field(default=None, metadata=FIXED)
    estimator: str = "local"
    epochs: int = 0
    batch_size: int = 0
    augment: Augmentation | None = field(default=None, metadata=FIXED)
    learning_rate: float = 0.0
    spread_rate: float = 1.0
    falling: bool = True
    patience: int = 0
    keep: Literal["best", "last"] = "best"
    temperature: float | Literal["auto"] = "auto"
    prior_scale: float = 0.0
    annealing: float | Literal["none"] = 0.0
    members: int = 1
    samples: int = 100
    split: int = -1
    held_out: float = 0.0
    limit: int = 0

    def smoke(self) -> "Supervised":
        """Two epochs on 200 examples, four draws."""
        return dataclasses.replace(
            self, epochs=2, limit=200, samples=4, members=min(self.members, 2)
        )

    def run(self, seed: int, where: Where) -> Outcome:
        """Load, train every member, evaluate."""
        began = time.monotonic()
        data = self.load(self.data, self.options, seed)
        fits = self.trained(data, seed, where)
        trained = time.monotonic()
        valid = self.assess(fits, data, "valid", seed)
        metrics, figures = self.tested(fits, data, seed) if where.test else ({}, {})
        done = time.monotonic()
        return Outcome(
            metrics=metrics,
            validation=valid.metrics,
            history=fits[0].history,
            figures=figures,
            parameters=sum(trained_numbers(one.net) for one in fits),
            seconds={
                "total": done - began,
                "train": sum(one.seconds for one in fits),
                "evaluate": done - trained,
            },
        )

    def tested(
        self, fits: Sequence[Fitted], data: Dataset, seed: int
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Scores on the test part, and the data of figures."""
        found = self.assess(fits, data, "test", seed)
        return found.metrics, found.figures

    def trained(self, data: Dataset, seed: int, where: Where) -> list[Fitted]:
        """Every member, trained; from its checkpoint if it was trained before."""
        return [
            self.train(data, mix(seed, member), self.member_folder(where, member), where)
            for member in range(self.members)
        ]

    def load(self, name: str, options: Mapping[str, Any], seed: int) -> Dataset:
        """A data set, cut down to `limit`."""
        split = {"split": seed if self.split < 0 else self.split} if name.startswith("uci/") else {}
        data = datasets.load(name, **options, **split)
        if self.held_out:
            train, valid = hold_out(data.everything().train, self.held_out, seed)
            data = dataclasses.replace(data, train=Split(*train), valid=Split(*valid))
        return data.small(self.limit) if self.limit else data

    def train(
        self,
        data: Dataset,
        seed: int,
        folder: Path | None,
        where: Where,
        callbacks: Sequence[Callback] = (),
    ) -> Fitted:
        """One network: made, converted, trained; resumed if it was interrupted."""
        torch.manual_seed(seed)
        return self.fit(self.convert(self.network(data)), data, seed, folder, where, callbacks)

    def fit(
        self,
        net: nn.Module,
        data: Dataset,
        seed: int,
        folder: Path | None,
        where: Where,
        callbacks: Sequence[Callback] = (),
    ) -> Fitted:
        """A network that was made and converted, trained; resumed if it was interrupted."""
        bayesian = self.family is not None
        fitted = fit(
            net,
            data.train,
            data.valid,
            likelihood=None if self.likelihood is None else self.likelihood(),
            epochs=self.epochs or None,
            batch_size=self.batch_size or None,
            augment=self.augment,
            scheduler=self.scheduler(),
            patience=self.patience or None,
            keep=self.keep,
            seed=seed,
            folder=folder,
            resume=folder is not None,
            show=where.show,
            title=f"{self.name} {self.variant}",
            callbacks=callbacks,
            **self.rates(net),
            **(self.tempered(data) if bayesian else {}),
        )
        if bayesian and folder is not None and processes().is_first:
            save(fitted.net, folder / "model.safetensors")
        return fitted

    def convert(self, net: nn.Module) -> nn.Module:
        """The network with its posteriors, if there are to be any."""
        if self.family is None:
            return net
        how: dict[str, Any] = {"estimator": self.estimator, "bias": self.bias}
        net = bayesianize(net, self.family, where=self.where, **how)
        if self.rest is None:
            return net
        done = {name for name, _, _ in named_layers(net)}
        return bayesianize(net, self.rest, where=lambda name, _: name not in done, **how)

    def rates(self, net: nn.Module) -> dict[str, Any]:
        """Learning rate or optimiser, as `kasuri.fit` takes them."""
        if self.spread_rate == 1.0:
            return {"learning_rate": self.learning_rate or None}
        rate = self.learning_rate or LEARNING_RATE
        spread = {
            id(parameter)
            for _, posterior in named_posteriors(net)
            for name, parameter in posterior.named_parameters()
            if name != "loc"
        }

        def optimizer(parameters: list[nn.Parameter]) -> Optimizer:
            groups = [
                {"params": [p for p in parameters if id(p) not in spread], "lr": rate},
                {
                    "params": [p for p in parameters if id(p) in spread],
                    "lr": rate * self.spread_rate,
                },
            ]
            return torch.optim.Adam(groups, fused=True)

        return {"optimizer": optimizer}

    def scheduler(self) -> MakeScheduler:
        """Of the learning rate."""
        return cosine if self.falling else constant

    def tempered(self, data: Dataset) -> dict[str, Any]:
        """Prior, temperature and weight of the KL, as `kasuri.fit` takes them."""
        weight: Any = None
        if self.annealing == "none":
            weight = 1.0
        elif self.annealing:
            weight = LinearPerBatch(self.annealing, every=100)
        temperature = None if self.temperature == "auto" else self.temperature
        return {"prior": self.prior(), "temperature": temperature, "kl_weight": weight}

    def prior(self) -> Prior:
        """Normal with the given scale, or He's."""
        return Normal(self.prior_scale) if self.prior_scale else HeNormal()

    def member_folder(self, where: Where, member: int) -> Path | None:
        """The folder of a member's checkpoint."""
        if where.folder is None or self.members == 1:
            return where.folder
        return where.folder / f"member-{member}"

    def foreign(self, inside: Split, seed: int) -> Tensor | None:
        """Inputs of another kind, if there are to be any."""
        if self.outside is None:
            return None
        if self.outside != "noise":
            return self.load(self.outside, self.options, seed).test.x
        low, high = float(inside.x.min()), float(inside.x.max())
        numbers = torch.rand(inside.x.shape, generator=torch.Generator().manual_seed(0))
        return low + (high - low) * numbers

    def assess(self, fits: Sequence[Fitted], data: Dataset, part: str, seed: int) -> Evaluation:
        """Scores on the "valid" or "test" part."""
        objectives = [one.objective for one in fits]
        model: Any = objectives[0]
        if len(objectives) > 1:
            model = ensemble(objectives)
        elif _drops(model.net):
            model = mc_dropout(model, self.samples, seed)
        inside: Split = getattr(data, part)
        other = self.foreign(inside, seed) if part == "test" else None
        return assess(
            model,
            inside,
            samples=self.samples,
            outside=other,
            seed=mix(seed, 7),
            target_scale=data.target_scale,
            target_mean=data.target_mean,
        )


def trained_numbers(net: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def _drops(net: nn.Module) -> bool:
    """Whether a network without posteriors has dropout."""
    if next(named_posteriors(net), None) is not None:
        return False
    return any(isinstance(module, nn.Dropout) for module in net.modules())

"""From what the user gives to the parts of a training run."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from kasuri.likelihoods import Likelihood
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO, MaximumLikelihood, Objective
from kasuri.objectives.governing import Governing
from kasuri.objectives.schedules import LinearOverEpochs, Schedule
from kasuri.objectives.temperature import Temperature, Tempering
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal
from kasuri.training import defaults
from kasuri.training.batches import Batches
from kasuri.training.callbacks import Callback, CSVLog, TensorBoardLog
from kasuri.training.distributed import Processes
from kasuri.training.sources import Source, hold_out, tensors


def wants_temperature(model: nn.Module) -> bool:
    """Whether an objective has to be made that has a temperature."""
    return not isinstance(model, Objective) and next(named_posteriors(model), None) is not None


def is_chosen(temperature: Temperature | None) -> bool:
    """Whether validation data are to choose the temperature."""
    return temperature is None or temperature == "auto"


def held_out(train: Any, seed: int) -> tuple[Any, Any]:
    """Training and validation part of training data."""
    if isinstance(train, Batches | DataLoader):
        raise ValueError(
            "no validation data and no temperature: examples cannot be held out of a "
            f"{type(train).__name__}; give valid=(x, y) to choose the temperature on, or temperature=0.1"
        )
    return hold_out(train, defaults.HELD_OUT, seed)


def objective(
    model: nn.Module,
    source: Source,
    validated: bool,
    likelihood: Likelihood | None,
    prior: Prior | Mapping[str, Prior] | None,
    temperature: Temperature | None,
    kl_weight: float | Schedule | None,
    epochs: int,
    output: Callable[[Any], Tensor] | None,
) -> Objective:
    """The given objective, or one made of the given parts and defaults."""
    given = {
        "likelihood": likelihood,
        "prior": prior,
        "temperature": temperature,
        "kl_weight": kl_weight,
        "output": output,
    }
    told = [name for name, value in given.items() if value is not None]
    if isinstance(model, Objective):
        if told:
            raise ValueError(f"fit(objective, {told[0]}=...): the objective has its own {told[0]}")
        return model
    if likelihood is None:
        likelihood = defaults.likelihood_of(next(source.epoch(0))[1])
    if not wants_temperature(model):
        if wrong := [name for name in told if name not in ("likelihood", "output")]:
            raise ValueError(
                f"fit(net, {wrong[0]}=...): this network has no Bayesian layer, so it is trained by "
                "maximum likelihood; write bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2)) first"
            )
        return MaximumLikelihood(model, likelihood, output, source.num_data)
    if is_chosen(temperature):
        assert validated
    if kl_weight is None:
        kl_weight = LinearOverEpochs(defaults.WARM_UP * epochs, len(source))
    return ELBO(
        model,
        likelihood,
        HeNormal() if prior is None else prior,
        num_data=source.num_data,
        temperature="auto" if temperature is None else temperature,
        kl_weight=kl_weight,
        output=output,
    )


def checked_rows(valid: Any, objective: Objective, samples: int, seed: int) -> tuple[Any, Tensor]:
    """A random but fixed part of the validation data, large enough to tell epochs apart."""
    x, y = tensors(valid)
    rows = defaults.ROWS * (1 if isinstance(objective, ELBO) else samples)
    if len(y) <= rows:
        return x, y
    return hold_out((x, y), rows / len(y), seed)[1]


def check_numbers(counts: Mapping[str, int | None], sizes: Mapping[str, float | None]) -> None:
    """Refuse counts below 1 and sizes that are not above 0."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"fit({name}={count}): at least 1")
    for name, size in sizes.items():
        if size is not None and not size > 0:
            raise ValueError(f"fit({name}={size}): above 0")


def check_choices(caller: str, keep: str, own_optimizer: bool, learning_rate: float | None) -> None:
    """Refuse an unknown `keep`, and a rate for an optimiser that has its own."""
    if keep not in ("best", "last"):
        raise ValueError(f'{caller}(keep={keep!r}): write keep="best" or keep="last"')
    if own_optimizer and learning_rate is not None:
        raise ValueError(
            f"{caller}(optimizer=..., learning_rate=...): the rate belongs to the default optimiser; put "
            "it into yours"
        )


def check_kinds(optimizer: Optimizer, scheduler: LRScheduler) -> None:
    """Refuse what needs another loop."""
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS evaluates the loss several times per step, each time with other noise: take a "
            "stochastic optimiser, e.g. torch.optim.Adam"
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau wants a score per epoch, and kasuri.fit steps schedules every batch: "
            "take one that is a function of the step, e.g. CosineAnnealingLR or OneCycleLR"
        )


def settings(
    objective: Objective,
    source: Source,
    optimizer: Optimizer,
    group: Processes,
    given: dict[str, Any],
) -> dict[str, Any]:
    """What must be equal for a resumed run to be the same run."""
    targets = next(source.epoch(0))[1]
    told: dict[str, Any] = {
        **given,
        "steps per epoch": len(source),
        "number of data": source.num_data,
        "first targets": group.share(float(targets.double().sum())),
        "processes": group.world,
        "optimiser": type(optimizer).__name__,
        "learning rate": [float(one["lr"]) for one in optimizer.param_groups],
        "parameters": sum(p.numel() for p in objective.parameters()),
    }
    told["likelihood"], *priors = described(objective)
    if priors:
        told["prior"] = priors
    if about := objective.extra_repr():
        told["objective"] = about
    return told | {name: _told(one) for name, one in objective.scheduled().items()}


def described(objective: Objective) -> list[str]:
    """The likelihood and the priors in words, without what they learn."""
    likelihood = objective.likelihood  # whose options are what it was told, never what it learned
    told = [f"{type(likelihood).__name__}({likelihood.options()})"]
    if isinstance(objective, Governing):
        priors = [cast(Prior, one) for one in objective.priors]
        told += [_named(one, one.options()) for one in priors]
    return told


def _named(module: nn.Module, options: dict[str, Any]) -> str:
    """Class and options; of one that learns the class alone, since its options change."""
    learns = next(module.parameters(), None) is not None
    return type(module).__name__ if learns else f"{type(module).__name__}({options})"


def _told(schedule: Schedule) -> str:
    """A schedule in words; a function of the user's has none."""
    if isinstance(schedule, Tempering):
        return f"chosen, from {schedule.start:g}"
    return repr(schedule) if dataclasses.is_dataclass(schedule) else "a function"


def logs(folder: str | Path | None, tensorboard: bool) -> list[Callback]:
    """What writes the history to files."""
    if folder is None:
        if tensorboard:
            raise ValueError('fit(tensorboard=True) writes files: say where, folder="runs/first"')
        return []
    table, events = CSVLog(Path(folder) / "history.csv"), Path(folder) / "tensorboard"
    return [table, TensorBoardLog(events)] if tensorboard else [table]

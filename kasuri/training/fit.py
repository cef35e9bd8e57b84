"""`kasuri.fit`: from a network and data to a trained posterior in one call."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Prediction
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO, Governing, MaximumLikelihood, Objective
from kasuri.objectives.schedules import Constant, LinearOverEpochs, Schedule
from kasuri.objectives.temperature import Temperature, Tempering
from kasuri.objectives.trained import Trained
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.predict import predict
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal
from kasuri.streams import fresh
from kasuri.training import checkpoint, defaults
from kasuri.training.batches import Batches, Source, as_source, hold_out, rows_of
from kasuri.training.callbacks import Bar, Callback, Row
from kasuri.training.distributed import processes
from kasuri.training.interrupts import Interrupted, Interrupts
from kasuri.training.loop import Run
from kasuri.training.optimisers import (
    MakeOptimiser,
    MakeScheduler,
    cosine,
    make_optimiser,
    make_schedule,
)
from kasuri.training.validation import Validation


@dataclass(frozen=True)
class Fitted(Trained):
    """What training made.

    Args:
        objective: prior, likelihood and network, at the best validated epoch if there was validation.
        history: one row per epoch.
        best_epoch: the epoch kept (the last without validation).
        seconds: wall time of training and validation.
    """

    objective: Objective
    history: list[Row]
    best_epoch: int
    seconds: float

    @property
    def net(self) -> nn.Module:
        """The trained network."""
        return self.objective.net

    @property
    def temperature(self) -> float | None:
        """The temperature at the epoch kept; None for an ordinary network."""
        return self.history[self.best_epoch - 1].get("temperature")

    def predict(self, x: Any, samples: int = 100, **options: Any) -> Prediction:
        """`kasuri.predict` of the trained network."""
        return predict(self.objective, x, samples, **options)

    def evaluate(self, data: Any, **options: Any) -> dict[str, float]:
        """`kasuri.evaluate` of the trained network."""
        return evaluate(self.objective, data, **options)


def fit(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    likelihood: Likelihood | None = None,
    prior: Prior | Mapping[str, Prior] | None = None,
    temperature: Temperature | None = None,
    kl_weight: float | Schedule | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimiser: Optimizer | MakeOptimiser | None = None,
    scheduler: MakeScheduler = cosine,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    show: bool | str | None = None,
) -> Fitted:
    """Train a converted network, an ordinary one, or an objective of your own.

    By default it minimises the ELBO with He-scaled prior, KL warm-up, natural-gradient steps
    (`kasuri.Natural`) at falling rates, and a temperature chosen on validation data while training goes on.
    Ordinary networks and auto-encoders are trained by Adam.

    Args:
        model: a network from `bayesianize`; an ordinary one, which is trained by maximum likelihood;
            or a kasuri.ELBO or kasuri.MaximumLikelihood, which is taken as it is. A network that returns
            something else than a tensor needs one, with `output=`.
        train: (x, y) tensors, an object with .x and .y, kasuri.training.Batches (which can augment), or a
            DataLoader. Tensors are the fastest: a DataLoader costs more than a step of a small network.
        valid: the same, or kasuri.training.Validation with the data and how they are used (patience, ...). A
            tenth of the training examples is held out if a temperature is to be chosen and this is not given.
            The epoch with the best validation NLL is kept, or the newest within a standard error of it. While
            training, at most 2,048 of the examples are used, always the same.
        likelihood: by default classes for integer targets, normal noise of learned size for real ones.
        prior: by default kasuri.HeNormal().
        temperature: a number, a schedule or kasuri.Balanced; by default, or for "auto", it rises during
            training and stays where validation data liked it best.
        kl_weight: by default rises from 0 to 1 over the first tenth of the epochs (a quarter with Adam).
        epochs: passes over the training data; by default 20, or as many as make 1,500 steps (4,000 of
            Adam: of an ordinary network, or with an optimiser of your own).
        batch_size: examples per step, of all processes together; by default 128, or 256 if there are
            10,000 examples or more. A DataLoader has its own.
        learning_rate: of Adam's steps in the default optimiser; by default 4 / steps, between 0.002 and
            0.005. For ordinary networks 0.002, more with batches above 256.
        optimiser: an optimiser, or a function that makes one for the objective, e.g.
            `lambda objective: torch.optim.SGD(objective.parameters(), 0.1)`.
        scheduler: makes the schedule from (optimiser, number of steps); it is stepped every batch.
        seed: makes the run reproducible; otherwise torch's global generator decides.
        callbacks: told about every step and epoch, e.g. kasuri.training.Clip(1.0).
        folder: for checkpoint and history.csv. If it holds a run that was stopped, this goes on with it, to
            the very result it would have had; a run that has ended is returned as it was.
        show: a progress bar, with a title if this is a text; by default if the program runs in a terminal.

    Examples:
        >>> import torch, kasuri
        >>> x = torch.randn(200, 3)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1))
        >>> fitted = kasuri.fit(bnn, (x, (x[:, 0] > 0).long()), epochs=2, seed=0)
        >>> len(fitted.history), fitted.net is bnn
        (2, True)
    """
    check_numbers(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
    validation = valid if isinstance(valid, Validation) else Validation(valid)
    group = processes()
    place = None if folder is None else Path(folder)
    saved = None
    if place is not None and group.from_first(lambda: checkpoint.exists(place)):
        saved = checkpoint.read(place)
    if seed is None:
        seed = saved["settings"]["seed"] if saved else fresh()
    seed = int(group.from_first(lambda: seed))
    held = rows_of(validation.data)
    if held is None and chooses_temperature(model, temperature):
        if isinstance(train, Batches | DataLoader):
            raise ValueError(
                "no validation data and no temperature: examples cannot be held out of a "
                f"{type(train).__name__}; give valid=(x, y) to choose the temperature on, or temperature=0.1"
            )
        train, held = hold_out(train, defaults.HELD_OUT, seed)
    if validation.patience is not None and held is None:
        raise ValueError(
            f"Validation(patience={validation.patience}): there is no validation data to wait for"
        )
    source = as_source(train, batch_size, seed, group)
    rows = round(source.num_data / len(source))  # per step, of all processes together
    if epochs is None and saved:
        epochs = saved["settings"]["epochs"]
    natural = optimiser is None and trains_naturally(model)
    epochs = epochs or defaults.epochs(len(source), rows, natural=natural)
    objective = make_objective(
        model,
        source,
        (defaults.WARM_UP if natural else defaults.WARM_UP_OF_ADAM) * epochs,
        likelihood=likelihood,
        prior=prior,
        temperature=temperature,
        kl_weight=kl_weight,
    )
    was = saved["settings"]["optimiser"] if saved else None
    steps = epochs * len(source)
    stepping = make_optimiser(optimiser, objective, learning_rate, steps, rows, was)
    run = Run(
        objective=objective,
        train=source,
        valid=held,
        validation=validation,
        optimiser=stepping,
        scheduler=make_schedule(scheduler, stepping, steps),
        epochs=epochs,
        seed=seed,
        callbacks=callbacks,
        group=group,
        folder=place,
    )
    if place is not None:
        run.settings = _settings(run)
    if saved is not None:
        run.restore(saved)
        del saved  # it is larger than the network
    bar = Bar(show if group.is_first else False, steps)
    # signals are held until the last sentence is out: torchrun sends one as soon as a process dies
    with bar, checkpoint.generators_restored(), Interrupts() as stop, _ending(run):
        is_done = run(bar, stop)
    if not is_done:
        raise Interrupted(run.hint(), run.place())
    return finished(run, model)


def check_numbers(**numbers: float | None) -> None:
    """Refuse counts and rates that are not above 0."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ValueError(f"{name} must be above 0, got {number}")


def chooses_temperature(model: nn.Module, temperature: Temperature | None) -> bool:
    """Whether validation data are to choose the temperature of an objective that has to be made."""
    is_open = temperature is None or temperature == "auto"
    return is_open and not isinstance(model, Objective) and _is_converted(model)


def trains_naturally(model: nn.Module) -> bool:
    """Whether the default optimiser of a network or objective takes natural steps."""
    return isinstance(model, ELBO) or (not isinstance(model, Objective) and _is_converted(model))


def _is_converted(model: nn.Module) -> bool:
    return next(named_posteriors(model), None) is not None


def make_objective(model: nn.Module, source: Source, warm_up: float, **parts: Any) -> Objective:
    """The given objective, or one made of the given parts (None for what was not said) and defaults.

    The weight of the KL rises during `warm_up` epochs.
    """
    given = {name: part for name, part in parts.items() if part is not None}
    if isinstance(model, Objective):
        for name in given:
            raise ValueError(f"fit(objective, {name}=...): the objective has its own {name}")
        return model
    is_converted = _is_converted(model)
    for name in given:
        if not is_converted and name != "likelihood":
            raise ValueError(
                f"fit(net, {name}=...): this network has no random weights, so it is trained by "
                "maximum likelihood; write bnn = kasuri.bayesianize(net, kasuri.KTied(2)) first"
            )
    if "likelihood" not in given:
        given["likelihood"] = defaults.likelihood_of(next(source.epoch(0))[1])
    if not is_converted:
        return MaximumLikelihood(model, num_data=source.num_data, **given)
    rising = LinearOverEpochs(warm_up, len(source))
    usual: dict[str, Any] = {"prior": HeNormal(), "temperature": "auto", "kl_weight": rising}
    return ELBO(model, num_data=source.num_data, **(usual | given))


def finished(run: Run, model: nn.Module) -> Fitted:
    """The best state in place; schedules of an objective that `fit` made end at their values there."""
    if run.best_state is not None:
        run.objective.load_state_dict(run.best_state)
    best = run.at.best_epoch or run.at.epoch
    if isinstance(run.objective, ELBO) and run.objective is not model:
        row = run.at.history[best - 1]
        run.objective.temperature = Constant(row["temperature"])
        run.objective.kl_weight = Constant(row["kl_weight"])
    return Fitted(run.objective, run.at.history, best, run.at.seconds)


def described(objective: Objective) -> dict[str, Any]:
    """The likelihood and the priors in words, without what they learn."""
    likelihood = objective.likelihood  # whose options are what it was given, never what it learned
    words: dict[str, Any] = {"likelihood": f"{type(likelihood).__name__}({likelihood.options()})"}
    priors = [prior for prior, _ in objective.groups()] if isinstance(objective, Governing) else []
    if priors:
        words["prior"] = [
            type(prior).__name__ + ("" if list(prior.parameters()) else f"({prior.options()})")
            for prior in priors
        ]
    return words


def _settings(run: Run) -> dict[str, Any]:
    """What must be equal for a resumed run to be the same run."""
    objective, optimiser = run.objective, run.optimiser
    targets = next(run.train.epoch(0))[1]
    settings: dict[str, Any] = {
        "epochs": run.epochs,
        "seed": run.seed,
        "patience": run.validation.patience,
        "samples": run.validation.samples,
        "steps per epoch": len(run.train),
        "number of data": run.train.num_data,
        "first targets": run.group.from_first(lambda: float(targets.double().sum())),
        "processes": run.group.world,
        "optimiser": type(optimiser).__name__,
        "learning rate": [float(group["lr"]) for group in optimiser.param_groups],
        "parameters": sum(p.numel() for p in objective.parameters()),
        "callbacks": [type(callback).__name__ for callback in run.callbacks],
        **described(objective),
    }
    if description := objective.extra_repr():
        settings["objective"] = description
    for name, schedule in objective.scheduled().items():
        is_plain = dataclasses.is_dataclass(schedule)  # a function of the user's has no words
        settings[name] = repr(schedule) if is_plain else "a function"
        if isinstance(schedule, Tempering):
            settings[name] = f"chosen around {schedule.usual:g}"
    return settings


@contextmanager
def _ending(run: Run) -> Iterator[None]:
    """Tell the callbacks; say in plain words when another process has gone."""
    try:
        yield
    except RuntimeError as error:
        if not run.group.is_lost(error):
            raise
        message = (
            f"process {run.group.rank} of {run.group.world} lost contact with the others, one of "
            f"which has probably ended; {run.hint()}"
        )
        print(message, file=sys.stderr, flush=True)  # torchrun may not leave time for the traceback
        raise RuntimeError(message) from error
    finally:
        for callback in run.callbacks:
            callback.on_end()

"""`kasuri.fit`: from a network and data to a trained posterior in one call."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from kasuri.likelihoods import Likelihood
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO, Governing, MaximumLikelihood, Objective
from kasuri.objectives.schedules import Constant, LinearOverEpochs, Schedule
from kasuri.objectives.temperature import Temperature, Tempering
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal
from kasuri.streams import fresh
from kasuri.training import checkpoint, defaults
from kasuri.training.batches import Batches, Source, as_source, hold_out, tensors
from kasuri.training.callbacks import Callback, CSVLog, progress
from kasuri.training.distributed import Processes, processes
from kasuri.training.fitted import Fitted
from kasuri.training.interrupts import Interrupted, Interrupts
from kasuri.training.loop import Run
from kasuri.training.validation import Validation


def fit(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    likelihood: Likelihood | None = None,
    prior: Prior | Mapping[str, Prior] | None = None,
    temperature: Temperature | None = None,
    kl_weight: float | Schedule | None = None,
    output: Callable[[Any], Tensor] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimiser: Optimizer | defaults.MakeOptimiser | None = None,
    scheduler: defaults.MakeScheduler = defaults.cosine,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    show: bool | str | None = None,
) -> Fitted:
    """Train a converted network, an ordinary one, or an objective of your own.

    Told nothing else, it minimises the ELBO with He-scaled prior, KL warm-up, Adam with a falling
    learning rate, and a temperature chosen on validation data while training goes on.

    Args:
        model: a network from `bayesianize`; an ordinary one, which is trained by maximum likelihood;
            or a kasuri.ELBO, which is taken as it is.
        train: (x, y) tensors, an object with .x and .y, kasuri.training.Batches (which can augment), or a
            DataLoader. Tensors are the fastest: a DataLoader costs more than a step of a small network.
        valid: the same, or kasuri.training.Validation with the data and how they are used (patience, ...). A
            tenth of the training examples is held out if a temperature is to be chosen and this is not given.
            The epoch with the best validation NLL is kept, or the newest within a standard error of it. While
            training, at most 2,048 of the examples are used, always the same.
        likelihood: by default classes for integer targets, normal noise of learned size for real ones.
        prior: by default kasuri.HeNormal().
        temperature: a number, a schedule or kasuri.Balanced; by default, or for "auto", chosen on validation
            data while training goes on, which costs two more validations at each one in the second half.
        kl_weight: by default rises from 0 to 1 over the first quarter of the epochs.
        output: takes the tensor out of what the network returns.
        epochs: passes over the training data; by default 20, or as many as make 4,000 steps.
        batch_size: examples per step, of all processes together; by default 128, or 256 if there are
            10,000 examples or more. A DataLoader has its own.
        learning_rate: of the default optimiser; by default 0.002, more with batches above 256.
        optimiser: an optimiser, or a function that makes one from the parameters, e.g.
            `lambda p: torch.optim.SGD(p, 0.1)`.
        scheduler: makes the schedule from (optimiser, number of steps); it is stepped every batch.
        seed: makes the run reproducible; otherwise torch's global generator decides.
        callbacks: told about every step and epoch, e.g. kasuri.training.Clip(1.0).
        folder: for checkpoint and history.csv.
        resume: go on with the run in `folder`, to the very result it would have had.
        show: a progress bar, with a title if this is a text; by default if the program runs in a terminal.

    Examples:
        >>> import torch, kasuri
        >>> x = torch.randn(200, 3)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1))
        >>> fitted = kasuri.fit(bnn, (x, (x[:, 0] > 0).long()), epochs=2, seed=0)
        >>> len(fitted.history), fitted.net is bnn
        (2, True)
    """
    check_numbers(epochs, batch_size, learning_rate, optimiser)
    parts = Parts(likelihood, prior, temperature, kl_weight, output)
    validation = valid if isinstance(valid, Validation) else Validation(valid)
    group = processes()
    seed = _seed(seed, folder, resume, group)
    held = validation.data
    if held is not None and not len(tensors(held)[1]):
        held = None
    if held is None and parts.choose_temperature(model):
        train, held = _held_out(train, seed)
    if validation.patience is not None and held is None:
        raise ValueError(
            f"Validation(patience={validation.patience}): there is no validation data to wait for"
        )
    source = as_source(train, batch_size, seed, group)
    epochs = epochs or defaults.epochs(len(source), rows_per_step(source))
    objective = parts.objective(model, source, epochs)
    trained = [p for p in objective.parameters() if p.requires_grad]
    stepping = make_optimiser(optimiser, trained, learning_rate, rows_per_step(source))
    given = {"patience": validation.patience, "samples": validation.samples}
    run = Run(
        objective=objective,
        train=source,
        valid=None if held is None else checked_rows(held, objective, validation.samples, seed),
        validation=validation,
        optimiser=stepping,
        scheduler=make_schedule(scheduler, stepping, epochs * len(source)),
        epochs=epochs,
        seed=seed,
        check_every=max(1, epochs // defaults.CHECKS),
        callbacks=callbacks,
        logs=[CSVLog(Path(folder) / "history.csv")] if folder and group.is_first else [],
        group=group,
        folder=None if folder is None else Path(folder),
        settings={"epochs": epochs, "seed": seed, **given}
        | _settings(objective, source, stepping, group),
    )
    _begin(run, resume)
    shown = progress(show if group.is_first else False, epochs * len(source))
    # signals are held until the last sentence is out: torchrun sends one as soon as a process dies
    with shown, generators_restored(), Interrupts() as stop, _ending(run):
        is_done = run(shown, stop)
    if not is_done:
        raise Interrupted(_hint(run), _place(run))
    return finished(run, made=not isinstance(model, Objective))


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the user said about the objective; None for what was not said."""

    likelihood: Likelihood | None
    prior: Prior | Mapping[str, Prior] | None
    temperature: Temperature | None
    kl_weight: float | Schedule | None
    output: Callable[[Any], Tensor] | None

    def choose_temperature(self, model: nn.Module) -> bool:
        """Whether validation data are to choose the temperature of an objective that has to be made."""
        chosen = self.temperature is None or self.temperature == "auto"
        return chosen and not isinstance(model, Objective) and _is_converted(model)

    def objective(self, model: nn.Module, source: Source, epochs: int) -> Objective:
        """The given objective, or one made of the given parts and defaults."""
        said = [name for name, value in vars(self).items() if value is not None]
        if isinstance(model, Objective):
            if said:
                raise ValueError(
                    f"fit(objective, {said[0]}=...): the objective has its own {said[0]}"
                )
            return model
        likelihood = self.likelihood
        if likelihood is None:
            likelihood = defaults.likelihood_of(next(source.epoch(0))[1])
        if not _is_converted(model):
            if useless := [name for name in said if name not in ("likelihood", "output")]:
                raise ValueError(
                    f"fit(net, {useless[0]}=...): this network has no random weights, so it is trained by "
                    "maximum likelihood; write bnn = kasuri.bayesianize(net, kasuri.KTied(2)) first"
                )
            return MaximumLikelihood(model, likelihood, self.output, source.num_data)
        warm_up = LinearOverEpochs(defaults.WARM_UP * epochs, len(source))
        return ELBO(
            model,
            likelihood,
            HeNormal() if self.prior is None else self.prior,
            num_data=source.num_data,
            temperature="auto" if self.temperature is None else self.temperature,
            kl_weight=warm_up if self.kl_weight is None else self.kl_weight,
            output=self.output,
        )


def _is_converted(model: nn.Module) -> bool:
    return next(named_posteriors(model), None) is not None


def check_numbers(
    epochs: int | None, batch_size: int | None, learning_rate: float | None, optimiser: Any
) -> None:
    """Refuse counts below 1, and a rate that is not above 0 or has nobody to use it."""
    for name, count in (("epochs", epochs), ("batch_size", batch_size)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if learning_rate is not None and not learning_rate > 0:
        raise ValueError(f"learning_rate must be above 0, got {learning_rate}")
    if learning_rate is not None and optimiser is not None:
        raise ValueError(
            f"learning_rate={learning_rate} with optimiser=...: the rate belongs to the default "
            "optimiser; put it into yours"
        )


def rows_per_step(source: Source) -> int:
    """Examples per step, of all processes together."""
    return round(source.num_data / len(source))


def make_optimiser(
    given: Optimizer | defaults.MakeOptimiser | None,
    parameters: list[nn.Parameter],
    learning_rate: float | None,
    rows: int,
) -> Optimizer:
    """The given optimiser, the one that a function makes, or Adam."""
    if given is None:
        return defaults.adam(parameters, learning_rate or defaults.learning_rate(rows))
    if isinstance(given, Optimizer):
        known = {id(p) for p in parameters}
        if any(id(p) not in known for group in given.param_groups for p in group["params"]):
            raise ValueError(
                "optimiser=...: it has parameters that this model does not train; make it from the "
                "parameters of the model, or give a function that makes it"
            )
    optimiser = given if isinstance(given, Optimizer) else given(parameters)
    if isinstance(optimiser, LBFGS):
        raise ValueError(
            "LBFGS evaluates the loss several times per step, each time with other noise: take a "
            "stochastic optimiser, e.g. torch.optim.Adam"
        )
    return optimiser


def make_schedule(
    scheduler: defaults.MakeScheduler, optimiser: Optimizer, steps: int
) -> LRScheduler:
    """The schedule of the learning rate."""
    schedule = scheduler(optimiser, steps)
    if isinstance(schedule, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau wants a score per epoch, and kasuri.fit steps schedules every batch: "
            "take one that is a function of the step, e.g. CosineAnnealingLR or OneCycleLR"
        )
    return schedule


def checked_rows(valid: Any, objective: Objective, samples: int, seed: int) -> tuple[Any, Tensor]:
    """A random but fixed part of the validation data, large enough to tell epochs apart."""
    x, y = tensors(valid)
    rows = defaults.ROWS * (1 if isinstance(objective, ELBO) else samples)
    if len(y) <= rows:
        return x, y
    return hold_out((x, y), rows / len(y), seed)[1]


def finished(run: Run, made: bool) -> Fitted:
    """The best state in place; schedules of an objective that `fit` made end at their values there."""
    if run.best_state is not None:
        run.objective.load_state_dict(run.best_state)
    best = run.at.best_epoch or run.at.epoch
    if made and isinstance(run.objective, ELBO):
        row = run.at.history[best - 1]
        run.objective.temperature = Constant(row["temperature"])
        run.objective.kl_weight = Constant(row["kl_weight"])
    return Fitted(run.objective, run.at.history, best, run.at.seconds)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Random generators afterwards as before: what is made next must not depend on the seed."""
    before = checkpoint.generators()
    try:
        yield
    finally:
        checkpoint.restore_generators(before)


def described(objective: Objective) -> list[str]:
    """The likelihood and the priors in words, without what they learn."""
    likelihood = objective.likelihood  # whose options are what it was given, never what it learned
    words = [f"{type(likelihood).__name__}({likelihood.options()})"]
    for prior in objective.priors if isinstance(objective, Governing) else ():
        name, learns = type(prior).__name__, next(prior.parameters(), None) is not None
        words.append(name if learns else f"{name}({cast(Prior, prior).options()})")
    return words


def _settings(
    objective: Objective, source: Source, optimiser: Optimizer, group: Processes
) -> dict[str, Any]:
    """What must be equal for a resumed run to be the same run."""
    targets = next(source.epoch(0))[1]
    settings: dict[str, Any] = {
        "steps per epoch": len(source),
        "number of data": source.num_data,
        "first targets": group.share(float(targets.double().sum())),
        "processes": group.world,
        "optimiser": type(optimiser).__name__,
        "learning rate": [float(group["lr"]) for group in optimiser.param_groups],
        "parameters": sum(p.numel() for p in objective.parameters()),
    }
    settings["likelihood"], *priors = described(objective)
    if priors:
        settings["prior"] = priors
    if about := objective.extra_repr():
        settings["objective"] = about
    return settings | {
        name: _in_words(schedule) for name, schedule in objective.scheduled().items()
    }


def _in_words(schedule: Schedule) -> str:
    """A schedule in words; a function of the user's has none."""
    if isinstance(schedule, Tempering):
        return f"chosen, from {schedule.start:g}"
    return repr(schedule) if dataclasses.is_dataclass(schedule) else "a function"


def _held_out(train: Any, seed: int) -> tuple[Any, Any]:
    if isinstance(train, Batches | DataLoader):
        raise ValueError(
            "no validation data and no temperature: examples cannot be held out of a "
            f"{type(train).__name__}; give valid=(x, y) to choose the temperature on, or temperature=0.1"
        )
    return hold_out(train, defaults.HELD_OUT, seed)


def _seed(seed: int | None, folder: str | Path | None, resume: bool, group: Processes) -> int:
    """The given seed, that of the run to resume, or a fresh one."""
    if seed is None and group.is_first:
        if resume and folder is not None and checkpoint.exists(Path(folder)):
            seed = int(checkpoint.read(Path(folder))["settings"]["seed"])
        else:
            seed = fresh()
    return int(group.share(seed))


def _begin(run: Run, resume: bool) -> None:
    if run.folder is None:
        if resume:
            raise ValueError('fit(resume=True): resume what? write folder="runs/first" as well')
        return
    there = run.group.share(checkpoint.exists(run.folder))
    if there and resume:
        run.restore()
    elif there:
        raise ValueError(
            f"{run.folder} already holds a training run: resume=True goes on with it; for a new "
            "run take another folder or delete this one"
        )


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
            f"which has probably ended; {_hint(run)}"
        )
        print(message, file=sys.stderr, flush=True)  # torchrun may not leave time for the traceback
        raise RuntimeError(message) from error
    finally:
        for callback in (*run.callbacks, *run.logs):
            callback.on_end()


def _place(run: Run) -> str:
    return f"epoch {min(run.at.epoch + 1, run.epochs)}, step {run.at.step}"


def _hint(run: Run) -> str:
    stopped = f"training stopped in {_place(run)}"
    if run.folder is None:
        return f"{stopped}; give folder= to be able to resume"
    return f"{stopped}; the same call with folder={str(run.folder)!r} and resume=True goes on"

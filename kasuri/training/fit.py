"""`kasuri.fit`: from a network and data to a trained posterior in one call."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Likelihood
from kasuri.objectives.elbo import Objective
from kasuri.objectives.schedules import Schedule
from kasuri.objectives.temperature import Temperature
from kasuri.priors.base import Prior
from kasuri.streams import fresh
from kasuri.training import checkpoint, defaults, preparing, progress
from kasuri.training.augment import Augmentation
from kasuri.training.callbacks import Callback
from kasuri.training.distributed import Processes, processes
from kasuri.training.fitted import Fitted, finished, leaving_generators
from kasuri.training.interrupts import Interrupted, Interrupts
from kasuri.training.loop import Run
from kasuri.training.sources import as_source, tensors


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
    augment: Augmentation | None = None,
    learning_rate: float | None = None,
    optimizer: defaults.MakeOptimizer | None = None,
    scheduler: defaults.MakeScheduler = defaults.cosine,
    patience: int | None = None,
    keep: Literal["best", "last"] = "best",
    clip: float | None = None,
    samples: int = defaults.SAMPLES,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    save_every: float = 60.0,
    tensorboard: bool = False,
    compile: bool = False,
    show: bool | None = None,
    title: str = "training",
    output: Callable[[Any], Tensor] | None = None,
) -> Fitted:
    """Train a converted network, an ordinary one, or an objective of your own.

    Told nothing else, it minimises the ELBO with He-scaled prior, KL warm-up, Adam with a falling
    learning rate, and a temperature chosen on validation data while training goes on.

    Args:
        model: a network from `bayesianize`; an ordinary one, which is trained by maximum likelihood;
            or a kasuri.ELBO, which is taken as it is.
        train: (x, y) tensors, an object with .x and .y or kasuri.training.Batches, or a
            DataLoader. Tensors are the fastest: a DataLoader costs more than a step of a small network.
        valid: the same; a tenth of the training examples is held out if a temperature is to be chosen
            and this is not given. The epoch with the best validation NLL is kept, or the newest
            within a standard error of it. While training, at most 2,048 of the examples are used,
            always the same.
        likelihood: by default classes for integer targets, normal noise of learned size for real ones.
        prior: by default kasuri.HeNormal().
        temperature: a number, a schedule or kasuri.Balanced; by default, or for "auto", chosen on validation
            data while training goes on, which costs two more validations at each one in the second half.
        kl_weight: by default rises from 0 to 1 over the first quarter of the epochs.
        epochs: passes over the training data; by default 20, or as many as make 4,000 steps.
        batch_size: examples per step, of all processes together; by default 128, or 256 if there are
            10,000 examples or more. A DataLoader has its own.
        augment: changes the inputs of every batch, a function of (x, generator), e.g. kasuri.training.flip.
        learning_rate: of the default optimiser; by default 0.002, more with batches above 256.
        optimizer: makes the optimiser from the parameters, e.g. `lambda p: torch.optim.SGD(p, 0.1)`.
        scheduler: makes the schedule from (optimiser, number of steps); it is stepped every batch.
        patience: stop after so many validations without improvement.
        keep: "last" keeps the last epoch whatever validation says.
        clip: bound on the norm of the gradient.
        samples: draws per validation.
        seed: makes the run reproducible; otherwise torch's global generator decides.
        callbacks: told about every step and epoch.
        folder: for checkpoint, history.csv and TensorBoard events.
        resume: go on with the run in `folder`, to the very result it would have had.
        save_every: seconds between checkpoints (at ends of epochs).
        tensorboard: also write TensorBoard events.
        compile: run the network through torch.compile.
        show: a progress bar; by default if the program runs in a terminal.
        title: of the progress bar.
        output: takes the tensor out of what the network returns.

    Examples:
        >>> import torch, kasuri
        >>> x = torch.randn(200, 3)
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1))
        >>> fitted = kasuri.fit(bnn, (x, (x[:, 0] > 0).long()), epochs=2, seed=0)
        >>> len(fitted.history), fitted.net is bnn
        (2, True)
    """
    preparing.check_numbers(
        {"epochs": epochs, "batch_size": batch_size, "samples": samples, "patience": patience},
        {"clip": clip, "learning_rate": learning_rate},
    )
    preparing.check_choices("fit", keep, optimizer is not None, learning_rate)
    group = processes()
    seed = _seed(seed, folder, resume, group)
    if valid is not None and not len(tensors(valid)[1]):
        valid = None
    if valid is None and preparing.is_chosen(temperature) and preparing.wants_temperature(model):
        train, valid = preparing.held_out(train, seed)
    if patience is not None and valid is None:
        raise ValueError(f"fit(patience={patience}): there is no validation data to wait for")
    source = as_source(train, batch_size, augment, seed, group)
    size = round(source.num_data / len(source))
    epochs = epochs or defaults.epochs(len(source), size)
    objective = preparing.objective(
        model, source, valid is not None, likelihood, prior, temperature, kl_weight, epochs, output
    )
    trained = [p for p in objective.parameters() if p.requires_grad]
    rate = learning_rate or defaults.learning_rate(size)
    optimiser = optimizer(trained) if optimizer is not None else defaults.adam(trained, rate)
    given = {"epochs": epochs, "seed": seed, "clip": clip, "patience": patience, "samples": samples}
    schedule = scheduler(optimiser, epochs * len(source))
    preparing.check_kinds(optimiser, schedule)
    run = Run(
        objective=objective,
        train=source,
        valid=None if valid is None else preparing.checked_rows(valid, objective, samples, seed),
        optimizer=optimiser,
        scheduler=schedule,
        epochs=epochs,
        seed=seed,
        samples=samples,
        check_every=max(1, epochs // defaults.CHECKS),
        patience=patience,
        keep_last=keep == "last",
        clip=clip,
        callbacks=callbacks,
        logs=preparing.logs(folder, tensorboard) if group.is_first else [],
        group=group,
        folder=None if folder is None else Path(folder),
        save_every=save_every,
        settings=preparing.settings(objective, source, optimiser, group, given),
    )
    _begin(run, resume)
    shown = progress.make(show if group.is_first else False, title, epochs * len(source))
    # signals are held until the last sentence is out: torchrun sends one as soon as a process dies
    with (
        shown,
        leaving_generators(),
        _compiled(objective, compile),
        Interrupts() as stop,
        _ending(run),
    ):
        is_done = run(shown, stop)
    if not is_done:
        raise Interrupted(_hint(run), _place(run))
    return finished(run, made=not isinstance(model, Objective))


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
def _compiled(objective: Objective, wanted: bool) -> Iterator[None]:
    """Network and KL go through torch.compile inside the block, what changes with the step does not."""
    if not wanted:
        yield
        return
    setattr(objective, "parts", torch.compile(objective.parts))  # noqa: B010 - hides the method
    try:
        yield
    finally:
        delattr(objective, "parts")


@contextmanager
def _ending(run: Run) -> Iterator[None]:
    """Tell the callbacks; say in plain words when another process has gone."""
    try:
        yield
    except RuntimeError as error:
        if not run.group.is_lost(error):
            raise
        told = (
            f"process {run.group.rank} of {run.group.world} lost contact with the others, one of "
            f"which has probably ended; {_hint(run)}"
        )
        print(told, file=sys.stderr, flush=True)  # torchrun may not leave time for the traceback
        raise RuntimeError(told) from error
    finally:
        for callback in (*run.callbacks, *run.logs):
            callback.on_end()


def _place(run: Run) -> str:
    return f"epoch {min(run.at.epoch + 1, run.epochs)}, step {run.at.step}"


def _hint(run: Run) -> str:
    where = _place(run)
    if run.folder is None:
        return f"training stopped in {where}; give folder= to be able to resume"
    return (
        f"training stopped in {where}; the same call with folder={str(run.folder)!r} and "
        "resume=True goes on"
    )

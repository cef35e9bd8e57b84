"""`kasuri.fit_many`: many small networks trained as one program.

A step of a small network is all overhead: hundreds of operations of a few microseconds each. Networks of
the same make are therefore stacked, parameter by parameter, and every operation of a step is done
for all of them at once (torch.func.vmap). The members do not know of each other: batches, noise, temperature,
validation and the epoch kept are each member's own, as `kasuri.fit` would have them.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Likelihood
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.objectives.schedules import Schedule
from kasuri.objectives.temperature import Temperature
from kasuri.priors.base import Prior
from kasuri.streams import fresh, mix, reseed_global
from kasuri.training import defaults, preparing, progress
from kasuri.training.alike import check_equal, check_members
from kasuri.training.batches import Batches
from kasuri.training.diagnose import NonFiniteLoss
from kasuri.training.distributed import Processes
from kasuri.training.fitted import Fitted, finished, leaving_generators
from kasuri.training.gathering import Gathered
from kasuri.training.interrupts import Interrupted, Interrupts
from kasuri.training.loop import Run
from kasuri.training.sources import as_source, tensors
from kasuri.training.stacking import Stack

_NOISE = 6  # a stream of random numbers


def fit_many(
    models: Sequence[nn.Module],
    trains: Sequence[Any],
    valids: Sequence[Any] | None = None,
    *,
    likelihood: Likelihood | None = None,
    prior: Prior | Mapping[str, Prior] | None = None,
    temperature: Temperature | Sequence[Temperature] | None = None,
    kl_weight: float | Schedule | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimizer: defaults.MakeOptimizer | None = None,
    scheduler: defaults.MakeScheduler = defaults.cosine,
    keep: Literal["best", "last"] = "best",
    samples: int = defaults.SAMPLES,
    seed: int | None = None,
    show: bool | None = None,
    title: str = "training",
    output: Callable[[Any], Tensor] | None = None,
) -> list[Fitted]:
    """Train networks of the same make together: splits of a table, seeds, members of an ensemble.

    What is not said here is as in `kasuri.fit`. Likelihood and prior are copied for every member.

    Args:
        models: as for `kasuri.fit`, equal in everything but the values of their parameters.
        trains: training data of each as tensors, with the same number of examples.
        valids: validation data of each, or None; needed if temperatures are to be chosen.
        likelihood: as for `kasuri.fit`.
        prior: as for `kasuri.fit`.
        temperature: one for all or one for each, as for `kasuri.fit`; by default, or for "auto", chosen for
            each on its validation data.
        kl_weight: as for `kasuri.fit`.
        epochs: as for `kasuri.fit`.
        batch_size: examples per step of each.
        learning_rate: as for `kasuri.fit`.
        optimizer: made for all parameters, each with a first dimension that counts the members; it must treat
            numbers one by one, as Adam and SGD do.
        scheduler: as for `kasuri.fit`.
        keep: as for `kasuri.fit`; "best" is each member's own best.
        samples: as for `kasuri.fit`.
        seed: makes the run reproducible.
        show: a progress bar; by default if the program runs in a terminal.
        title: of the progress bar.
        output: as for `kasuri.fit`.

    Examples:
        >>> import torch, kasuri
        >>> nets = [kasuri.bayesianize(nn.Linear(2, 1), kasuri.MeanField()) for _ in range(3)]
        >>> data = [(torch.randn(50, 2), torch.randn(50, 1)) for _ in nets]
        >>> fits = kasuri.fit_many(nets, data, temperature=1.0, epochs=2, seed=0)
        >>> [len(one.history) for one in fits], fits[0].net is nets[0]
        ([2, 2, 2], True)
    """
    preparing.check_numbers(
        {"epochs": epochs, "batch_size": batch_size, "samples": samples},
        {"learning_rate": learning_rate},
    )
    preparing.check_choices("fit_many", keep, optimizer is not None, learning_rate)
    count = len(models)
    check_members(models, trains, valids)
    seed = fresh() if seed is None else seed
    seeds = [mix(seed, member) for member in range(count)]
    alone = Processes()
    sources = [
        as_source(tensors(train), batch_size, None, own, alone)
        for train, own in zip(trains, seeds, strict=True)
    ]
    size = round(sources[0].num_data / len(sources[0]))
    epochs = epochs or defaults.epochs(len(sources[0]), size)
    each = _one_each(temperature, count)
    if valids is not None and not all(len(tensors(valid)[1]) for valid in valids):
        raise ValueError("fit_many: a validation set without rows; leave valids out, or fill it")
    if valids is None and any(
        preparing.is_chosen(one) and preparing.wants_temperature(model)
        for one, model in zip(each, models, strict=True)
    ):
        raise ValueError(
            "fit_many: no validation data to choose temperatures on; give valids=[...], or temperature=1.0"
        )
    objectives = [
        preparing.objective(
            model,
            source,
            valids is not None,
            copy.deepcopy(likelihood),
            copy.deepcopy(prior),
            one,
            kl_weight,
            epochs,
            output,
        )
        for model, source, one in zip(models, sources, each, strict=True)
    ]
    check_equal(objectives)
    stack = Stack(objectives)
    rate = learning_rate or defaults.learning_rate(size)
    trained = stack.trained()
    optimiser = optimizer(trained) if optimizer is not None else defaults.adam(trained, rate)
    schedule = scheduler(optimiser, epochs * len(sources[0]))
    preparing.check_kinds(optimiser, schedule)
    runs = [
        Run(
            objective=objective,
            train=source,
            valid=None
            if valids is None
            else preparing.checked_rows(valids[member], objective, samples, seeds[member]),
            optimizer=optimiser,
            scheduler=schedule,
            epochs=epochs,
            seed=seeds[member],
            samples=samples,
            check_every=max(1, epochs // defaults.CHECKS),
            patience=None,
            keep_last=keep == "last",
            clip=None,
            callbacks=(),
            logs=(),
            group=alone,
            folder=None,
            save_every=0.0,
            settings={},
        )
        for member, (objective, source) in enumerate(zip(objectives, sources, strict=True))
    ]
    shown = progress.make(show, title, epochs * len(sources[0]))
    try:
        with shown, leaving_generators(), Interrupts() as stop:
            _train(stack, runs, seed, shown, stop)
    finally:
        stack.release()
    return [finished(run, made=not isinstance(models[i], Objective)) for i, run in enumerate(runs)]


def _one_each(
    temperature: Temperature | Sequence[Temperature] | None, count: int
) -> Sequence[Temperature | None]:
    """A temperature for each of so many networks; "auto" is a word, not a sequence."""
    listed: Any = getattr(temperature, "tolist", None)  # of an array or a tensor
    if listed is not None:
        temperature = listed()
    if isinstance(temperature, Sequence) and not isinstance(temperature, str):
        each: list[Temperature | None] = list(temperature)
    else:
        each = [temperature] * count
    if len(each) != count:
        raise ValueError(f"fit_many: {len(each)} temperatures for {count} networks")
    return each


def _train(
    stack: Stack, runs: Sequence[Run], seed: int, shown: progress.Progress, stop: Interrupts
) -> None:
    """All epochs of all members."""
    first = runs[0]
    device = next(first.objective.parameters()).device
    began = time.monotonic()
    data = Gathered([cast(Batches[Tensor], run.train) for run in runs])  # `tensors` made them so
    updates = first.objective.likelihood.updates
    for epoch in range(first.epochs):
        for one in runs:
            # only validation leaves this mode, and to set it takes time
            if epoch == 0 or one.valid is not None:
                one.objective.train()
        sums = torch.zeros(len(runs), 3, dtype=torch.float64, device=device)
        for x, y in data.epoch(epoch):
            reseed_global(mix(seed, _NOISE, first.at.step), device)
            weights = [_kl_weight(run.objective, run.at.step) for run in runs]
            nll, kl = stack(x.to(device), y.to(device))
            loss = nll + torch.tensor(weights, dtype=kl.dtype, device=device) * kl
            if not loss.isfinite().all():
                _fail(runs, loss)
            first.optimizer.zero_grad()
            loss.sum().backward()
            first.optimizer.step()
            first.scheduler.step()
            if updates:
                for run, inputs, targets in zip(runs, x, y, strict=True):
                    run.objective.update(inputs.to(device), targets.to(device))
            sums += torch.stack([loss, nll, kl], 1).detach()
            for run in runs:
                run.at.batch += 1
                run.at.step += 1
            first.at.sums = sums[0].tolist()
            shown.step(first.at.step, first.numbers())
            _heed(stop, first)
        for run, totals in zip(runs, sums.tolist(), strict=True):
            run.at.sums = totals
            run.at.seconds = (time.monotonic() - began) / len(runs)
            run.end_epoch()


def _heed(stop: Interrupts, run: Run) -> None:
    if stop.asked:
        where = f"epoch {run.at.epoch + 1}, step {run.at.step}"
        told = f"training stopped in {where}; fit_many cannot go on with it, begin again"
        raise Interrupted(told, where)


def _kl_weight(objective: Objective, step: int) -> float:
    if not isinstance(objective, ELBO):
        return 0.0
    return objective.weight_at(step) / objective.num_data


def _fail(runs: Sequence[Run], loss: Tensor) -> None:
    member = int((~loss.isfinite()).nonzero()[0])
    raise NonFiniteLoss(
        f"the loss of network {member} is {float(loss[member].detach())} at step {runs[member].at.step}; "
        "kasuri.fit with this network and its data alone says which layer is to blame"
    )

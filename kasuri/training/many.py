"""`kasuri.fit_many`: many small networks trained as one program.

A step of a small network is all overhead: hundreds of operations of a few microseconds each. Networks of
the same make are therefore stacked, parameter by parameter, and every operation of a step is done
for all of them at once (torch.func.vmap). The members do not know of each other: batches, noise, temperature,
validation and the epoch kept are each member's own, as `kasuri.fit` would have them.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kasuri.likelihoods import Likelihood
from kasuri.network.random import named_layers
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.objectives.schedules import Schedule
from kasuri.objectives.temperature import Temperature
from kasuri.priors.base import Prior
from kasuri.streams import Stream, fresh, mix, reseed_global
from kasuri.training import defaults
from kasuri.training.batches import Batches, tensors
from kasuri.training.callbacks import Progress, progress
from kasuri.training.fit import (
    Parts,
    check_numbers,
    checked_rows,
    described,
    finished,
    generators_restored,
    make_optimiser,
    make_schedule,
    rows_per_step,
)
from kasuri.training.fitted import Fitted
from kasuri.training.interrupts import Interrupted, Interrupts
from kasuri.training.loop import Run
from kasuri.training.nonfinite import NonFiniteLoss
from kasuri.training.validation import Validation


def fit_many(
    models: Sequence[nn.Module],
    trains: Sequence[Any],
    valids: Sequence[Any] | None = None,
    *,
    likelihood: Likelihood | None = None,
    prior: Prior | Mapping[str, Prior] | None = None,
    temperature: Temperature | Sequence[Temperature] | None = None,
    kl_weight: float | Schedule | None = None,
    output: Callable[[Any], Tensor] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimiser: defaults.MakeOptimiser | None = None,
    scheduler: defaults.MakeScheduler = defaults.cosine,
    seed: int | None = None,
    show: bool | str | None = None,
) -> list[Fitted]:
    """Train networks of the same make together: splits of a table, seeds, members of an ensemble.

    What is not said here is as in `kasuri.fit`. Likelihood and prior are copied for every member.

    Args:
        models: as for `kasuri.fit`, equal in everything but the values of their parameters.
        trains: training data of each as tensors, with the same number of examples.
        valids: validation data of each, or None; needed if temperatures are to be chosen. Each keeps its own
            best epoch.
        likelihood: as for `kasuri.fit`.
        prior: as for `kasuri.fit`.
        temperature: one for all or one for each, as for `kasuri.fit`; by default, or for "auto", chosen for
            each on its validation data.
        kl_weight: as for `kasuri.fit`.
        output: as for `kasuri.fit`.
        epochs: as for `kasuri.fit`.
        batch_size: examples per step of each.
        learning_rate: as for `kasuri.fit`.
        optimiser: made for all parameters, each with a first dimension that counts the members; it must treat
            numbers one by one, as Adam and SGD do.
        scheduler: as for `kasuri.fit`.
        seed: makes the run reproducible.
        show: as for `kasuri.fit`.

    Examples:
        >>> import torch, kasuri
        >>> nets = [kasuri.bayesianize(nn.Linear(2, 1), kasuri.MeanField()) for _ in range(3)]
        >>> data = [(torch.randn(50, 2), torch.randn(50, 1)) for _ in nets]
        >>> fits = kasuri.fit_many(nets, data, temperature=1.0, epochs=2, seed=0)
        >>> [len(fitted.history) for fitted in fits], fits[0].net is nets[0]
        ([2, 2, 2], True)
    """
    check_numbers(epochs, batch_size, learning_rate, optimiser)
    _check_data(models, trains, valids)
    seed = fresh() if seed is None else seed
    seeds = [mix(seed, member) for member in range(len(models))]
    each = [
        Parts(copy.deepcopy(likelihood), copy.deepcopy(prior), own, kl_weight, output)
        for own in _one_each(temperature, len(models))
    ]
    if valids is None and any(
        parts.choose_temperature(model) for parts, model in zip(each, models, strict=True)
    ):
        raise ValueError(
            "fit_many: no validation data to choose temperatures on; give valids=[...], or temperature=1.0"
        )
    sources = [
        Batches(x, y, batch_size and min(batch_size, len(y)), seed=own)
        for (x, y), own in zip(map(tensors, trains), seeds, strict=True)
    ]
    steps, rows = len(sources[0]), rows_per_step(sources[0])
    epochs = epochs or defaults.epochs(steps, rows)
    objectives = [
        parts.objective(model, source, epochs)
        for parts, model, source in zip(each, models, sources, strict=True)
    ]
    _check_equal(objectives)
    stack, validation = Stack(objectives), Validation()
    stepping = make_optimiser(optimiser, stack.trained(), learning_rate, rows)
    schedule = make_schedule(scheduler, stepping, epochs * steps)
    runs = [
        Run(
            objective=objective,
            train=source,
            valid=None
            if valids is None
            else checked_rows(valids[member], objective, validation.samples, seeds[member]),
            validation=validation,
            optimiser=stepping,
            scheduler=schedule,
            epochs=epochs,
            seed=seeds[member],
            check_every=max(1, epochs // defaults.CHECKS),
        )
        for member, (objective, source) in enumerate(zip(objectives, sources, strict=True))
    ]
    shown = progress(show, epochs * steps)
    try:
        with shown, generators_restored(), Interrupts() as stop:
            _train(stack, runs, stepping, seed, shown, stop)
    finally:
        stack.release()
    return [finished(run, made=run.objective is not models[i]) for i, run in enumerate(runs)]


def _one_each(
    temperature: Temperature | Sequence[Temperature] | None, count: int
) -> Sequence[Temperature | None]:
    """A temperature for each of so many networks; "auto" is a word, not a sequence."""
    listed: Any = getattr(temperature, "tolist", None)  # of an array or a tensor
    if listed is not None:
        temperature = listed()
    if not isinstance(temperature, Sequence) or isinstance(temperature, str):
        return [temperature] * count
    if len(temperature) != count:
        raise ValueError(f"fit_many: {len(temperature)} temperatures for {count} networks")
    return temperature


def _train(
    stack: "Stack",
    runs: Sequence[Run],
    optimiser: Optimizer,
    seed: int,
    shown: Progress,
    stop: Interrupts,
) -> None:
    """All epochs of all members."""
    first = runs[0]
    device = next(first.objective.parameters()).device
    began = time.monotonic()
    data = Gathered([cast(Batches[Tensor], run.train) for run in runs])
    for run in runs:
        run.objective.train()
    for epoch in range(first.epochs):
        sums = torch.zeros(len(runs), 3, dtype=torch.float64, device=device)
        for x, y in data.epoch(epoch):
            reseed_global(mix(seed, Stream.STACK, first.at.step), device)
            weights = [_kl_weight(run.objective, run.at.step) for run in runs]
            nll, kl = stack(x.to(device), y.to(device))
            loss = nll + torch.tensor(weights, dtype=kl.dtype, device=device) * kl
            if not loss.isfinite().all():
                _fail(first.at.step, loss)
            optimiser.zero_grad()
            loss.sum().backward()
            optimiser.step()
            first.scheduler.step()
            for run, inputs, targets in zip(runs, x, y, strict=True):
                run.objective.update(inputs.to(device), targets.to(device))
                run.at.batch += 1
                run.at.step += 1
            sums += torch.stack([loss, nll, kl], 1).detach()
            first.at.sums = sums[0].tolist()
            shown.step(first.at.step, first.numbers())
            if stop.asked:
                place = f"epoch {epoch + 1}, step {first.at.step}"
                message = f"training stopped in {place}; fit_many cannot go on with it, begin again"
                raise Interrupted(message, place)
        for run, totals in zip(runs, sums.tolist(), strict=True):
            run.at.sums = totals
            run.at.seconds = (time.monotonic() - began) / len(runs)
            run.end_epoch()


def _kl_weight(objective: Objective, step: int) -> float:
    if not isinstance(objective, ELBO):
        return 0.0
    return objective.weight_at(step) / objective.num_data


def _fail(step: int, loss: Tensor) -> None:
    member = int((~loss.isfinite()).nonzero()[0])
    raise NonFiniteLoss(
        f"the loss of network {member} is {float(loss[member].detach())} at step {step}; "
        "kasuri.fit with this network and its data alone says which layer is to blame"
    )


class _PartsOf(nn.Module):
    """The two parts of an objective as a module, which is what functional_call calls."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective.parts(x, y)


class Stack:
    """Objectives evaluated together, each with its own parameters on its own batch.

    Parameters and buffers of the objectives become views of stacked tensors: what an optimiser does to the
    stack, every member has done to it, until `release`.

    Args:
        objectives: equal in everything but the values of parameters and buffers.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.members = [_PartsOf(objective) for objective in objectives]
        wanted = {name: p.requires_grad for name, p in self.members[0].named_parameters()}
        stacked = _stacked([dict(member.named_parameters()) for member in self.members])
        self.parameters: dict[str, Tensor] = {
            name: nn.Parameter(tensor, requires_grad=wanted[name])
            for name, tensor in stacked.items()
        }
        self.buffers = _stacked([dict(member.named_buffers()) for member in self.members])

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(nll per example, kl in full) of every member, (members,) each.

        Args:
            x: inputs (members, batch, ...).
            y: targets (members, batch, ...).
        """

        def one_member(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> Any:
            return torch.func.functional_call(self.members[0], (parameters, buffers), (x, y))

        program = torch.func.vmap(one_member, randomness="different")
        return program(self.parameters, self.buffers, x, y)

    def release(self) -> None:
        """Give every member tensors of its own again, so that a file of one does not hold all."""
        for module in self.members:
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.data.clone()

    def trained(self) -> list[nn.Parameter]:
        """The stacked parameters that training changes."""
        return [cast(nn.Parameter, p) for p in self.parameters.values() if p.requires_grad]


def _stacked(members: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of the same name as one; the members keep views of it."""
    shapes = [{name: tensor.shape for name, tensor in member.items()} for member in members]
    if any(of_member != shapes[0] for of_member in shapes):
        raise ValueError(
            "networks to be trained together must have the same parameters: same layers, same sizes, "
            "same posterior families"
        )
    stacked = {}
    for name in members[0]:
        if len({id(member[name]) for member in members}) < len(members):
            raise ValueError(
                f"networks to be trained together share {name}: give each its own likelihood, prior and "
                "layers, e.g. by copy.deepcopy"
            )
        whole = torch.stack([member[name].detach() for member in members])
        for view, member in zip(whole.unbind(0), members, strict=True):
            member[name].data = view
        stacked[name] = whole
    return stacked


class Gathered:
    """Batches of members whose data are tensors of the same shapes, stacked: (members, batch, ...).

    Data sets that several members share are held once; different ones are copied into one tensor.

    Args:
        sources: one for each member, with the same number of rows and without augmentation.
    """

    def __init__(self, sources: Sequence[Batches[Tensor]]) -> None:
        self.sources = sources
        keys = [(id(source.x), id(source.y)) for source in sources]
        distinct = dict(zip(keys, sources, strict=True))
        self.x = _joined([source.x for source in distinct.values()])
        self.y = _joined([source.y for source in distinct.values()])
        owners = torch.tensor([list(distinct).index(key) for key in keys])
        self.offsets = (owners * len(sources[0].y)).unsqueeze(1)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, every member's in its own order."""
        orders = torch.stack([source.order(number) for source in self.sources])
        rows = (orders + self.offsets).to(self.y.device)
        for index in rows.split(self.sources[0].batch_size, 1):
            yield _select(self.x, index), _select(self.y, index)


def _select(data: Tensor, index: Tensor) -> Tensor:
    """data[index], several times faster."""
    return data.index_select(0, index.flatten()).reshape(*index.shape, *data.shape[1:])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _check_data(
    models: Sequence[nn.Module], trains: Sequence[Any], valids: Sequence[Any] | None
) -> None:
    if not models:
        raise ValueError("fit_many([], ...): there is no network to train")
    if len({id(model) for model in models}) < len(models):
        raise ValueError("fit_many: give different networks; copy.deepcopy makes more of one")
    if any(isinstance(model, Objective) and not model.has_targets for model in models):
        raise TypeError("fit_many cannot stack auto-encoders; train them by kasuri.fit one by one")
    for name, given in (("trains", trains), ("valids", valids)):
        if given is not None and len(given) != len(models):
            raise ValueError(f"fit_many: {len(given)} {name} for {len(models)} networks")
    if not all(len(tensors(valid)[1]) for valid in valids or ()):
        raise ValueError("fit_many: a validation set without rows; leave valids out, or fill it")
    shapes = set()
    for x, y in map(tensors, trains):
        if not isinstance(x, Tensor):
            raise TypeError(f"fit_many: inputs are a {type(x).__name__}, they must be one tensor")
        shapes.add((x.shape, y.shape))
    if len(shapes) > 1:
        sizes = ", ".join(str(tuple(x)) for x, _ in sorted(shapes))
        raise ValueError(
            f"fit_many: the training sets have different sizes ({sizes}): steps are taken together, so "
            "give each network the same number of examples, or train those groups apart"
        )


def _check_equal(objectives: Sequence[Objective]) -> None:
    """Refuse members that differ in more than parameters and buffers: the first one's program serves all."""
    programs = [_program(objective) for objective in objectives]
    for member, program in enumerate(programs):
        for part in dict.fromkeys((*programs[0], *program)):
            if programs[0].get(part) != program.get(part):
                raise ValueError(
                    f"fit_many: networks 0 and {member} must be equal in all but the values of their "
                    f"parameters, since one program serves all; they differ in their {part}: "
                    f"{programs[0].get(part)} and {program.get(part)}"
                )


def _program(objective: Objective) -> dict[str, Any]:
    """All that a stack takes from its first member, under names for people."""
    program: dict[str, Any] = {
        "likelihoods and priors": " with ".join(described(objective)),
        "output": objective.output,
    }
    for name, module in objective.net.named_modules():
        shown = f"{type(module).__name__}({module.extra_repr()})"
        program[f"module {name or 'as a whole'}"] = shown
    for name, _, conversion in named_layers(objective.net):
        program[f"families and estimator of {name or 'the network'}"] = (
            f"{conversion.families}, {conversion.estimator.__name__}"
        )
    for name, parameter in objective.named_parameters():
        program[f"requires_grad of {name}"] = parameter.requires_grad
    if isinstance(objective, ELBO):
        program["num_data and samples"] = (objective.num_data, objective.samples)
        program["patterns of priors"] = objective.governed
    return program

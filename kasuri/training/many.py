"""`kasuri.training.fit_many`: many small networks trained as one program.

A step of a small network is all overhead: hundreds of operations of a few microseconds each. Networks of
the same make are therefore stacked, parameter by parameter, and every operation of a step is done
for all of them at once (torch.func.vmap). The members do not know of each other: batches, noise, temperature,
validation and the epoch kept are each member's own, as `kasuri.fit` would have them.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kasuri.likelihoods import Likelihood
from kasuri.network.random import named_layers
from kasuri.objectives.elbo import ELBO, Objective, Terms
from kasuri.objectives.temperature import Temperature
from kasuri.priors.base import Prior
from kasuri.streams import Stream, fresh, mix, reseed_global
from kasuri.training import checkpoint, defaults
from kasuri.training.batches import Batches, rows_of, tensors
from kasuri.training.callbacks import Bar
from kasuri.training.fit import (
    Fitted,
    check_numbers,
    chooses_temperature,
    described,
    finished,
    make_objective,
    trains_naturally,
)
from kasuri.training.interrupts import Interrupted, Interrupts
from kasuri.training.loop import Run
from kasuri.training.nonfinite import NonFiniteLoss
from kasuri.training.optimisers import cosine, default_optimiser
from kasuri.training.validation import Validation


def fit_many(
    models: Sequence[nn.Module],
    trains: Sequence[Any],
    valids: Sequence[Any] | None = None,
    *,
    likelihood: Likelihood | None = None,
    prior: Prior | Mapping[str, Prior] | None = None,
    temperature: Temperature | Sequence[Temperature] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimiser: Callable[[Any], Optimizer] | None = None,
    seed: int | None = None,
    show: bool | str | None = None,
) -> list[Fitted]:
    """Train networks of the same make together: splits of a table, seeds, members of an ensemble.

    Arguments are those of `kasuri.fit`, and what is not said here is as `kasuri.fit` does it by default.
    Likelihood and prior are copied for every member.

    `models` must be equal in everything but the values of their parameters, and `trains`, the training data
    of each, are tensors with the same number of examples. `valids`, the validation data of each, are needed
    if temperatures are to be chosen; each member keeps its own best epoch. `temperature` is one for all or
    one for each. `batch_size` counts the examples per step of each. `optimiser` makes one of all parameters,
    e.g. `lambda stack: torch.optim.Adam(stack.parameters(), 0.01)`.

    Examples:
        >>> import torch, kasuri
        >>> nets = [kasuri.bayesianize(nn.Linear(2, 1), kasuri.MeanField()) for _ in range(3)]
        >>> data = [(torch.randn(50, 2), torch.randn(50, 1)) for _ in nets]
        >>> fits = kasuri.training.fit_many(nets, data, temperature=1.0, epochs=2, seed=0)
        >>> [len(fitted.history) for fitted in fits], fits[0].net is nets[0]
        ([2, 2, 2], True)
    """
    check_numbers(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
    count = len(models)
    is_own = isinstance(temperature, Sequence) and not isinstance(temperature, str)
    temperatures: Any = temperature if is_own else [temperature] * count
    for name, values in (("trains", trains), ("valids", valids), ("temperatures", temperatures)):
        if values is not None and len(values) != count:
            raise ValueError(f"fit_many: {len(values)} {name} for {count} networks")
    held = [rows_of(valid) for valid in valids or [None] * count]
    if None in held and any(map(chooses_temperature, models, temperatures)):
        raise ValueError(
            "fit_many: no validation data to choose temperatures on; give valids=[...], or temperature=1.0"
        )
    seed = fresh() if seed is None else seed
    sources = [
        Batches(*tensors(train), batch_size, seed=mix(seed, member))
        for member, train in enumerate(trains)
    ]
    sizes = [source.num_data for source in sources]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"fit_many: steps are taken together, so training sets must have the same size, got {sizes}"
        )
    steps = len(sources[0])
    rows = round(sources[0].num_data / steps)
    natural = optimiser is None and trains_naturally(models[0])
    epochs = epochs or defaults.epochs(steps, rows, natural=natural)
    objectives = [
        make_objective(
            model,
            source,
            (defaults.WARM_UP if natural else defaults.WARM_UP_OF_ADAM) * epochs,
            likelihood=copy.deepcopy(likelihood),
            prior=copy.deepcopy(prior),
            temperature=own,
        )
        for model, source, own in zip(models, sources, temperatures, strict=True)
    ]
    _check_equal(objectives)
    stack = Stack(objectives)
    if optimiser is None:
        stepping = default_optimiser(stack, natural, learning_rate, epochs * steps, rows)
    elif learning_rate is None:
        stepping = optimiser(stack)
    else:
        raise ValueError(
            "fit_many(learning_rate=..., optimiser=...): put the rate into the optimiser"
        )
    schedule = cosine(stepping, epochs * steps)
    runs = [
        Run(
            objective=objective,
            train=source,
            valid=valid,
            validation=Validation(),
            optimiser=stepping,
            scheduler=schedule,
            epochs=epochs,
            seed=source.seed,
        )
        for objective, source, valid in zip(objectives, sources, held, strict=True)
    ]
    bar = Bar(show, epochs * steps)
    try:
        with bar, checkpoint.generators_restored(), Interrupts() as stop:
            _train(stack, runs, seed, bar, stop)
    finally:
        stack.release()
    return [finished(run, model) for run, model in zip(runs, models, strict=True)]


def _train(stack: "Stack", runs: Sequence[Run], seed: int, bar: Bar, stop: Interrupts) -> None:
    """All epochs of all members; the first run has the optimiser and the schedule of all."""
    first = runs[0]
    device = first.device
    began = time.monotonic()
    for run in runs:
        run.objective.train()
    for epoch in range(first.epochs):
        sums = torch.zeros(len(runs), 3, dtype=torch.float64, device=device)
        for batches in zip(*(run.train.epoch(epoch) for run in runs), strict=True):
            x, y = (torch.stack(parts).to(device) for parts in zip(*batches, strict=True))
            reseed_global(mix(seed, Stream.STACK, first.at.step), device)
            nll, kl = stack(x, y)
            loss = nll + stack.kl_factor(first.at.step) * kl
            if not loss.isfinite().all():
                member = int((~loss.isfinite()).nonzero()[0])
                raise NonFiniteLoss(
                    f"the loss of network {member} is {float(loss[member].detach())} at step "
                    f"{first.at.step}; kasuri.fit with this network alone says which layer is to blame"
                )
            first.descend(Terms(loss.sum(), nll.sum(), kl.sum()))
            for run, inputs, targets in zip(runs, x, y, strict=True):
                run.objective.update(inputs, targets)
                run.at.batch += 1
                run.at.step += 1
                run.look()
            sums += torch.stack([loss, nll, kl], 1).detach()
            first.at.sums = sums[0].tolist()
            bar.step(first.at.step, first.numbers)
            if stop.asked:
                message = f"training stopped in {first.place()}; fit_many cannot go on, begin again"
                raise Interrupted(message, first.place())
        for run, totals in zip(runs, sums.tolist(), strict=True):
            run.at.sums = totals
            run.at.seconds = (time.monotonic() - began) / len(runs)
            run.end_epoch()


class Stack:
    """Objectives evaluated together, each with its own parameters on its own batch.

    Parameters and buffers of the objectives become views of stacked tensors: what an optimiser does to the
    stack, every member has done to it, until `release`. The first one's program serves all, so they must be
    equal in everything but the values of parameters and buffers. To an optimiser the stack is an objective
    whose parameters have one more dimension in front.
    """

    stacked = 1

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.members = objectives
        self.whole = copy.deepcopy(objectives[0])
        stacked = _stacked([dict(member.named_parameters()) for member in objectives])
        for name, parameter in self.whole.named_parameters():
            parameter.data = stacked[name]
        self.buffers = _stacked([dict(member.named_buffers()) for member in objectives])

    @property
    def net(self) -> nn.Module:
        return self.whole.net

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.whole.parameters()

    def kl_factor(self, step: int | None) -> Tensor:
        """That of every member."""
        factors = [member.kl_factor(step) for member in self.members]
        first = next(self.parameters())
        return torch.tensor(factors, dtype=first.dtype, device=first.device)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(nll per example, kl in full), (members,) each, of x and y (members, batch, ...)."""

        def terms(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *batch: Tensor) -> Any:
            state = parameters, buffers
            return torch.func.functional_call(self.members[0], state, batch, {"step": 0})[1:]

        program = torch.func.vmap(terms, randomness="different")
        return program(dict(self.whole.named_parameters()), self.buffers, x, y)

    def release(self) -> None:
        """Give every member tensors of its own again, so that a file of one does not hold all."""
        for module in self.members:
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.data.clone()


def _stacked(members: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of the same name as one; the members keep views of it."""
    stacked = {}
    for name in members[0]:
        if len({id(member[name]) for member in members}) < len(members):
            raise ValueError(
                f"networks to be trained together share {name}: give each its own network, likelihood and "
                "prior, e.g. by copy.deepcopy"
            )
        whole = torch.stack([member[name].detach() for member in members])
        for view, member in zip(whole.unbind(0), members, strict=True):
            member[name].data = view
        stacked[name] = whole
    return stacked


def _check_equal(objectives: Sequence[Objective]) -> None:
    """Refuse members that differ in more than parameters and buffers: the first one's program serves all."""
    first, *others = map(_program, objectives)
    for member, program in enumerate(others, 1):
        for line, other in zip_longest(first, program):
            if line != other:
                raise ValueError(
                    f"fit_many: networks 0 and {member} must be equal in all but the values of their "
                    f"parameters, but differ: {line} and {other}"
                )


def _program(objective: Objective) -> list[str]:
    """All that a stack takes from its first member, line by line."""
    if not objective.has_targets:
        raise TypeError("fit_many cannot stack auto-encoders; train them by kasuri.fit one by one")
    properties: dict[str, Any] = {"num_data": objective.num_data, "output": objective.output}
    for name, _, conversion in named_layers(objective.net):
        properties[f"families of {name}"] = conversion.families
        properties[f"estimator of {name}"] = conversion.estimator.__name__
    for name, parameter in objective.named_parameters():
        properties[f"requires_grad of {name}"] = parameter.requires_grad
    if isinstance(objective, ELBO):
        properties |= {"samples": objective.samples, "patterns of priors": objective.governed}
    properties |= described(objective)
    return [
        *repr(objective.net).splitlines(),
        *(f"{k}: {value}" for k, value in properties.items()),
    ]

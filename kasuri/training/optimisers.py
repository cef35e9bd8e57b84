"""How `kasuri.fit` takes steps: the optimiser and the schedule of its rate, given or default."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from kasuri.objectives.elbo import ELBO, Objective
from kasuri.training.defaults import LARGE
from kasuri.training.natural import Natural

LEARNING_RATE = 2e-3  # of Adam, for batches up to LARGE
TRAVEL = 4.0  # learning rate times steps of natural training: how far a mean can move in all
SLOWEST, FASTEST = 2e-3, 5e-3  # learning rates of natural training

MakeOptimiser = Callable[[Objective], Optimizer]
MakeScheduler = Callable[[Optimizer, int], LRScheduler]


def make_optimiser(
    given: Optimizer | MakeOptimiser | None,
    objective: Objective,
    learning_rate: float | None,
    steps: int,
    batch_size: int,
    was: str | None = None,
) -> Optimizer:
    """The given optimiser, the one that a function makes for the objective, or the default one.

    A run that was begun with Adam (`was`), the default of version 0.2, goes on with it.
    """
    if given is None:
        is_bayesian = isinstance(objective, ELBO) and was != "Adam"
        return default_optimiser(objective, is_bayesian, learning_rate, steps, batch_size)
    if learning_rate is not None:
        raise ValueError(
            f"learning_rate={learning_rate} with optimiser=...: the rate belongs to the default "
            "optimiser; put it into yours"
        )
    optimiser = given if isinstance(given, Optimizer) else given(objective)
    own = {id(p) for p in objective.parameters()}
    if not all(id(p) in own for group in optimiser.param_groups for p in group["params"]):
        raise ValueError(
            "optimiser=...: it has parameters that this model does not train; write "
            "optimiser=lambda objective: torch.optim.SGD(objective.parameters(), 0.1)"
        )
    if isinstance(optimiser, LBFGS):
        raise ValueError(
            "LBFGS evaluates the loss several times per step, each time with other noise: take a "
            "stochastic optimiser, e.g. torch.optim.Adam"
        )
    return optimiser


def default_optimiser(
    objective: Any, is_bayesian: bool, learning_rate: float | None, steps: int, batch_size: int
) -> Optimizer:
    """Natural steps for a posterior, Adam for anything else.

    The fewer steps there are, the longer they are. The rate of Adam alone grows with the root of the batch
    size above LARGE.
    """
    if is_bayesian:
        rate = learning_rate or min(max(TRAVEL / steps, SLOWEST), FASTEST)
        return Natural(objective, rate)
    rate = learning_rate or LEARNING_RATE * math.sqrt(max(1.0, batch_size / LARGE))
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, rate, fused=True)  # fused matters for small networks


def make_schedule(scheduler: MakeScheduler, optimiser: Optimizer, steps: int) -> LRScheduler:
    """The schedule of the learning rate."""
    schedule = scheduler(optimiser, steps)
    if isinstance(schedule, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau wants a score per epoch, and kasuri.fit steps schedules every batch: "
            "take one that is a function of the step, e.g. OneCycleLR"
        )
    return schedule


def cosine(optimiser: Optimizer, steps: int) -> LRScheduler:
    """From the optimiser's rate to (almost) 0 along half a cosine."""
    return LambdaLR(optimiser, lambda step: max(1e-3, (1 + math.cos(math.pi * step / steps)) / 2))


def constant(optimiser: Optimizer, steps: int) -> LRScheduler:
    """The optimiser's own rate throughout."""
    return LambdaLR(optimiser, lambda step: 1.0)

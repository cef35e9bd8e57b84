"""How good the posterior is on data it did not see, cheaply enough to ask during training."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kasuri.inputs import run, split, to_device
from kasuri.network.calls import all_draws
from kasuri.network.contexts import drawing_from, evaluating
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import Objective
from kasuri.streams import mix, seeded
from kasuri.training import defaults

CHUNK = 4096


@dataclass(frozen=True)
class Validation:
    """Validation data of `kasuri.fit`, and what they decide.

    Args:
        data: as training data; None for a tenth of the training examples, if a temperature is to be chosen.
        samples: draws per validation.
        patience: stop after so many validations without improvement.
        keep: "best" keeps the epoch with the best validation NLL, or the newest within a standard error of
            it; "last" keeps the last epoch whatever validation says.
    """

    data: Any = None
    samples: int = defaults.SAMPLES
    patience: int | None = None
    keep: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"Validation: samples must be at least 1, got {self.samples}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"Validation: patience must be at least 1, got {self.patience}")
        if self.keep not in ("best", "last"):
            raise ValueError(f'Validation: keep must be "best" or "last", got {self.keep!r}')


def examine(
    objective: Objective, x: Any, y: Tensor, samples: int, seed: int
) -> tuple[Tensor, dict[str, float]]:
    """(predictive NLL of each example, {"nll": their mean, and the likelihood's own score}).

    Of an objective with losses of its own (`Objective.held_out`) these, and {"loss": their mean}.
    """
    own = _own_losses(objective, x, y, samples, seed)
    if own is not None:
        return own, {"loss": float(own.double().mean())}
    logs, mean = _predictive(objective, x, y, samples, seed)
    score = objective.likelihood.score(mean, y.to(mean.device))
    return -logs.cpu(), {"nll": -float(logs.double().mean()), **score}


def _pieces(objective: Objective, x: Any, y: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and targets on the objective's device, so many at once."""
    device = next(objective.parameters()).device
    for inputs, targets in zip(split(x, CHUNK), y.split(CHUNK), strict=True):
        yield to_device(inputs, device), targets.to(device)


@torch.no_grad()
def _own_losses(objective: Objective, x: Any, y: Tensor, samples: int, seed: int) -> Tensor | None:
    """Losses that the objective defines, by the same noise whenever the seed is the same."""
    losses = []
    with evaluating(objective) as model:
        for number, (inputs, targets) in enumerate(_pieces(objective, x, y)):
            with seeded(mix(seed, number)):
                own = model.held_out(inputs, targets, samples)
            if own is None:
                return None
            losses.append(own.cpu())
    return torch.cat(losses)


@torch.no_grad()
def _predictive(
    objective: Objective, x: Any, y: Tensor, samples: int, seed: int
) -> tuple[Tensor, Tensor]:
    """(log of the averaged likelihood of each example, averaged predictive means)."""
    logs: list[list[Tensor]] = [[] for _ in y.split(CHUNK)]
    means: list[Tensor] = [torch.zeros(()) for _ in logs]
    weights: dict[int, Tensor] = {}
    with evaluating(objective.net) as net, drawing_from(net, weights):
        posteriors = [posterior for _, posterior in named_posteriors(net)]
        samples = samples if posteriors else 1
        for draw in range(samples):
            # in pairs mean ± noise: what is linear in the noise cancels, and a small posterior's
            # effect, which is quadratic, can be seen with few draws
            sign = -1.0 if draw % 2 else 1.0
            draws = all_draws(posteriors, mix(seed, draw // 2))
            weights.update({id(q): q.mean.lerp(draws[id(q)], sign) for q in posteriors})
            for number, (inputs, targets) in enumerate(_pieces(objective, x, y)):
                f = run(net, inputs, objective.output)
                logs[number].append(objective.likelihood.log_prob(f, targets))
                means[number] = means[number].to(f) + objective.likelihood.moments(f)[0] / samples
    return torch.cat([log_mean(torch.stack(draws_of)) for draws_of in logs]), torch.cat(means)


def log_mean(logs: Tensor) -> Tensor:
    """Log of the mean likelihood over all draws of a posterior, estimated from few.

    The log of a mean of S draws is too low by about Var/2S, the more the wider the posterior. The
    jackknife, which leaves out one pair of draws at a time, removes that. `logs` are (S, batch), pairs of
    draws one after the other.
    """
    plain = logs.logsumexp(0) - math.log(len(logs))
    pairs = len(logs) // 2
    if pairs < 2 or len(logs) % 2:
        return plain
    top = logs.amax(0)
    pair_sums = (logs - top).exp().reshape(pairs, 2, -1).sum(1)
    others = (pair_sums.sum(0) - pair_sums).clamp(min=torch.finfo(pair_sums.dtype).tiny)
    without_one = others.log() + top - math.log(len(logs) - 2)
    # no mean is above the largest value, though an extrapolated one can be
    return torch.minimum(pairs * plain - (pairs - 1) * without_one.mean(0), top)

"""Choosing the temperature on validation data while training goes on.

At temperature T the posterior's variances are, to first order, proportional to T. So the question
"would a wider or a narrower posterior predict unseen data better?" tells in which direction T should
move, and it costs a few forward passes instead of another training run: the predictive NLL of
every validation example is measured with all draws moved away from the mean by a factor, always with
the same noise. T moves if the improvement is larger than twice its standard error; otherwise the
starting point, which comes from the ratio of data to weights, is as good as anything the validation
data could tell.
"""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from kasuri.network.random import require_posteriors
from kasuri.objectives.balanced import Balanced
from kasuri.objectives.schedules import Constant, Schedule

Temperature = float | Schedule | Balanced | Literal["auto"]

FACTORS = (1 / 1.3, 1.0, 1.3)
SETTLED = 0.5  # share of training before which widths mislead: large steps are noise of their own
ERRORS = 2.0  # standard errors that an improvement must exceed
_RANGE = 4.0  # all moves together stay within this factor


def starting_point(num_data: int, num_weights: int) -> float:
    """0.4 · data / weights, at most 1.

    Tempering by the ratio is what keeps the KL of a wide network from drowning the data (slides on
    overparameterised networks, η = τp/N); the factor was chosen on validation data.

    Examples:
        >>> starting_point(num_data=1000, num_weights=40_000)
        0.01
    """
    return min(1.0, 0.4 * num_data / num_weights)


def resolve(temperature: Temperature, bnn: nn.Module, num_data: int) -> Schedule:
    """The schedule that a temperature stands for in an objective of this network and so many data.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(9, 1), kasuri.MeanField())
        >>> [resolve(one, bnn, num_data=5)(0) for one in (0.3, Balanced(1.0), "auto")]
        [0.3, 0.5, 0.2]
    """
    if isinstance(temperature, str):
        if temperature != "auto":
            raise ValueError(
                f'temperature={temperature!r}: write a number, a schedule, kasuri.Balanced(0.01) or "auto"'
            )
        weights = sum(q.numel() for q in require_posteriors(bnn).values())
        return Tempering(starting_point(num_data, weights))
    if isinstance(temperature, Balanced):
        return Constant(temperature.temperature(bnn, num_data))
    return temperature if callable(temperature) else Constant(float(temperature))


class Tempering:
    """A temperature that follows validation; a schedule with a state.

    Examples:
        >>> import torch
        >>> tempering = Tempering(0.03)
        >>> now = torch.tensor([0.50, 0.30, 0.41, 0.40])
        >>> tempering.update([now + 0.1, now, now - 0.1])  # wider is better for every example
        >>> round(tempering(0), 3)
        0.039
    """

    def __init__(self, start: float) -> None:
        self.start = self.value = start

    def __call__(self, step: int) -> float:
        """The present value."""
        return self.value

    def update(self, losses: Sequence[Tensor]) -> None:
        """Follow the validation NLL of each example, measured at FACTORS."""
        narrower, now, wider = losses
        move = 0.0
        if is_better(narrower, now):
            move = math.log(FACTORS[0])
        elif is_better(wider, now):
            move = math.log(FACTORS[2])
        # variances would go with the square of the width: half of that, since a posterior follows
        # the temperature with some delay
        lowest, highest = self.start / _RANGE, min(1.0, self.start * _RANGE)
        self.value = min(max(self.value * math.exp(move), lowest), highest)


def is_better(losses: Tensor, others: Tensor, errors: float = ERRORS) -> bool:
    """Whether losses of the same examples are lower by more than so many standard errors."""
    if not others.isfinite().all():
        return bool(losses.isfinite().all())
    gain = (others - losses).double()
    if len(gain) < 2:
        return False
    return bool(gain.mean() > errors * gain.std() / math.sqrt(len(gain)))

"""The temperature of a posterior: the weight of the KL that stays.

The KL of independent weights is a sum over N of them, the data term a sum over p examples. With the
temperature η = τ p / N (`Balanced`) both grow alike: the loss per example is NLL + τ · KL / N, in which
neither the number of data nor the width appears.

"auto" starts at such a ratio and follows validation data while training goes on (`Tempering`). At
temperature T the posterior's variances are, to first order, proportional to T. So the question "would a
wider or a narrower posterior predict unseen data better?" tells in which direction T should move, and it
costs a few forward passes instead of another training run: the predictive NLL of every validation example
is measured with all draws moved away from the mean by a factor, always with the same noise. T moves if the
improvement is larger than twice its standard error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from kasuri.network.random import require_posteriors
from kasuri.objectives import schedules
from kasuri.objectives.schedules import Constant, Schedule
from kasuri.storage import Storable

FACTORS = (1 / 1.3, 1.0, 1.3)
SETTLED = 0.5  # share of training before which widths mislead: large steps are noise of their own
ERRORS = 2.0  # standard errors that an improvement must exceed
_RANGE = 4.0  # all moves together stay within this factor


@dataclass(frozen=True)
class Balanced(Storable):
    """A temperature η = τ p / N: p examples, N random weights.

    Args:
        tau: τ, the weight of the KL per random weight.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(4, 50, bias=False), nn.ReLU(), nn.Linear(50, 2, bias=False))
        >>> bnn = kasuri.bayesianize(net, kasuri.MeanField())
        >>> Balanced(0.6).temperature(bnn, num_data=100)
        0.2
    """

    tau: float

    def __post_init__(self) -> None:
        if not 0 <= self.tau < math.inf:
            raise ValueError(f"Balanced({self.tau}): tau must be a finite number, 0 or above")

    def temperature(self, bnn: nn.Module, num_data: int) -> float:
        """η of a network and so many examples."""
        return self.tau * num_data / _weights(bnn)


Temperature = float | Schedule | Balanced | Literal["auto"]


def starting_point(num_data: int, num_weights: int) -> float:
    """0.4 · data / weights, at most 1; the factor was chosen on validation data.

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
        >>> [resolve(value, bnn, num_data=5)(0) for value in (0.3, Balanced(1.0), "auto")]
        [0.3, 0.5, 0.2]
    """
    if isinstance(temperature, str):
        if temperature != "auto":
            raise ValueError(
                f"temperature={temperature!r}: it must be a number, a schedule, kasuri.Balanced(0.01) or "
                '"auto"'
            )
        return Tempering(starting_point(num_data, _weights(bnn)))
    if isinstance(temperature, Balanced):
        return Constant(temperature.temperature(bnn, num_data))
    return schedules.resolve(temperature)


def _weights(bnn: nn.Module) -> int:
    return sum(posterior.numel() for posterior in require_posteriors(bnn).values())


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
        return self.value

    def update(self, losses: Sequence[Tensor]) -> None:
        """Follow the validation NLL of each example, measured at FACTORS."""
        narrower, now, wider = losses
        factor = 1.0
        if is_better(narrower, now):
            factor = FACTORS[0]
        elif is_better(wider, now):
            factor = FACTORS[2]
        # variances would go with the square of the width: half of that, since a posterior follows
        # the temperature with some delay
        lowest, highest = self.start / _RANGE, min(1.0, self.start * _RANGE)
        self.value = min(max(self.value * factor, lowest), highest)


def is_better(losses: Tensor, others: Tensor, errors: float = ERRORS) -> bool:
    """Whether losses of the same examples are lower by more than so many standard errors."""
    if not others.isfinite().all():
        return bool(losses.isfinite().all())
    gain = (others - losses).double()
    if len(gain) < 2:
        return False
    return bool(gain.mean() > errors * gain.std() / math.sqrt(len(gain)))

"""The temperature of a posterior: the weight of the KL that stays.

The KL of independent weights is a sum over N of them, the data term a sum over p examples. With the
temperature η = τ p / N (`Balanced`) both grow alike: the loss per example is NLL + τ · KL / N, in which
neither the number of data nor the width appears.

"auto" lets T rise during training, from far below such a ratio to far above it, and reads the predictive NLL
of every validation example on the way (`Tempering`). Under natural steps the posterior follows within tens of
steps, so that one run crosses the whole range. The rest of training is spent at the temperature nearest to
the ratio among those whose NLL is within a standard error of the best.
"""

import math
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kasuri.network.random import require_posteriors
from kasuri.objectives import schedules
from kasuri.objectives.schedules import Constant, Schedule
from kasuri.storage import Storable

END = 0.9  # share of training in which T rises
LOOKS = 40  # at validation data in a whole training, if none is left out
FIRST = 0.3  # share of training before which a look says little
TOGETHER = 4  # looks that are averaged
HALF = 0.7  # share of training before which T goes on rising whatever the looks say


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


def usual(ratio: float, num_data: int, num_weights: int) -> float:
    """Ratio · data / weights, at most 1; ratios of likelihoods were chosen on validation data.

    Examples:
        >>> usual(0.4, num_data=1000, num_weights=40_000)
        0.01
    """
    return min(1.0, ratio * num_data / num_weights)


def resolve(
    temperature: Temperature, bnn: nn.Module, num_data: int, ratio: float, rise: tuple[float, float]
) -> Schedule:
    """The schedule that a temperature stands for in an objective of this network and so many data.

    `ratio` and `rise` are those of the likelihood: what is usual, and where "auto" begins and ends.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(9, 1), kasuri.MeanField())
        >>> [resolve(value, bnn, 4, 0.4, (0.1, 1.0))(0) for value in (0.3, Balanced(1.0), "auto")]
        [0.3, 0.4, 0.16]
    """
    if isinstance(temperature, str):
        if temperature != "auto":
            raise ValueError(
                f"temperature={temperature!r}: it must be a number, a schedule, kasuri.Balanced(0.01) or "
                '"auto"'
            )
        return Tempering(usual(ratio, num_data, _weights(bnn)), *rise)
    if isinstance(temperature, Balanced):
        return Constant(temperature.temperature(bnn, num_data))
    return schedules.resolve(temperature)


def _weights(bnn: nn.Module) -> int:
    return sum(posterior.numel() for posterior in require_posteriors(bnn).values())


class Tempering:
    """A temperature that rises during training, and then stays where validation liked it best.

    Outside of training it is the usual one.

    Args:
        usual: one that predicts well as a rule.
        begin: where it begins to rise, as a share of the usual one.
        end: where it ends.

    Examples:
        >>> import torch
        >>> tempering = Tempering(usual=0.16, begin=0.25, end=3.0)
        >>> tempering.rise(steps=100)
        >>> tempering(0), round(tempering(50), 2), round(tempering(90), 2)
        (0.04, 0.16, 0.48)
        >>> good, bad = torch.tensor([0.2, 0.3]), torch.tensor([0.5, 0.6])
        >>> for step in range(40, 100, 10):
        ...     tempering.update(good if tempering(step) < 0.2 else bad, step)
        >>> round(tempering(99), 2)
        0.18
    """

    def __init__(self, usual: float, begin: float, end: float) -> None:
        self.usual, self.begin, self.end = usual, begin, end
        self.steps = 0  # of the training in which it rises
        self.chosen: float | None = None
        self.seen: list[tuple[float, Tensor]] = []  # temperatures, and losses under them

    def __call__(self, step: int) -> float:
        if self.chosen is not None:
            return self.chosen
        if not self.steps:
            return self.usual
        share = min(1.0, step / (END * self.steps))
        return min(1.0, self.usual * self.begin * (self.end / self.begin) ** share)

    def rise(self, steps: int) -> None:
        """Rise during so many steps of training."""
        self.steps, self.chosen, self.seen = steps, None, []

    def is_looking(self, step: int) -> bool:
        """Whether it wants to know how good the posterior is after so many steps."""
        every = max(1, self.steps // LOOKS)
        return self.chosen is None and step >= FIRST * self.steps and step % every == 0

    def update(self, losses: Tensor, step: int) -> None:
        """Take up the validation NLL of each example after so many steps."""
        self.seen.append((self(step), losses))
        # averages over neighbouring looks: single ones jump with the steps of training
        together = range(max(1, len(self.seen) - TOGETHER + 1))
        looks = [zip(*self.seen[i : i + TOGETHER], strict=True) for i in together]
        averages = [(median(values), torch.stack(all_).mean(0)) for values, all_ in looks]
        best = min((losses for _, losses in averages), key=_mean)
        is_worse = step > HALF * self.steps and is_better(best, averages[-1][1])
        if is_worse or step >= END * self.steps:
            good = [value for value, losses in averages if not is_better(best, losses)]
            self.chosen = min(good, key=lambda value: abs(math.log(value / self.usual)))
            self.seen = []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "chosen": self.chosen, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.chosen = state["steps"], state["chosen"]
        self.seen = [(value, losses) for value, losses in state["seen"]]


def _mean(losses: Tensor) -> float:
    mean = float(losses.double().mean())
    return mean if math.isfinite(mean) else math.inf


def is_better(losses: Tensor, others: Tensor) -> bool:
    """Whether losses of the same examples are lower by more than a standard error."""
    if not others.isfinite().all():
        return bool(losses.isfinite().all())
    gain = (others - losses).double()
    if len(gain) < 2:
        return False
    return bool(gain.mean() > gain.std() / math.sqrt(len(gain)))

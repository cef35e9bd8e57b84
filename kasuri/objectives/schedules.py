"""Schedules: numbers that change with the training step, accepted wherever a float is.

A schedule is any function of the step (0 for the first batch); these are the common ones.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kasuri.storage import Storable

Schedule = Callable[[int], float]


def resolve(value: float | Schedule) -> Schedule:
    """The schedule itself, or a constant one."""
    return value if callable(value) else Constant(float(value))


@dataclass(frozen=True)
class Constant(Storable):
    """The same value at every step.

    Examples:
        >>> Constant(0.5)(1000)
        0.5
    """

    value: float

    def __call__(self, step: int) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True)
class LinearPerBatch(Storable):
    """start + rate · step, raised every `every` batches only, up to `end`.

    Examples:
        >>> LinearPerBatch(rate=5e-5, every=100)(250)
        0.01
    """

    rate: float = 5e-5
    every: int = 1
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a staircase without steps."""
        if self.every < 1 or self.rate <= 0:
            raise ValueError(
                f"LinearPerBatch(rate={self.rate}, every={self.every}): rate above 0, every at least 1"
            )

    def __call__(self, step: int) -> float:
        """The value at a step."""
        return min(self.end, self.start + self.rate * self.every * (step // self.every))


@dataclass(frozen=True)
class LinearOverEpochs(Storable):
    """From `start` to `end` in a straight line over the first `epochs` epochs, then constant.

    Examples:
        >>> LinearOverEpochs(epochs=10, steps_per_epoch=100)(250)
        0.25
    """

    epochs: float
    steps_per_epoch: int
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an empty ramp."""
        _positive_length("LinearOverEpochs", self.epochs, self.steps_per_epoch)

    def __call__(self, step: int) -> float:
        """The value at a step."""
        share = min(1.0, step / (self.epochs * self.steps_per_epoch))
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class Exponential(Storable):
    """start · (end/start)^(step/n) over the n steps of the first `epochs`, then `end`.

    With `hold`, it is 0 for that many epochs and all the rest comes later by as much: exponential
    annealing of a KL that is off at first.

    Examples:
        >>> Exponential(epochs=2, steps_per_epoch=50, start=0.01)(50)
        0.1
        >>> [Exponential(2, 50, start=0.01, hold=1)(step) for step in (49, 100)]
        [0.0, 0.1]
    """

    epochs: float
    steps_per_epoch: int
    start: float = 1e-3
    end: float = 1.0
    hold: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what has no constant factor."""
        _positive_length("Exponential", self.epochs, self.steps_per_epoch)
        if not (self.start > 0 and self.end > 0):
            raise ValueError(
                f"Exponential(start={self.start}, end={self.end}): both above 0; "
                "to start at 0 write LinearOverEpochs"
            )
        _no_less_than_zero("Exponential", "hold", self.hold)

    def __call__(self, step: int) -> float:
        """The value at a step."""
        step_on = step - self.hold * self.steps_per_epoch
        if step_on < 0:
            return 0.0
        share = min(1.0, step_on / (self.epochs * self.steps_per_epoch))
        return float(self.start ** (1 - share) * self.end**share)


@dataclass(frozen=True)
class HoldThenRamp(Storable):
    """0 for `hold` epochs, then in a straight line to `end` over `ramp` epochs, then constant.

    Without `steps_per_epoch`, hold and ramp count steps.

    Examples:
        >>> [HoldThenRamp(hold=100, ramp=200)(step) for step in (99, 200, 300)]
        [0.0, 0.5, 1.0]
        >>> HoldThenRamp(hold=5, ramp=15, steps_per_epoch=600)(600 * 20)
        1.0
    """

    hold: float
    ramp: float
    steps_per_epoch: int = 1
    end: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an empty ramp and negative lengths."""
        if not (self.ramp > 0 and self.steps_per_epoch > 0):
            raise ValueError(
                f"HoldThenRamp(ramp={self.ramp}, steps_per_epoch={self.steps_per_epoch}): both above 0"
            )
        _no_less_than_zero("HoldThenRamp", "hold", self.hold)
        _no_less_than_zero("HoldThenRamp", "end", self.end)

    def __call__(self, step: int) -> float:
        """The value at a step."""
        share = (step / self.steps_per_epoch - self.hold) / self.ramp
        return self.end * min(1.0, max(0.0, share))


def _positive_length(name: str, epochs: float, steps_per_epoch: int) -> None:
    if not (epochs > 0 and steps_per_epoch > 0):
        raise ValueError(
            f"{name}(epochs={epochs}, steps_per_epoch={steps_per_epoch}): both above 0"
        )


def _no_less_than_zero(name: str, what: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name}({what}={value}): 0 or above 0")

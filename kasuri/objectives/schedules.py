"""Schedules: numbers that change with the training step, accepted wherever a float is.

A schedule is any function of the step (0 for the first batch); these are the common ones.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kasuri.storage import Storable

Schedule = Callable[[int], float]

END = 10**9  # a step by which every schedule has reached its end


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
        _above_zero(self, "rate", "every")

    def __call__(self, step: int) -> float:
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
        _above_zero(self, "epochs", "steps_per_epoch")

    def __call__(self, step: int) -> float:
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
        _above_zero(self, "epochs", "steps_per_epoch", "start", "end")
        _not_negative(self, "hold")

    def __call__(self, step: int) -> float:
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
        _above_zero(self, "ramp", "steps_per_epoch")
        _not_negative(self, "hold", "end")

    def __call__(self, step: int) -> float:
        share = (step / self.steps_per_epoch - self.hold) / self.ramp
        return self.end * min(1.0, max(0.0, share))


def _above_zero(schedule: Storable, *names: str) -> None:
    for name in names:
        if not (value := getattr(schedule, name)) > 0:
            raise ValueError(f"{type(schedule).__name__}: {name} must be above 0, got {value}")


def _not_negative(schedule: Storable, *names: str) -> None:
    for name in names:
        if not (value := getattr(schedule, name)) >= 0:
            raise ValueError(f"{type(schedule).__name__}: {name} must be 0 or above, got {value}")

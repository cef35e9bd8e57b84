"""Fair timing of several contenders in one process.

They take turns, round by round, in an order that rotates, so that a machine that slows down for
a while slows all of them; what is reported first is the ratio to the baseline of the same round.
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch


@dataclass(frozen=True)
class Plan:
    """How to time.

    Args:
        rounds: rounds that count.
        warmup: rounds before them that do not.
        burst: seconds the baseline should work in one turn; a turn is as many calls as that takes
            (for each contender the same), because a single short call mostly measures how cold
            the caches are after another contender's turn.
    """

    rounds: int = 20
    warmup: int = 3
    burst: float = 0.02


QUICK = Plan(rounds=2, warmup=1, burst=0.0)


@dataclass(frozen=True)
class Measured:
    """Times of one contender: milliseconds per call, and ratios to the baseline by round.

    `versus` has the median ratios to further contenders, by their names.
    """

    median_ms: float
    median_ratio: float
    ratio_quartiles: tuple[float, float]
    rounds: int
    versus: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Rounded to what timing can tell."""
        rounded = {key: _rounded(value) for key, value in asdict(self).items() if value != {}}
        return {**rounded, "rounds": self.rounds}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(number) for key, number in value.items()}
    return [_rounded(number) for number in value] if isinstance(value, tuple) else round(value, 4)


def measure(
    calls: dict[str, Callable[[], object]],
    baseline: str,
    plan: Plan,
    references: Sequence[str] = (),
) -> tuple[dict[str, Measured], int]:
    """Times of every call, and how many calls made up one turn.

    Args:
        calls: the work of each contender.
        baseline: name of the one the ratios refer to.
        plan: how to time.
        references: further names that ratios refer to.
    """
    gc.collect()
    gc.freeze()  # what exists now stays: collections between rounds then look at little
    gc.disable()
    try:
        warm = [_round(calls, index, 1) for index in range(plan.warmup)]
        alone = min(times[baseline] for times in warm) if warm else plan.burst
        repeats = max(1, min(50, math.ceil(plan.burst / alone)))
        rounds = [_round(calls, index, repeats) for index in range(plan.rounds)]
    finally:
        gc.enable()
        gc.unfreeze()
    return {name: _summary(name, rounds, baseline, references) for name in calls}, repeats


def _round(calls: dict[str, Callable[[], object]], index: int, repeats: int) -> dict[str, float]:
    """Seconds per call of each contender, starting with another one every round."""
    gc.collect()
    names = list(calls)
    start = index % len(names)
    times = {}
    for name in names[start:] + names[:start]:
        call = calls[name]
        begin = perf_counter()
        for _ in range(repeats):
            call()
        times[name] = (perf_counter() - begin) / repeats
    return times


def _summary(
    name: str, rounds: list[dict[str, float]], baseline: str, references: Sequence[str]
) -> Measured:
    ratios = torch.tensor(_ratios(name, baseline, rounds), dtype=torch.float64)
    low, middle, high = ratios.quantile(ratios.new_tensor([0.25, 0.5, 0.75])).tolist()
    return Measured(
        median_ms=1e3 * median(times[name] for times in rounds),
        median_ratio=middle,
        ratio_quartiles=(low, high),
        rounds=len(rounds),
        versus={other: median(_ratios(name, other, rounds)) for other in references},
    )


def _ratios(name: str, other: str, rounds: list[dict[str, float]]) -> list[float]:
    return [times[name] / times[other] for times in rounds]

"""Fair timing of several contenders in one process.

They take turns, round by round, in an order that rotates, so that a machine that slows down for
a while slows all of them; what is reported first is the ratio to the baseline of the same round.
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch


@dataclass(frozen=True)
class Plan:
    """How to time."""

    rounds: int = 20  # that count
    warmup: int = 3  # rounds before them that do not
    # seconds the baseline should work in one turn; a turn is as many calls as that takes (for each contender
    # the same), because a single short call mostly measures how cold the caches are after another's turn
    burst: float = 0.02


def measure(
    calls: dict[str, Callable[[], object]],
    baseline: str,
    plan: Plan,
    references: Sequence[str] = (),
) -> tuple[dict[str, dict[str, Any]], int]:
    """Times of every call, ready for JSON, and how many calls made up one turn.

    Times are milliseconds per call, and ratios to the baseline of the same round. `versus` has the median
    ratios to `references`, further contenders.
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
) -> dict[str, Any]:
    def ratios(other: str) -> list[float]:
        return [times[name] / times[other] for times in rounds]

    quartiles = torch.tensor(ratios(baseline)).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    low, middle, high = (round(value, 4) for value in quartiles)
    summary = {
        "median_ms": round(1e3 * median(times[name] for times in rounds), 4),
        "median_ratio": middle,
        "ratio_quartiles": [low, high],
        "rounds": len(rounds),
    }
    versus = {other: round(median(ratios(other)), 4) for other in references}
    return summary | ({"versus": versus} if versus else {})

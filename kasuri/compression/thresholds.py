"""Where to cut: the largest gap in a sorted statistic, or bisection on a validation loss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_GAP = 1.0  # in nats: a factor e between the worst that stays and the best that goes
LOG_ONE = 0.0  # a unit with more signal than noise is never below a gap of ratios


def largest_gap(
    logs: Tensor, ceiling: float = math.inf, min_gap: float = MIN_GAP
) -> tuple[float, float]:
    """(middle, width) of the largest gap in sorted numbers; (-inf, 0) where there is none.

    A gap counts if it is at least `min_gap` wide and what lies below it is below the ceiling. What
    is at -inf is below every cut, and is no end of a gap.

    Examples:
        >>> largest_gap(torch.tensor([-6.0, -5.0, 1.0, 2.0]))
        (-2.0, 6.0)
        >>> largest_gap(torch.tensor([0.1, 0.2, 0.3]))
        (-inf, 0.0)
    """
    known = logs[logs > -math.inf].double().clamp(max=1e300).sort().values
    if len(known) < 2:
        return -math.inf, 0.0
    gaps = known.diff()
    gaps = torch.where(known[:-1] < ceiling, gaps, -math.inf)
    place = int(gaps.argmax())
    width = float(gaps[place])
    if not width >= min_gap:
        return -math.inf, 0.0
    low, high = float(known[place]), float(known[place + 1])
    return (low + high) / 2 if high < 1e299 else low + min_gap, width


@dataclass(frozen=True)
class Trial:
    """One step of a search.

    Args:
        level: of the threshold, a logarithm.
        loss: of the network masked at it.
    """

    level: float
    loss: float


def bisect(
    levels: Sequence[float], loss: Callable[[float], float], limit: float
) -> tuple[float, list[Trial]]:
    """The highest level whose loss is within a limit, and all that was tried.

    The loss is taken to grow with the level; where it does not, a level within the limit is found
    all the same. -inf, which drops nothing, if no level is.

    Args:
        levels: to choose from, in ascending order.
        loss: of a level.
        limit: of the loss.

    Examples:
        >>> bisect([1.0, 2.0, 3.0, 4.0], lambda level: level**2, limit=10.0)[0]
        3.0
    """
    best, trials = -math.inf, []
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        trials.append(Trial(levels[middle], loss(levels[middle])))
        if trials[-1].loss <= limit:
            best, low = levels[middle], middle + 1
        else:
            high = middle
    return best, trials

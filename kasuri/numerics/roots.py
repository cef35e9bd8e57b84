"""Zeros of falling functions."""

from collections.abc import Callable

import torch
from torch import Tensor


def falling_root(
    function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int
) -> Tensor:
    """Where a falling function passes 0, elementwise; the nearer end where it does not in between.

    A secant through the ends of the interval that is known to hold the zero; an end that stays twice counts
    half (the Illinois rule), so that both ends close in. For nearly straight functions ten steps are enough.

    Args:
        function: of a tensor as `low`, elementwise.
        low: (...) below the zeros.
        high: (...) above them.
        steps: evaluations of the function, beside those at both ends.

    Examples:
        >>> one = torch.ones((), dtype=torch.float64)
        >>> falling_root(lambda x: 2 - x.exp(), 0 * one, 3 * one, 12)
        tensor(0.6931, dtype=torch.float64)
    """
    above, below = function(low), function(high)
    outside = (above <= 0) | (below >= 0)
    end = torch.where(above <= 0, low, high)
    kept = torch.zeros_like(above)  # which end stayed: 1 the lower, -1 the upper
    for _ in range(steps):
        step = (above / (above - below)).nan_to_num(0.5)
        middle = low + (high - low) * step
        value = function(middle)
        is_above = value > 0
        # the other end stays; if it did before, it counts half
        below = torch.where(is_above, torch.where(kept < 0, below / 2, below), value)
        above = torch.where(is_above, value, torch.where(kept > 0, above / 2, above))
        low, high = torch.where(is_above, middle, low), torch.where(is_above, high, middle)
        kept = torch.where(is_above, -1.0, 1.0)
    middle = low + (high - low) * (above / (above - below)).nan_to_num(0.5)
    return torch.where(outside, end, middle)

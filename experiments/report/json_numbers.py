"""Numbers out of result files, and the digits to show them with."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
HUGE = 1e100  # what is larger cannot be drawn


def array(values: object) -> Array:
    """A JSON list of numbers, or of lists of them, to draw; what cannot be drawn is NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) < HUGE, numbers, np.nan)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and its standard error if there are at least two values."""
    count, mean = len(values), sum(values) / len(values)
    if count < 2:
        return mean, None
    squares = sum((value - mean) * (value - mean) for value in values)
    return mean, math.sqrt(squares / (count - 1) / count)


def decimals_for(values: Iterable[float], errors: Iterable[float], most: int) -> int:
    """Digits behind the point for a column of numbers, at most `most`.

    The median standard error gets two significant digits and the smallest at least one; without
    errors the largest number gets four.

    Examples:
        >>> decimals_for([0.1293, 0.1311], [0.0039, 0.0041], most=5), decimals_for([12.345], [], 5)
        (4, 2)
    """
    known = [error for error in errors if math.isfinite(error) and error > 0]
    if known:
        typical = _decimals(statistics.median(known), 2)
        return max(0, min(most, max(typical, _decimals(min(known), 1))))
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    return max(0, min(most, _decimals(max(sizes), 4))) if sizes else min(most, 1)


def _decimals(size: float, significant: int) -> int:
    return significant - 1 - math.floor(math.log10(size))


def fixed(value: float, decimals: int) -> str:
    """A number with so many digits behind the point and commas between thousands.

    Examples:
        >>> fixed(484008, 0), fixed(-0.0001, 2), fixed(2.5e12, 1), fixed(float("nan"), 2)
        ('484,008', '0.00', '2.50e+12', 'not finite')
    """
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 1e10:
        return f"{value:.2e}"
    text = f"{value:,.{decimals}f}"
    return text if any(digit in text for digit in "123456789") else text.lstrip("-")


def short(value: float, significant: int = 4) -> str:
    """A number on its own, with a few significant digits.

    Examples:
        >>> short(0.0012345), short(1234.5), short(3.0), short(12345678.0), short(1e-7)
        ('0.001234', '1,234', '3', '12,345,678', '1e-07')
    """
    if not math.isfinite(value) or abs(value) >= 1e10:
        return fixed(value, 0)
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.{significant - 1}g}"
    decimals = max(0, _decimals(abs(value), significant)) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_error(value: float, error: float | None) -> str:
    """A number on its own with its standard error, if there is one.

    Examples:
        >>> with_error(96.8, 0.18), with_error(0.129, None)
        ('96.80 ± 0.18', '0.129')
    """
    if error is None:
        return short(value, 6)
    decimals = decimals_for([value], [error], most=6)
    return f"{fixed(value, decimals)} ± {fixed(error, decimals)}"

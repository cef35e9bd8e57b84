"""Numbers out of result files that may hold anything, and the digits to show them with."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def number(value: object) -> float | None:
    """A JSON number as a float; None for anything else.

    Examples:
        >>> number(3), number("3"), number(True)
        (3.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer that no float holds
        return math.inf if value > 0 else -math.inf


def array(values: object) -> Array:
    """A JSON list of numbers (or of lists of them) to draw; what cannot be drawn is NaN.

    Raises:
        ValueError, TypeError: anything else; `stored` takes it for unusable data.

    Examples:
        >>> array([1, None, 1e300]).tolist()
        [1.0, nan, nan]
    """
    if not isinstance(values, list):
        raise TypeError(f"a list of numbers is needed, not {values!r:.40}")
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(found) < 1e100, found, np.nan)


def arrays(*lists: object) -> tuple[Array, ...]:
    """Lists of equal length, at least 1, without the places where one of them has no number."""
    columns = np.stack([array(one) for one in lists])
    known = columns[:, ~np.isnan(columns).any(axis=0)]
    if columns.ndim != 2 or not known.size:
        raise ValueError("no numbers that belong together")
    return tuple(known)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and its standard error if there are at least two values.

    Examples:
        >>> mean_and_error([1.0, 3.0]), mean_and_error([5.0])
        ((2.0, 1.0), (5.0, None))
    """
    count, mean = len(values), sum(values) / len(values)
    if count < 2:
        return mean, None
    squares = sum((value - mean) * (value - mean) for value in values)
    return mean, math.sqrt(squares / (count - 1) / count)


def decimals_for(values: Iterable[float], errors: Iterable[float], most: int) -> int:
    """Digits behind the point for a column of numbers.

    The median standard error gets two significant digits and the smallest at least one; without
    errors the largest number gets four. Never more than `most`.

    Examples:
        >>> decimals_for([0.1293, 0.1311], [0.0039, 0.0041], most=5)
        4
        >>> decimals_for([12.345], [], most=5)
        2
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

"""Numbers out of JSON that may hold anything, and the digits to show them with."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def number(value: object) -> float | None:
    """A JSON number as a float; None for anything else.

    Examples:
        >>> number(3), number("3"), number(True), number(None)
        (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite(value: object) -> float | None:
    """A JSON number that can be drawn as a float; None for anything else, also beyond 1e100."""
    found = number(value)
    return found if found is not None and abs(found) < 1e100 else None


def numbers(value: object) -> list[float | None]:
    """A JSON list with None for what is not a finite number; empty for what is not a list."""
    return [finite(one) for one in value] if isinstance(value, list) else []


def all_numbers(value: object) -> list[float]:
    """A JSON list of finite numbers; empty if anything in it is something else."""
    found = numbers(value)
    kept = [one for one in found if one is not None]
    return kept if len(kept) == len(found) else []


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object; empty for anything else."""
    return value if isinstance(value, dict) else {}


def records(value: object) -> list[Mapping[str, Any]]:
    """The objects in a JSON list; empty for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def shape_text(value: object) -> str:
    """A stored shape for people; a dash for what is not a list.

    Examples:
        >>> shape_text([400, 784]), shape_text(None)
        ('400 × 784', '–')
    """
    return " × ".join(str(side) for side in value) if isinstance(value, list) else "–"


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and its standard error if there are at least two values.

    Examples:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
        >>> mean_and_error([5.0])
        (5.0, None)
    """
    count = len(values)
    mean = sum(values) / count
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
    return text.lstrip("-") if not any(digit in text for digit in "123456789") else text


def short(value: float, significant: int = 4) -> str:
    """A number on its own, with a few significant digits.

    Examples:
        >>> short(0.0012345), short(1234.5), short(3.0), short(12345678.0)
        ('0.001234', '1,234', '3', '12,345,678')
    """
    if not math.isfinite(value) or abs(value) >= 1e10:
        return fixed(value, 0)
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.{significant - 1}g}"
    decimals = max(0, _decimals(abs(value), significant)) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

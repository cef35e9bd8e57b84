"""What numbers that users give are: Python's and NumPy's alike, but not True and False."""

from numbers import Integral, Real
from typing import Any


def is_number(value: Any) -> bool:
    """Whether it is a real number.

    Examples:
        >>> is_number(0.5), is_number(True), is_number("0.5")
        (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any, least: int | None = None) -> bool:
    """Whether it is a whole number, and at least so much.

    Examples:
        >>> is_whole(3, 1), is_whole(0, 1), is_whole(2.0), is_whole(True)
        (True, False, False, False)
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and (least is None or int(value) >= least)

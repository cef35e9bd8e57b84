"""Checks of what users give, and words for the errors that refuse it."""

import difflib
import fnmatch
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, get_args


def is_number(value: Any) -> bool:
    """Whether it is a real number.

    Examples:
        >>> is_number(0.5), is_number(True), is_number("0.5")
        (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any, least: int | None = None) -> bool:
    """Whether it is a whole number, at least `least`.

    Examples:
        >>> is_whole(3, 1), is_whole(0, 1), is_whole(2.0), is_whole(True)
        (True, False, False, False)
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and (least is None or int(value) >= least)


def at_least_one(**counts: int | None) -> None:
    """Refuse counts below 1; None is left to the default."""
    for name, value in counts.items():
        if value is not None and not is_whole(value, 1):
            raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")


def between(low: float, high: float, **numbers: Any) -> None:
    """Refuse what is no number above one bound and below the other."""
    for name, value in numbers.items():
        if not (is_number(value) and low < value < high):
            bounds = f"above {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise ValueError(f"{name}={value!r}: must be a number {bounds}")


def one_of(**asked: tuple[Any, Any]) -> None:
    """Refuse a value, given by its name, that is none of a `Literal` type's."""
    for name, (value, known) in asked.items():
        if value not in get_args(known):
            raise ValueError(f"{name}={value!r}: {near_misses(str(value), get_args(known))}")


def near_misses(asked: str, known: Iterable[str]) -> str:
    """A sentence naming what is closest to `asked`, or everything there is if nothing is close.

    Examples:
        >>> near_misses("encodr", ["encoder", "head"])
        "did you mean 'encoder'?"
    """
    known = sorted(set(known))
    close = difflib.get_close_matches(asked, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, known[:12])) + (", ..." if len(known) > 12 else "")
    return f"there is: {shown}" if known else "there is nothing to choose from"


def described(*tensors: Any) -> str:
    """Types and shapes of tensors.

    Examples:
        >>> import torch
        >>> described(torch.zeros(2, 3), torch.ones(4).long())
        'float32 (2, 3), int64 (4,)'
    """
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in tensors
    )


def first_line(error: BaseException) -> str:
    """Kind and first line of an error, for use in another message.

    Examples:
        >>> first_line(ValueError("too long"))
        'ValueError: too long'
    """
    return f"{type(error).__name__}: {error}".splitlines()[0]


def matches(pattern: str, name: str) -> bool:
    """Whether a glob matches a dotted name or one of the containers around it.

    Examples:
        >>> matches("encoder", "encoder.0.weight"), matches("*.bias", "0.bias"), matches("0", "10")
        (True, True, False)
    """
    parts = name.split(".") if name else []
    around = (".".join(parts[:depth]) for depth in range(len(parts) + 1))
    return any(fnmatch.fnmatchcase(outer, pattern) for outer in around)

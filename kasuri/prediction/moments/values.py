"""What is carried through a graph: a mean and a variance per number, or a mean alone."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Gauss:
    """Independent normal numbers.

    Args:
        mean: their means.
        variance: their variances, shaped like the mean; None where they are not known.
    """

    mean: Tensor
    variance: Tensor | None


def mean_of(value: Any) -> Any:
    """The mean of a Gauss, also inside lists; anything else as it is."""
    if isinstance(value, Gauss):
        return value.mean
    if isinstance(value, list | tuple):
        return type(value)(mean_of(one) for one in value)
    return value


def variance_of(value: Any) -> Any:
    """The variance of a Gauss, also inside lists; None for what is certain."""
    if isinstance(value, Gauss):
        return value.variance
    if isinstance(value, list | tuple):
        return type(value)(variance_of(one) for one in value)
    return value if not isinstance(value, Tensor) else None


def is_random(value: Any) -> bool:
    """Whether a variance is known for it, or for something inside it."""
    if isinstance(value, list | tuple):
        return any(is_random(one) for one in value)
    return isinstance(value, Gauss) and value.variance is not None

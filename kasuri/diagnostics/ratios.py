"""The signal-to-noise ratio of a number of gradients, as pure functions.

Variances are the unbiased ones (divided by n - 1 for n gradients). With them, gradients that are
pure normal noise have a mean ratio E[g]²/Var[g] of (n - 1)/(n(n - 3)), 0.129 for n = 10: the
floor under every reading.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Moments:
    """Running mean and sum of squared deviations, updated without cancellation (Welford)."""

    def __init__(self, mean: Tensor, squares: Tensor, count: int) -> None:
        self.mean, self.squares, self.count = mean, squares, count

    @classmethod
    def of(cls, first: Tensor) -> "Moments":
        """Those of a single value."""
        return cls(first, torch.zeros_like(first), 1)

    def add(self, value: Tensor) -> None:
        """Take in one more value."""
        self.mean, self.squares = self.mean.to(value.device), self.squares.to(value.device)
        self.count += 1
        difference = value - self.mean
        self.mean = self.mean + difference / self.count
        # equal values leave exactly 0 here, which is how constant gradients are told apart
        self.squares = self.squares + difference * (value - self.mean)

    @property
    def variance(self) -> Tensor:
        """Unbiased."""
        return self.squares / (self.count - 1)


class Definition(NamedTuple):
    """What of a gradient is averaged (g or g²), and which ratio of moments is the result."""

    squared: bool
    ratio: Callable[[Moments], Tensor]


DEFINITIONS: dict[str, Definition] = {
    "standard": Definition(False, lambda m: m.mean.square() / m.variance),
    "second_moment": Definition(
        False, lambda m: (m.mean.square() + m.squares / m.count) / m.variance
    ),
    "as_printed": Definition(True, lambda m: m.mean / m.variance),
}


def snr(gradients: Tensor, definition: str = "standard") -> Tensor:
    """Signal-to-noise ratio of each element over the first dimension; NaN where nothing varies.

    Args:
        gradients: (window, ...), at least two.
        definition: "standard" E[g]²/Var[g]; "second_moment" E[g²]/Var[g], which is about one more;
            "as_printed" E[g²]/Var[g²], for comparison with a table that gives it: it changes when
            the loss is multiplied by a number. Var is unbiased.

    Examples:
        >>> snr(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
        tensor([2., nan], dtype=torch.float64)
    """
    kind = definition_of("snr", definition)
    if gradients.dim() < 1 or len(gradients) < 2:
        raise ValueError(
            f"snr of gradients of shape {tuple(gradients.shape)}: the first dimension is the window, "
            "and a variance needs at least two"
        )
    first, *rest = (value_of(one, kind) for one in gradients)
    moments = Moments.of(first)
    for value in rest:
        moments.add(value)
    return ratio_of(moments, kind)


def definition_of(task: str, definition: str) -> Definition:
    """The definition of this name; `task` is who asks, for the message."""
    if definition not in DEFINITIONS:
        known = ", ".join(map(repr, DEFINITIONS))
        raise ValueError(f"{task}(definition={definition!r}): write one of {known}")
    return DEFINITIONS[definition]


def value_of(gradient: Tensor, kind: Definition) -> Tensor:
    """What is averaged, in double precision and in memory of its own."""
    value = gradient.detach().to(torch.float64, copy=True)
    return value.square() if kind.squared else value


def ratio_of(moments: Moments, kind: Definition) -> Tensor:
    """The ratio; NaN where nothing varies."""
    return torch.where(moments.variance > 0, kind.ratio(moments), torch.nan)

"""Point estimate: all mass on one value, a degenerate posterior.

Parameters: 1 per weight. Its entropy is taken as 0, so that its "KL" is -log p(w) and training
it under an ELBO is maximum a posteriori. (Parameters left out of the conversion are not in the
objective at all, which is maximum likelihood.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.numerics.safe import sum_squares
from kasuri.posteriors.base import Family, Located, Op, Pushable, noisy_bias_output
from kasuri.posteriors.parts import entries


@dataclass(frozen=True, kw_only=True)
class Point(Family):
    """A point estimate with a prior; `scale`, `noise` and `max_scale` have no effect.

    Examples:
        >>> Point()(torch.ones(2, 2)).rsample().detach()
        tensor([[1., 1.],
                [1., 1.]])
    """

    def __call__(self, weight: Tensor) -> "PointPosterior":
        """The point at an initial weight of any shape."""
        return PointPosterior(self.initial_mean(weight))


class PointPosterior(Located, Pushable):
    """All mass at `loc`."""

    certain = True

    def __init__(self, loc: Tensor) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.loc)

    def rsample(self) -> Tensor:
        """The point."""
        return self.loc.view_as(self.loc)

    def entropy(self) -> Tensor:
        """0 by convention, see the module's docstring."""
        return self.loc.new_zeros(())

    def squared_norm(self) -> Tensor:
        """‖loc‖²."""
        return sum_squares(self.loc)

    def push(self, op: Op, x: Tensor) -> Tensor:
        """The layer at the point, with the noise of the bias only."""
        return noisy_bias_output(op, x, self.loc)

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "PointPosterior":
        """The point there."""
        return PointPosterior(entries(self.loc, rows, columns))

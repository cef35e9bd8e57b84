"""Point estimate: all mass on one value, a degenerate posterior.

Parameters: 1 per weight. Its entropy is taken as 0, so that its "KL" is -log p(w) and training
it under an ELBO is maximum a posteriori. (Parameters left out of the conversion are not in the
objective at all, which is maximum likelihood.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.numerics.safe import sum_squares
from kasuri.posteriors.base import Family, Located, Op, Pushable, noisy_output
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
        return PointPosterior(self.initial_mean(weight))


class PointPosterior(Located, Pushable):
    """All mass at `loc`."""

    certain = True

    def __init__(self, loc: Tensor) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.loc)

    def rsample(self) -> Tensor:
        return self.loc.view_as(self.loc)

    def entropy(self) -> Tensor:
        return self.loc.new_zeros(())

    def squared_norm(self) -> Tensor:
        return sum_squares(self.loc)

    def push(self, op: Op, x: Tensor) -> Tensor:
        return noisy_output(op, x, self.loc, None)

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "PointPosterior":
        return PointPosterior(entries(self.loc, rows, columns))

"""Full normal: vec(W) ~ N(vec(M), F Fᵀ) with any covariance, for small matrices.

Parameters: N(N+3)/2 for N weights. Exact: sampling, entropy, log-density, KL to any prior whose
expected log-density is exact. Not available: drawing an output without its weights, which would
take as much as drawing them anew for every example; hence `local` is refused. It is the yardstick for
structured families, and a posterior of the last layer of small networks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.numerics.safe import sum_squares
from kasuri.posteriors.base import NORMAL_ENTROPY, Located
from kasuri.posteriors.masked import Marginal
from kasuri.posteriors.mean_field import MatrixFamily
from kasuri.posteriors.parts import entries, positions
from kasuri.posteriors.sides import Side, build_side
from kasuri.streams import normal_like


@dataclass(frozen=True, kw_only=True)
class FullNormal(MatrixFamily):
    """Normal weights with any covariance, for matrices of at most `limit` weights.

    Correlations start at 0. `max_scale` bounds the marginal standard deviations softly. Each block
    has a covariance of its own. Vectors (biases) get a mean-field posterior. Use it with
    estimator="shared".

    Args:
        limit: largest number of weights; N of them take N(N+1)/2 numbers, 8 megabytes at 2,048.

    Examples:
        >>> q = FullNormal()(torch.zeros(4, 3))
        >>> sum(p.numel() for p in q.parameters()) == 12 + 12 * 13 // 2
        True
    """

    limit: int = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.limit, 1):
            raise ValueError(f"FullNormal(limit={self.limit!r}): must be a whole number, 1 or more")

    def __call__(self, weight: Tensor) -> "FullNormalPosterior":
        self.require_matrix(weight)
        size = math.prod(weight.shape[-2:])
        if size > self.limit:
            raise ValueError(
                f"FullNormal() for a matrix {'x'.join(map(str, weight.shape[-2:]))}: the covariance of "
                f"{size:,} weights takes {size * (size + 1) // 2:,} numbers, and {self.limit:,} weights are "
                f"the limit; write kasuri.MatrixNormal(), choose small layers with where=..., or write "
                f"FullNormal(limit={size})"
            )
        spread = math.sqrt(math.log1p(self.noise**2))
        deviations = (spread * weight.new_empty(*weight.shape[:-2], size).normal_()).exp()
        deviations *= self.scale / deviations.mean(-1, keepdim=True)
        side = build_side("full", deviations, self.noise, self.max_scale)
        return FullNormalPosterior(self.initial_mean(weight), side)


class FullNormalPosterior(Located, Marginal):
    """loc + F ε, reshaped; `side` holds F, over the weights of a block in row-major order."""

    def __init__(self, loc: Tensor, side: Side) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.side = side

    @property
    def variance(self) -> Tensor:
        return self.side.variances().reshape(self.shape)

    def rsample(self) -> Tensor:
        noise = normal_like(self.loc).flatten(-2).unsqueeze(-2)
        with torch.autocast(self.loc.device.type, enabled=False):
            return self.loc + self.side.spread(noise).reshape(self.shape)

    def pull(self, directions: Tensor) -> Tensor:
        """Fᵀ j, block by block."""
        return (directions.flatten(-2).unsqueeze(-2) @ self.side.factor()).flatten(1)

    def entropy_and_square(self) -> tuple[Tensor, Tensor]:
        """N/2 · log(2πe) + log|F|, and ‖M‖² + ‖F‖²."""
        logs, trace = self.side.sums()
        return logs + self.numel() * NORMAL_ENTROPY, sum_squares(self.loc) + trace.sum()

    def entropy(self) -> Tensor:
        return self.entropy_and_square()[0]

    def marginal_entropy(self, mask: Tensor) -> Tensor:
        part = self.side.marginal_log_det(mask.flatten(-2)).sum().to(self.loc.dtype)
        return part + mask.sum().to(part) * NORMAL_ENTROPY

    def squared_norm(self) -> Tensor:
        return self.entropy_and_square()[1]

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The step of F."""
        own = {key: gradients[f"side.{key}"] for key in self.side._parameters}
        return {f"side.{k}": v for k, v in self.side.natural_step(own, 1).items()}

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "FullNormalPosterior":
        """The rows of F that are left."""
        assert columns is not None
        side = self.side.part(positions(rows, columns, self.shape[-1]))
        return FullNormalPosterior(entries(self.loc, rows, columns), side)

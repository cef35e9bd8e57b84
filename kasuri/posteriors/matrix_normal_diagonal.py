"""Matrix normal plus independent noise: W = M + R X Cᵀ + √D ∘ E, covariance U ⊗ V + diag(D).

A superset of both the matrix normal (of the same sides) and the independent normal, up to the form of D.
Parameters: those of the matrix normal plus out + in (D of rank one), or one per weight (any D).
What is exact and what is a bound: `posteriors.matrix_plus_diagonal`.

Reference: Sparse Bayesian variational learning with matrix normal distributions, §5.3.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from kasuri.numerics.safe import unbounded_logs
from kasuri.posteriors.kronecker import KroneckerFamily, Structure
from kasuri.posteriors.matrix_plus_diagonal import (
    FreeDiagonalPosterior,
    MatrixNormalDiagonalPosterior,
    RankOneDiagonalPosterior,
)

FULL_UP_TO = 512


@dataclass(frozen=True, kw_only=True)
class MatrixNormalDiagonal(KroneckerFamily):
    """Weights with row and column covariances and independent noise of their own on top.

    Half of the initial variance is independent noise. `max_scale` bounds the marginal standard
    deviations √(U_ii V_jj + D_ij) softly, half the squared bound for either part. "auto" sides are
    full up to 512 and diagonal beyond: the entropy takes an eigenvalue problem of that size at
    every step. Vectors (biases) get a mean-field posterior.

    Args:
        diagonal: "rank1", D_ij = a_i b_j, with an exact entropy; or "free", any D, with a lower bound.
        rows: as in MatrixNormal.
        columns: as in MatrixNormal.
        scale: mean initial marginal standard deviation of the weights.
        noise: spread of the initial log-standard deviations of either side.
        max_scale: as in every family.
        mean: as in every family.

    Examples:
        >>> import torch
        >>> q = MatrixNormalDiagonal()(torch.zeros(6, 5))
        >>> torch.allclose(q.entropy(), q.exact_entropy(), rtol=1e-4)
        True
    """

    diagonal: str = "rank1"

    def __post_init__(self) -> None:
        """Refuse a diagonal that does not exist."""
        super().__post_init__()
        if self.diagonal not in ("rank1", "free"):
            raise ValueError(
                f'MatrixNormalDiagonal(diagonal={self.diagonal!r}): write diagonal="rank1" for an '
                'exact entropy or diagonal="free" for free variances and a bound; '
                "without a diagonal it is kasuri.MatrixNormal()"
            )

    def __call__(self, weight: Tensor) -> MatrixNormalDiagonalPosterior:
        """The posterior around an initial weight (*blocks, out, in)."""
        bound = None if self.max_scale is None else self.max_scale / math.sqrt(2)
        rows, columns = self.sides(weight, self.scale / math.sqrt(2), bound)
        logs = [side.variances().detach().log() / 2 for side in (rows, columns)]
        loc = self.initial_mean(weight)
        if self.diagonal == "rank1":
            ceiling = None if bound is None else math.sqrt(bound)
            tied = [unbounded_logs(one, ceiling) for one in logs]
            return RankOneDiagonalPosterior(loc, rows, columns, tied[0], tied[1], ceiling)
        free = unbounded_logs(logs[0].unsqueeze(-1) + logs[1].unsqueeze(-2), bound)
        return FreeDiagonalPosterior(loc, rows, columns, free, bound)

    @staticmethod
    def auto(size: int) -> Structure:
        """Full up to 512, then diagonal."""
        return "full" if size <= FULL_UP_TO else "diagonal"

"""Scaled matrix normal: W = M + S ∘ (R X Cᵀ + E), X and E independent noise, S free scales.

It contains the independent normal (no R X Cᵀ), the matrix normal (S of rank one, in the limit of
little E) and the matrix normal plus a rank-one diagonal, and everything about it is exact:
log det = 2 Σ log S + Σ_ij log(1 + λ_i μ_j), λ and μ the eigenvalues of R Rᵀ and C Cᵀ.

Parameters: 2 per weight plus those of the sides. Exact: sampling, entropy (one eigenvalue
problem a side, O(out³ + in³)), marginal variances S²(U_ii V_jj + 1). Not available: drawing an
output without its weights. The variance of W x is no longer a product of something of the input
and something of the output, so `local` is refused and `shared` is what there is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.numerics import kronecker
from kasuri.numerics.safe import held, safe_sqrt, soft_min_inverse, sum_squares
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.posteriors.kronecker import KroneckerFamily, KroneckerPosterior, Structure
from kasuri.posteriors.parts import entries
from kasuri.posteriors.sides import LOG_CEILING, Side
from kasuri.streams import normal_like

FULL_UP_TO = 512


@dataclass(frozen=True, kw_only=True)
class ScaledMatrixNormal(KroneckerFamily):
    """Free standard deviations around Kronecker correlations.

    Half of the initial variance is independent noise. "auto" sides are full up to 512 and
    diagonal beyond, since the entropy takes an eigenvalue problem of that size at every step.
    `max_scale` bounds the marginal standard deviations softly. Vectors (biases) get a mean-field
    posterior. Use it with estimator="shared".

    Args:
        rows: as in MatrixNormal.
        columns: as in MatrixNormal.
        scale: mean initial marginal standard deviation of the weights.
        noise: spread of the initial log-standard deviations.
        max_scale: as in every family.
        mean: as in every family.

    Examples:
        >>> q = ScaledMatrixNormal(scale=0.05)(torch.zeros(30, 20))
        >>> q.variance.sqrt().mean()
        tensor(0.0500, grad_fn=<MeanBackward0>)
    """

    def __call__(self, weight: Tensor) -> "ScaledMatrixNormalPosterior":
        """The posterior around an initial weight (*blocks, out, in)."""
        rows, columns = self.sides(weight, 1.0, None)
        around = rows.variances().unsqueeze(-1) * columns.variances().unsqueeze(-2)
        scale = torch.randn_like(weight, requires_grad=False).mul(self.noise).exp()
        scale *= self.scale / scale.mean((-2, -1), keepdim=True)
        if self.max_scale is not None:
            scale = soft_min_inverse(scale.clamp(max=0.99 * self.max_scale), self.max_scale)
        logs = (scale / (1 + around.detach()).sqrt()).log()
        return ScaledMatrixNormalPosterior(
            self.initial_mean(weight), rows, columns, logs, self.max_scale
        )

    @staticmethod
    def auto(size: int) -> Structure:
        """Full up to 512, then diagonal."""
        return "full" if size <= FULL_UP_TO else "diagonal"


class ScaledMatrixNormalPosterior(KroneckerPosterior):
    """loc + S ∘ (R X Cᵀ + E), S = exp(log_scale).

    Args:
        loc: (*blocks, out, in) means.
        rows: covariance R Rᵀ.
        columns: covariance C Cᵀ.
        log_scale: logarithms of S, shaped like `loc`.
        max_scale: bound of the marginal standard deviations, or None.
    """

    def __init__(
        self,
        loc: Tensor,
        rows: Side,
        columns: Side,
        log_scale: Tensor,
        max_scale: float | None = None,
    ) -> None:
        super().__init__(loc, rows, columns)
        self.log_scale = nn.Parameter(log_scale)
        self.max_scale = max_scale

    def _log_scale(self, around: Tensor | None = None) -> Tensor:
        """Log S, bounded, given the marginal variances inside the brackets if they are known."""
        logs = held(self.log_scale, LOG_CEILING)
        if self.max_scale is None:
            return logs
        around = 1 + self.kronecker_variance() if around is None else around
        return logs - torch.log1p(logs.exp() * safe_sqrt(around) / self.max_scale)

    @property
    def outer_scale(self) -> Tensor:
        """S, shaped like W."""
        return self._log_scale().exp()

    @property
    def variance(self) -> Tensor:
        """Marginal variances S² (U_ii V_jj + 1)."""
        around = 1 + self.kronecker_variance()
        return (2 * self._log_scale(around)).exp() * around

    def squared_norm(self) -> Tensor:
        """‖M‖² + Σ S² + Σ_ij U_ii S_ij² V_jj."""
        rows, columns = self.rows.variances(), self.columns.variances()
        around = None
        if self.max_scale is not None:
            around = 1 + rows.unsqueeze(-1) * columns.unsqueeze(-2)
        squares = (2 * self._log_scale(around)).exp()
        shared = (rows.unsqueeze(-2) @ squares).squeeze(-2) * columns
        return sum_squares(self.loc) + squares.sum() + shared.sum()

    def rsample(self) -> Tensor:
        """M + S ∘ (R X Cᵀ + E)."""
        inside = self.kronecker_draw() + normal_like(self.loc)
        return torch.addcmul(self.loc, self.outer_scale, inside)

    def pull(self, directions: Tensor) -> Tensor:
        """Rᵀ (S ∘ j) C and S ∘ j."""
        scaled = directions * self.outer_scale
        return torch.cat([self.kronecker_pull(scaled), scaled.flatten(1)], -1)

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """Σ log S + ½ Σ log(1 + λ_i μ_j)."""
        logs = self._log_scale()
        if rows is None or columns is None:
            spectra = self.rows.spectrum()[0], self.columns.spectrum()[0]
        else:
            logs = logs * (rows.unsqueeze(-1) & columns.unsqueeze(-2))
            spectra = self.rows.marginal_spectrum(rows), self.columns.marginal_spectrum(columns)
        shared = kronecker.log_det_plus_identity(*spectra).sum() / 2
        return logs.sum() + shared.to(self.loc.dtype)

    def entropy(self) -> Tensor:
        """N/2 · log(2πe) + Σ log S + ½ Σ log(1 + λ_i μ_j)."""
        return self.half_log_det() + self.numel() * 0.5 * (1 + LOG_TWO_PI)

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "ScaledMatrixNormalPosterior":
        """Parts of both sides and of S."""
        logs = entries(self.log_scale, rows, columns)
        return ScaledMatrixNormalPosterior(*self.cut(rows, columns), logs, self.max_scale)

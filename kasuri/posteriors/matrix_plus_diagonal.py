"""Posteriors M + R X Cᵀ + √D ∘ E: matrix normal plus independent noise.

- `RankOneDiagonalPosterior`, D_ij = a_i b_j: everything is exact. Entropy takes one eigenvalue problem
  a side, O(out³ + in³).
- `FreeDiagonalPosterior`, any D: entropy() is a lower bound, the better of two (formulas and proof in
  `numerics.kronecker`), hence the ELBO stays one. It is exact where D happens to be of rank one. Its
  gradient takes eigenvectors as constants. `exact_entropy` and `estimated_entropy` tell
  what it should be.

Exact for both: sampling, marginal variances U_ii V_jj + D_ij, local reparameterisation of linear layers.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from kasuri.numerics import kronecker
from kasuri.numerics.determinants import places
from kasuri.numerics.safe import bounded_logs, sum_squares
from kasuri.posteriors.base import LOG_TWO_PI, Op, Pushable, noisy_output
from kasuri.posteriors.kronecker import KroneckerPosterior
from kasuri.posteriors.parts import along, entries
from kasuri.posteriors.sides import LOG_CEILING, Side, Spectrum
from kasuri.streams import normal_like, seeded

DENSE_UP_TO = 4096  # weights whose covariance is formed: 128 megabytes


class MatrixNormalDiagonalPosterior(KroneckerPosterior, Pushable):
    """loc + R X Cᵀ + √D ∘ E."""

    @property
    @abstractmethod
    def extra_scale(self) -> Tensor:
        """√D, shaped like W."""

    @property
    def extra_variance(self) -> Tensor:
        """D, shaped like W."""
        return self.extra_scale.square()

    @abstractmethod
    def _noisy(self, op: Op, x: Tensor) -> Tensor:
        """The layer at the mean with the noise of D and of the bias."""

    @abstractmethod
    def _logs(self) -> Tensor:
        """Log D in float64."""

    @abstractmethod
    def _extra_total(self) -> Tensor:
        """Σ D."""

    @property
    def variance(self) -> Tensor:
        """Marginal variances U_ii V_jj + D_ij."""
        return self.kronecker_variance() + self.extra_variance

    def rsample(self) -> Tensor:
        """M + R X Cᵀ + √D ∘ E."""
        shared = self.loc + self.kronecker_draw()
        return torch.addcmul(shared, self.extra_scale, normal_like(self.loc))

    def entropy(self) -> Tensor:
        """Exact for diagonal="rank1", a lower bound for diagonal="free"."""
        return self._entropy(self.half_log_det())

    def squared_norm(self) -> Tensor:
        """‖M‖² + ‖R‖² ‖C‖² + Σ D."""
        noise = self.rows.sums()[1] * self.columns.sums()[1]
        return sum_squares(self.loc) + noise.sum() + self._extra_total()

    def exact_entropy(self) -> Tensor:
        """The entropy from the dense covariance, for small matrices."""
        outs, ins = self.shape[-2:]
        if outs * ins > DENSE_UP_TO:
            raise ValueError(
                f"exact_entropy() of a {outs}x{ins} matrix would form a covariance of "
                f"{outs * ins} x {outs * ins}; beyond {DENSE_UP_TO} weights use estimated_entropy()"
            )
        r, c = (side.factor(torch.float64) for side in (self.rows, self.columns))
        dense = torch.einsum("...ik,...jl->...ijkl", r @ r.mT, c @ c.mT)
        dense = dense.flatten(-2).flatten(-3, -2) + torch.diag_embed(self._logs().exp().flatten(-2))
        pivots = torch.linalg.cholesky(dense).diagonal(dim1=-2, dim2=-1)
        return self._entropy(pivots.log().sum().to(self.loc.dtype))

    @torch.no_grad()
    def estimated_entropy(self, probes: int = 30, steps: int = 50, seed: int = 0) -> Tensor:
        """The entropy by stochastic Lanczos quadrature, for reports on matrices of any size.

        Never below `entropy()`. Too few steps make it too low, not too high: where log D spreads by 2
        around rank one it is right to 0.01 nats per weight at a thousand; by 3, with 100 steps.

        Args:
            probes: random vectors.
            steps: of Lanczos' recurrence for each.
            seed: of the random vectors; the generators are left as they were.
        """
        (total, logs), rows, columns = self.balanced(self._logs())
        with seeded(seed):
            rest = kronecker.log_det_estimate(rows, columns, logs, probes=probes, steps=steps)
        found = self._entropy(((total + rest.sum()) / 2).to(self.loc.dtype))
        return torch.maximum(found, self.entropy())

    def push(self, op: Op, x: Tensor) -> Tensor:
        """op(x, M) + ‖x C‖ · R ε + √op(x², D) ∘ ε, and the noise of the bias."""
        y = self._noisy(op, x)
        return y + op.draw_kronecker(x, y, self.rows, self.columns)

    def push_is_cheaper(self, vectors: int) -> bool:
        """As for the matrix normal."""
        return self.kronecker_push_is_cheaper(vectors)

    def balanced(
        self,
        logs: Tensor,
        keep: tuple[Tensor | float, Tensor | float] = (1.0, 1.0),
        cut: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> tuple[tuple[Tensor, Tensor], Spectrum, Spectrum]:
        """(Σ log D, log(D / abᵀ)), spectra of U / a and of V / b, for the abᵀ closest to diagonal D.

        With masks those of what is left of U and V, and zeros; cut to indices, of these alone.
        """
        a, b = kronecker.balance(logs)
        rest = logs - a.unsqueeze(-1) - b.unsqueeze(-2)
        left, right = (-a / 2).exp() * keep[0], (-b / 2).exp() * keep[1]
        left_spectrum = self.rows.spectrum(left, cut[0])
        return (logs.sum(), rest), left_spectrum, self.columns.spectrum(right, cut[1])

    def _entropy(self, half_log_det: Tensor) -> Tensor:
        return half_log_det + self.numel() * 0.5 * (1 + LOG_TWO_PI)


class RankOneDiagonalPosterior(MatrixNormalDiagonalPosterior):
    """√D = exp(log_rows + log_columns): its entropy is exact.

    Args:
        loc: (*blocks, out, in) means.
        rows: covariance of the rows.
        columns: covariance of the columns.
        log_rows: (*blocks, out) of √D.
        log_columns: (*blocks, in) of √D.
        ceiling: bound of exp(log_rows) and of exp(log_columns), or None.
    """

    def __init__(
        self,
        loc: Tensor,
        rows: Side,
        columns: Side,
        log_rows: Tensor,
        log_columns: Tensor,
        ceiling: float | None = None,
    ) -> None:
        super().__init__(loc, rows, columns)
        self.log_rows, self.log_columns = nn.Parameter(log_rows), nn.Parameter(log_columns)
        self.ceiling = ceiling

    def _factors(self, dtype: torch.dtype) -> list[Tensor]:
        """Logarithms of both factors of √D, bounded."""
        logs = self.log_rows.to(dtype), self.log_columns.to(dtype)
        return [bounded_logs(one, LOG_CEILING, self.ceiling) for one in logs]

    @property
    def extra_scale(self) -> Tensor:
        """√D."""
        rows, columns = (logs.exp() for logs in self._factors(self.loc.dtype))
        return rows.unsqueeze(-1) * columns.unsqueeze(-2)

    def _extra_total(self) -> Tensor:
        rows, columns = ((2 * logs).exp().sum(-1) for logs in self._factors(self.loc.dtype))
        return (rows * columns).sum()

    def _logs(self) -> Tensor:
        rows, columns = self._factors(torch.float64)
        return 2 * (rows.unsqueeze(-1) + columns.unsqueeze(-2))

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """½ Σ log(1 + λ_i μ_j) + ½ Σ log D."""
        a, b = self._factors(torch.float64)
        rows = torch.ones_like(a, dtype=torch.bool) if rows is None else rows
        columns = torch.ones_like(b, dtype=torch.bool) if columns is None else columns
        left = self.rows.marginal_spectrum(rows, (-a).exp())
        right = self.columns.marginal_spectrum(columns, (-b).exp())
        shared = kronecker.log_det_plus_identity(left, right).sum() / 2
        logs = columns.sum(-1) * (a * rows).sum(-1) + rows.sum(-1) * (b * columns).sum(-1)
        return (shared + logs.sum()).to(self.loc.dtype)

    def _noisy(self, op: Op, x: Tensor) -> Tensor:
        rows, columns = self._factors(self.loc.dtype)
        return op.draw_low_rank(x, self.loc, rows.unsqueeze(-2), columns.unsqueeze(-2))

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "RankOneDiagonalPosterior":
        """Parts of both sides and of both factors of √D."""
        assert columns is not None
        logs = along(self.log_rows, rows), along(self.log_columns, columns)
        return RankOneDiagonalPosterior(*self.cut(rows, columns), *logs, self.ceiling)


class FreeDiagonalPosterior(MatrixNormalDiagonalPosterior):
    """√D = exp(log_extra), any positive matrix: its entropy is a lower bound.

    Args:
        loc: (*blocks, out, in) means.
        rows: covariance of the rows.
        columns: covariance of the columns.
        log_extra: logarithms of √D, shaped like `loc`.
        ceiling: bound of √D, or None.
    """

    def __init__(
        self,
        loc: Tensor,
        rows: Side,
        columns: Side,
        log_extra: Tensor,
        ceiling: float | None = None,
    ) -> None:
        super().__init__(loc, rows, columns)
        self.log_extra = nn.Parameter(log_extra)
        self.ceiling = ceiling

    @property
    def extra_scale(self) -> Tensor:
        """√D."""
        return bounded_logs(self.log_extra, 2 * LOG_CEILING, self.ceiling).exp()

    def _extra_total(self) -> Tensor:
        return sum_squares(self.extra_scale)

    def _logs(self) -> Tensor:
        return 2 * bounded_logs(self.log_extra.double(), 2 * LOG_CEILING, self.ceiling)

    def half_log_det(self, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
        """A lower bound; of a part that of the part alone, or, where it cannot be cut, beside like noise."""
        logs, beside = self._logs(), torch.zeros((), dtype=torch.float64)
        keep: tuple[Tensor | float, Tensor | float] = 1.0, 1.0
        cut: tuple[Tensor | None, Tensor | None] = None, None
        if rows is not None and columns is not None:
            cut = places(rows), places(columns)
            logs = logs if cut[0] is None else logs[cut[0]]
            logs = logs if cut[1] is None else logs[:, cut[1]]
            if cut[0] is None and cut[1] is None:
                keep = left, right = rows.to(logs), columns.to(logs)
                inside = left.unsqueeze(-1) * right.unsqueeze(-2)
                logs = torch.where(inside > 0, logs, kronecker.completed(logs, left, right))
                beside = (logs * (1 - inside)).sum()
        (total, rest), in_rows, in_columns = self.balanced(logs, keep, cut)
        bound = kronecker.log_det_bound(in_rows, in_columns, rest).sum()
        return ((bound + total - beside) / 2).to(self.loc.dtype)

    def _noisy(self, op: Op, x: Tensor) -> Tensor:
        return noisy_output(op, x, self.loc, op(x.square(), self.extra_variance))

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "FreeDiagonalPosterior":
        """Parts of both sides and of √D."""
        extra = entries(self.log_extra, rows, columns)
        return FreeDiagonalPosterior(*self.cut(rows, columns), extra, self.ceiling)

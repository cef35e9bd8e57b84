"""Normal distributions of latent variables: q(z | x), one for every example of a batch.

Everything follows from the factor F of the covariance F Fᵀ, as for the posteriors of weights and by
the same functions of `kasuri.numerics`: a batch of examples is to them what blocks of a weight are.

    z     = loc + F ε
    log q = -½ ‖ε‖² - ½ log det F Fᵀ - n/2 log 2π      of a draw: no system is solved
    KL    = ½ (‖F‖² + ‖loc‖² - n) - ½ log det F Fᵀ     to N(0, I)
"""

from typing import Protocol

from torch import Tensor

from kasuri.numerics import triangular
from kasuri.numerics.safe import capped_exp, held
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.streams import normal

LOG_CEILING = 10.0  # of the logarithms of factors, as for the posteriors of weights


class CovarianceFactor(Protocol):
    """F of a covariance F Fᵀ, one for every example of a batch."""

    def spread(self, vectors: Tensor) -> Tensor:
        """V Fᵀ for vectors (batch, k, n)."""

    def sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant and the trace of F Fᵀ, (batch,) each."""

    def variances(self) -> Tensor:
        """Diagonal of F Fᵀ, (batch, n)."""


class LatentNormal:
    """q(z | x) of a batch: normal, with means `loc` (batch, n) and covariances F Fᵀ."""

    def __init__(self, loc: Tensor, factor: CovarianceFactor) -> None:
        self.loc, self.factor = loc, factor

    @property
    def mean(self) -> Tensor:
        """E[z | x], (batch, n)."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Var[z | x], elementwise, (batch, n)."""
        return self.factor.variances()

    def rsample(self, samples: int | None = None) -> Tensor:
        """Reparameterised draws, (batch, n); with `samples`, (samples, batch, n)."""
        z = self._at(self._noise(samples))
        return z.squeeze(1) if samples is None else z.transpose(0, 1)

    def draw(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Draws as of `rsample` and their log q(z | x), (batch,) or (samples, batch)."""
        noise = self._noise(samples)
        constant = self.factor.sums()[0] + 0.5 * noise.shape[-1] * LOG_TWO_PI
        z, log_q = self._at(noise), -0.5 * noise.square().sum(-1) - constant.unsqueeze(-1)
        if samples is None:
            return z.squeeze(1), log_q.squeeze(1)
        return z.transpose(0, 1), log_q.transpose(0, 1)

    def kl(self) -> Tensor:
        """KL(q(z | x) ‖ N(0, I)) in nats, (batch,)."""
        logs, trace = self.factor.sums()
        return 0.5 * (trace + self.loc.square().sum(-1) - self.loc.shape[-1]) - logs

    def entropy(self) -> Tensor:
        """Differential entropy in nats, (batch,)."""
        return self.factor.sums()[0] + 0.5 * self.loc.shape[-1] * (1 + LOG_TWO_PI)

    def _noise(self, samples: int | None) -> Tensor:
        """ε, (batch, draws, n): draws of an example are neighbours, for products with its factor."""
        batch, size = self.loc.shape
        shape = (batch, 1 if samples is None else samples, size)
        return normal(shape, dtype=self.loc.dtype, device=self.loc.device)

    def _at(self, noise: Tensor) -> Tensor:
        return self.loc.unsqueeze(1) + self.factor.spread(noise)


class DiagonalFactor:
    """F = diag(exp(logs)), logs (batch, n)."""

    def __init__(self, logs: Tensor) -> None:
        self.logs = logs

    def spread(self, vectors: Tensor) -> Tensor:
        return vectors * capped_exp(self.logs, LOG_CEILING).unsqueeze(1)

    def sums(self) -> tuple[Tensor, Tensor]:
        return held(self.logs, LOG_CEILING).sum(-1), self.variances().sum(-1)

    def variances(self) -> Tensor:
        return (2 * held(self.logs, LOG_CEILING)).exp()


class TriangularFactor(DiagonalFactor):
    """F = T diag(exp(logs)), T unit lower-triangular; see `kasuri.numerics.triangular`.

    Args:
        logs: (batch, n).
        lower: T below its diagonal, n(n-1)/2 numbers each, (batch, n(n-1)/2).
    """

    def __init__(self, logs: Tensor, lower: Tensor) -> None:
        super().__init__(logs)
        self.folded = lower.reshape(len(lower), *triangular.folded_shape(logs.shape[-1]))

    def spread(self, vectors: Tensor) -> Tensor:
        return triangular.times_transposed(super().spread(vectors), self.folded)

    def sums(self) -> tuple[Tensor, Tensor]:
        return triangular.block_sums(self.folded, self.logs, LOG_CEILING)

    def variances(self) -> Tensor:
        squares = super().variances()
        return squares + triangular.weighted_squares(self.folded, squares)


class KroneckerFactor:
    """F = A ⊗ B: of Z = M + A X Bᵀ, z the rows of Z one after the other."""

    def __init__(self, rows: TriangularFactor, columns: TriangularFactor) -> None:
        self.rows, self.columns = rows, columns
        self.outs, self.ins = rows.logs.shape[-1], columns.logs.shape[-1]

    def spread(self, vectors: Tensor) -> Tensor:
        batch, draws, _ = vectors.shape
        outs, ins = self.outs, self.ins
        moved = self.columns.spread(vectors.reshape(batch, draws * outs, ins))
        across = moved.reshape(batch, draws, outs, ins).mT.reshape(batch, draws * ins, outs)
        return self.rows.spread(across).reshape(batch, draws, ins, outs).mT.flatten(2)

    def sums(self) -> tuple[Tensor, Tensor]:
        (log_rows, rows), (log_columns, columns) = self.rows.sums(), self.columns.sums()
        return self.ins * log_rows + self.outs * log_columns, rows * columns

    def variances(self) -> Tensor:
        rows, columns = self.rows.variances(), self.columns.variances()
        return (rows.unsqueeze(-1) * columns.unsqueeze(-2)).flatten(1)

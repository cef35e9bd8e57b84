"""Normal distributions of latent variables: q(z | x), one for every example of a batch.

Everything follows from the factor F of the covariance F Fᵀ, as for the posteriors of weights and by
the same functions of `kasuri.numerics`: a batch of examples is to them what blocks of a weight are.

    z     = loc + F ε
    log q = -½ ‖ε‖² - ½ log det F Fᵀ - n/2 log 2π      of a draw: no system is solved
    KL    = ½ (‖F‖² + ‖loc‖² - n) - ½ log det F Fᵀ     to N(0, I)
"""

from abc import ABC, abstractmethod

from torch import Tensor

from kasuri.numerics import low_rank, triangular
from kasuri.numerics.safe import capped_exp, held
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.posteriors.sides import LOG_CEILING
from kasuri.streams import normal


class LatentNormal(ABC):
    """q(z | x) of a batch: normal, with means `loc` (batch, n)."""

    def __init__(self, loc: Tensor) -> None:
        self.loc = loc

    @property
    def mean(self) -> Tensor:
        """E[z | x], (batch, n)."""
        return self.loc

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Var[z | x], elementwise, (batch, n)."""

    def rsample(self, samples: int | None = None) -> Tensor:
        """Reparameterised draws, (batch, n); with `samples`, (samples, batch, n)."""
        z = self._at(self._noise(samples))
        return z.squeeze(1) if samples is None else z.transpose(0, 1)

    def draw(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Draws as of `rsample` and their log q(z | x), (batch,) or (samples, batch)."""
        noise = self._noise(samples)
        constant = self._sums()[0] + 0.5 * noise.shape[-1] * LOG_TWO_PI
        z, log_q = self._at(noise), -0.5 * noise.square().sum(-1) - constant.unsqueeze(-1)
        if samples is None:
            return z.squeeze(1), log_q.squeeze(1)
        return z.transpose(0, 1), log_q.transpose(0, 1)

    def kl(self) -> Tensor:
        """KL(q(z | x) ‖ N(0, I)) in nats, (batch,)."""
        logs, trace = self._sums()
        return 0.5 * (trace + self.loc.square().sum(-1) - self.loc.shape[-1]) - logs

    def entropy(self) -> Tensor:
        """Differential entropy in nats, (batch,)."""
        return self._sums()[0] + 0.5 * self.loc.shape[-1] * (1 + LOG_TWO_PI)

    def _noise(self, samples: int | None) -> Tensor:
        """ε, (batch, draws, n): draws of an example are neighbours, for products with its factor."""
        batch, size = self.loc.shape
        shape = (batch, 1 if samples is None else samples, size)
        return normal(shape, dtype=self.loc.dtype, device=self.loc.device)

    def _at(self, noise: Tensor) -> Tensor:
        return self.loc.unsqueeze(1) + self._spread(noise)

    @abstractmethod
    def _spread(self, noise: Tensor) -> Tensor:
        """F ε for noise (batch, draws, n)."""

    @abstractmethod
    def _sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant and the trace of F Fᵀ, (batch,) each."""


class IndependentNormal(LatentNormal):
    """F = diag(exp(logs)), logs (batch, n)."""

    def __init__(self, loc: Tensor, logs: Tensor) -> None:
        super().__init__(loc)
        self.logs = logs

    @property
    def variance(self) -> Tensor:
        """Squares of the standard deviations."""
        return (2 * held(self.logs, LOG_CEILING)).exp()

    def _spread(self, noise: Tensor) -> Tensor:
        return noise * capped_exp(self.logs, LOG_CEILING).unsqueeze(1)

    def _sums(self) -> tuple[Tensor, Tensor]:
        return held(self.logs, LOG_CEILING).sum(-1), self.variance.sum(-1)


class TriangularSide:
    """F = T diag(exp(logs)), T unit lower-triangular, for every example; see `kasuri.numerics.triangular`.

    Args:
        logs: (batch, n).
        lower: T below its diagonal, n(n-1)/2 numbers each, (batch, n(n-1)/2).
    """

    def __init__(self, logs: Tensor, lower: Tensor) -> None:
        self.logs = logs
        shape = triangular.folded_shape(logs.shape[-1])
        self.folded = lower.reshape(len(lower), *shape)

    def spread(self, vectors: Tensor) -> Tensor:
        """V Fᵀ for vectors (batch, k, n)."""
        scaled = vectors * capped_exp(self.logs, LOG_CEILING).unsqueeze(1)
        return triangular.times_transposed(scaled, self.folded)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant and the trace of F Fᵀ, (batch,) each."""
        return triangular.block_sums(self.folded, self.logs, LOG_CEILING)

    def variances(self) -> Tensor:
        """Diagonal of F Fᵀ, (batch, n)."""
        squares = (2 * held(self.logs, LOG_CEILING)).exp()
        return squares + triangular.weighted_squares(self.folded, squares)


class DenseNormal(LatentNormal):
    """Any covariance: F triangular."""

    def __init__(self, loc: Tensor, side: TriangularSide) -> None:
        super().__init__(loc)
        self.side = side

    @property
    def variance(self) -> Tensor:
        """Diagonal of F Fᵀ."""
        return self.side.variances()

    def _spread(self, noise: Tensor) -> Tensor:
        return self.side.spread(noise)

    def _sums(self) -> tuple[Tensor, Tensor]:
        return self.side.sums()


class KroneckerNormal(LatentNormal):
    """Z = M + A X Bᵀ, z the rows of Z one after the other; `rows` holds A, `columns` holds B."""

    def __init__(self, loc: Tensor, rows: TriangularSide, columns: TriangularSide) -> None:
        super().__init__(loc)
        self.rows, self.columns = rows, columns

    @property
    def variance(self) -> Tensor:
        """U_ii V_jj."""
        rows, columns = self.rows.variances(), self.columns.variances()
        return (rows.unsqueeze(-1) * columns.unsqueeze(-2)).flatten(1)

    def _spread(self, noise: Tensor) -> Tensor:
        batch, draws, _ = noise.shape
        outs, ins = self.rows.logs.shape[-1], self.columns.logs.shape[-1]
        moved = self.columns.spread(noise.reshape(batch, draws * outs, ins))
        across = moved.reshape(batch, draws, outs, ins).mT.reshape(batch, draws * ins, outs)
        return self.rows.spread(across).reshape(batch, draws, ins, outs).mT.flatten(2)

    def _sums(self) -> tuple[Tensor, Tensor]:
        outs, ins = self.rows.logs.shape[-1], self.columns.logs.shape[-1]
        (log_rows, rows), (log_columns, columns) = self.rows.sums(), self.columns.sums()
        return ins * log_rows + outs * log_columns, rows * columns


class TiedNormal(LatentNormal):
    """Independent, standard deviations σ = RᵀC with logarithms (batch, k, rows), (batch, k, columns)."""

    def __init__(self, loc: Tensor, log_rows: Tensor, log_columns: Tensor) -> None:
        super().__init__(loc)
        self.log_rows, self.log_columns = log_rows, log_columns

    @property
    def variance(self) -> Tensor:
        """σ²."""
        return self._scale().square()

    def _scale(self) -> Tensor:
        return low_rank.product(self.log_rows, self.log_columns).flatten(1)

    def _spread(self, noise: Tensor) -> Tensor:
        return noise * self._scale().unsqueeze(1)

    def _sums(self) -> tuple[Tensor, Tensor]:
        factors = self.log_rows, self.log_columns
        return low_rank.block_logs(*factors), low_rank.block_squares(*factors)

"""Families of latent distributions: what the numbers that an encoder outputs mean.

| family | numbers for n = rows · columns latent variables | 20 x 2 | 3 x 3 |
|---|---|---|---|
| `DiagonalLatent(n)` | 2n | 80 | 18 |
| `MatrixNormalLatent(rows, columns)` | n + rows(rows + 1)/2 + columns(columns + 1)/2 | 253 | 21 |
| `FullLatent(n)` | n + n(n + 1)/2 | 860 | 54 |
| `KTiedLatent(rows, columns, rank)` | n + rank (rows + columns) | 62 (rank 1) | 15 |

The first n numbers are the means. All numbers 0 give N(0, I), the prior, in every family; so an encoder
whose last layer starts at 0 starts with a KL of 0. Diagonals and factors are exponentials: positive
for every output. Triangles have ones on their diagonal and are multiplied by it, as in the posteriors of
weights: their entries are regression coefficients.

Everything follows from the factor F of the covariance F Fᵀ:

    z     = loc + F ε
    log q = -½ ‖ε‖² - ½ log det F Fᵀ - n/2 log 2π      of a draw: no system is solved
    KL    = ½ (‖F‖² + ‖loc‖² - n) - ½ log det F Fᵀ     to N(0, I)

Reference: Sparse Bayesian variational learning with matrix normal distributions, section 4.3.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from kasuri.checks import at_least_one
from kasuri.numerics import triangular
from kasuri.numerics.safe import capped_exp, held
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.streams import normal

LOG_CEILING = 10.0  # of the logarithms of factors, as for the posteriors of weights


class Factor:
    """T diag(exp(logs)) of every example, logs (batch, n).

    T is unit lower-triangular, given by its n(n-1)/2 numbers below the diagonal; None leaves it out.
    """

    def __init__(self, logs: Tensor, lower: Tensor | None = None) -> None:
        self.logs, self.size = logs, logs.shape[-1]
        self.folded = None
        if lower is not None:
            self.folded = lower.reshape(len(lower), *triangular.folded_shape(self.size))

    def spread(self, vectors: Tensor) -> Tensor:
        """V Fᵀ for vectors (batch, k, n)."""
        scaled = vectors * capped_exp(self.logs, LOG_CEILING).unsqueeze(1)
        return scaled if self.folded is None else triangular.times_transposed(scaled, self.folded)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant and the trace of F Fᵀ, (batch,) each."""
        if self.folded is not None:
            return triangular.block_sums(self.folded, self.logs, LOG_CEILING)
        return held(self.logs, LOG_CEILING).sum(-1), self.variances().sum(-1)

    def variances(self) -> Tensor:
        """Diagonal of F Fᵀ, (batch, n)."""
        squares = (2 * held(self.logs, LOG_CEILING)).exp()
        if self.folded is None:
            return squares
        return squares + triangular.weighted_squares(self.folded, squares)


class LatentNormal:
    """q(z | x) of a batch: normal, with means (batch, n) and covariances F Fᵀ.

    F is one factor, or the Kronecker product of several: of A ⊗ B z holds the rows of Z = M + A X Bᵀ, one
    after the other.
    """

    def __init__(self, mean: Tensor, *factors: Factor) -> None:
        self.mean, self.factors = mean, factors

    @property
    def variance(self) -> Tensor:
        """Var[z | x], elementwise, (batch, n)."""
        first, *others = (factor.variances() for factor in self.factors)
        for other in others:
            first = (first.unsqueeze(-1) * other.unsqueeze(-2)).flatten(1)
        return first

    def rsample(self, samples: int | None = None) -> Tensor:
        """Reparameterised draws, (batch, n); with `samples`, (samples, batch, n)."""
        return self._draw(samples)[0]

    def draw(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Draws as of `rsample` and their log q(z | x), (batch,) or (samples, batch)."""
        z, noise = self._draw(samples)
        constant = self._sums()[0] + 0.5 * noise.shape[-1] * LOG_TWO_PI
        return z, -0.5 * noise.square().sum(-1) - constant

    def kl(self) -> Tensor:
        """KL(q(z | x) ‖ N(0, I)) in nats, (batch,)."""
        logs, trace = self._sums()
        return 0.5 * (trace + self.mean.square().sum(-1) - self.mean.shape[-1]) - logs

    def entropy(self) -> Tensor:
        """Differential entropy in nats, (batch,)."""
        return self._sums()[0] + 0.5 * self.mean.shape[-1] * (1 + LOG_TWO_PI)

    def _sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant and the trace of F Fᵀ, (batch,) each."""
        size = self.mean.shape[-1]
        sums = [(factor.size, *factor.sums()) for factor in self.factors]
        logs = reduce(torch.add, [logs * (size // own) for own, logs, _ in sums])
        return logs, reduce(torch.mul, [trace for *_, trace in sums])

    def _draw(self, samples: int | None) -> tuple[Tensor, Tensor]:
        batch, size = self.mean.shape
        draws = samples or 1
        noise = normal((batch, draws, size), dtype=self.mean.dtype, device=self.mean.device)
        spread = noise  # draws of an example are neighbours
        for factor in reversed(
            self.factors
        ):  # along the last dimension, which then becomes the first
            moved = factor.spread(spread.reshape(batch, -1, factor.size))
            spread = moved.reshape(batch, draws, -1, factor.size).mT
        z = self.mean.unsqueeze(1) + spread.reshape(batch, draws, size)
        z, noise = z.transpose(0, 1), noise.transpose(0, 1)
        return (z[0], noise[0]) if samples is None else (z, noise)


@dataclass(frozen=True)
class Latent(ABC):
    """A family of distributions q(z | x); called with an encoder's output, it gives them.

    A family of your own has `widths` and `factors`.
    """

    def __post_init__(self) -> None:
        at_least_one(**vars(self))

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Numbers of each part of the encoder's output: means first."""

    @abstractmethod
    def factors(self, *parts: Tensor) -> Sequence[Factor]:
        """Of the covariances, from the parts behind the means, (batch, width) each."""

    @property
    def dimensions(self) -> int:
        """Number n of latent variables: what the decoder takes."""
        return self.widths[0]

    @property
    def size(self) -> int:
        """How many numbers the encoder outputs for an example."""
        return sum(self.widths)

    def __call__(self, numbers: Tensor) -> LatentNormal:
        """q(z | x) for a batch, from the encoder's output (batch, size)."""
        if numbers.dim() != 2 or numbers.shape[1] != self.size:
            raise ValueError(
                f"{self} takes {self.size} numbers for every example, and the encoder gave an output of "
                f"shape {tuple(numbers.shape)}: end it with nn.Linear(..., latent.size)"
            )
        loc, *parts = numbers.split(self.widths, dim=1)
        return LatentNormal(loc, *self.factors(*parts))


@dataclass(frozen=True)
class DiagonalLatent(Latent):
    """Independent latent variables.

    Args:
        z: their number.

    Examples:
        >>> import torch
        >>> latent = DiagonalLatent(40)
        >>> latent.size, latent(torch.zeros(5, 80)).rsample().shape
        (80, torch.Size([5, 40]))
    """

    z: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Means and log-standard deviations."""
        return self.z, self.z

    def factors(self, *parts: Tensor) -> Sequence[Factor]:
        return [Factor(*parts)]


@dataclass(frozen=True)
class FullLatent(Latent):
    """Latent variables with any covariance.

    Args:
        z: number of latent variables.

    Examples:
        >>> FullLatent(40).size, FullLatent(9).size
        (860, 54)
    """

    z: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Means; log-diagonal and lower triangle of the factor."""
        return self.z, *_triangle(self.z)

    def factors(self, *parts: Tensor) -> Sequence[Factor]:
        return [Factor(*parts)]


@dataclass(frozen=True)
class MatrixNormalLatent(Latent):
    """Latent variables as a matrix Z = M + A X Bᵀ: rows covary as A Aᵀ, columns as B Bᵀ.

    z holds the rows of Z one after the other. Multiplying A and dividing B by the same number changes
    nothing: one of the numbers is redundant, as in the paper.

    Args:
        rows: size of A.
        columns: size of B.

    Examples:
        >>> import torch
        >>> latent = MatrixNormalLatent(20, 2)
        >>> latent.size, latent.dimensions, latent(torch.zeros(5, 253)).kl()[0]
        (253, 40, tensor(0.))
    """

    rows: int
    columns: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Means; log-diagonal and lower triangle of A; the same of B."""
        return self.rows * self.columns, *_triangle(self.rows), *_triangle(self.columns)

    def factors(self, *parts: Tensor) -> Sequence[Factor]:
        return [Factor(*parts[:2]), Factor(*parts[2:])]


@dataclass(frozen=True)
class KTiedLatent(Latent):
    """Independent latent variables whose standard deviations, as a matrix, are a rank-k product.

    With rank ≥ min(rows, columns) every matrix of standard deviations is such a product, and
    `DiagonalLatent` says the same with fewer numbers.

    Args:
        rows: of the matrix.
        columns: of the matrix; z holds the rows one after the other.
        rank: k, the number of products.

    Examples:
        >>> import torch
        >>> latent = KTiedLatent(20, 2, rank=1)
        >>> latent.size, latent(torch.zeros(5, 62)).variance.unique()
        (62, tensor([1.]))
    """

    rows: int
    columns: int
    rank: int = 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Means; logarithms of the row and of the column factors."""
        return self.rows * self.columns, self.rank * self.rows, self.rank * self.columns

    def factors(self, *parts: Tensor) -> Sequence[Factor]:
        """Of all numbers 0: k products of factors k^-½, which make 1."""
        shift = 0.5 * math.log(self.rank)
        rows, columns = (part.reshape(len(part), self.rank, -1) - shift for part in parts)
        logs = (rows.unsqueeze(-1) + columns.unsqueeze(-2)).logsumexp(1)
        return [Factor(logs.flatten(1))]


def _triangle(size: int) -> tuple[int, int]:
    """Numbers of the diagonal and below it."""
    return size, size * (size - 1) // 2

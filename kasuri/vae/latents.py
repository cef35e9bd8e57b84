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

Reference: Sparse Bayesian variational learning with matrix normal distributions, section 4.3.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from torch import Tensor

from kasuri.checks import is_whole
from kasuri.numerics import kronecker_draws
from kasuri.numerics.torch_internals import eager
from kasuri.streams import normal_like
from kasuri.vae.normals import (
    LOG_CEILING,
    CovarianceFactor,
    DiagonalFactor,
    KroneckerFactor,
    LatentNormal,
    TriangularFactor,
)


@dataclass(frozen=True)
class Latent(ABC):
    """A family of distributions q(z | x); called with an encoder's output, it gives them.

    A family of your own has `widths` and `factor`.
    """

    def __post_init__(self) -> None:
        """Refuse what is not a positive whole number."""
        for option in fields(self):
            value = getattr(self, option.name)
            if not is_whole(value, 1):
                raise ValueError(
                    f"{type(self).__name__}: {option.name} must be a whole number, at least 1, got {value!r}"
                )

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Numbers of each part of the encoder's output: means first."""

    @abstractmethod
    def factor(self, *parts: Tensor) -> CovarianceFactor:
        """F of the covariances F Fᵀ, from the parts behind the means, (batch, width) each."""

    @property
    def dimensions(self) -> int:
        """Number n of latent variables: what the decoder takes."""
        return self.widths[0]

    @property
    def sides(self) -> tuple[int, ...]:
        """Sizes of the triangular factors of a Kronecker product, if that is what the numbers are."""
        return ()

    @property
    def size(self) -> int:
        """How many numbers the encoder outputs for an example."""
        return sum(self.widths)

    def __call__(self, numbers: Tensor) -> LatentNormal:
        """q(z | x) for a batch, from the encoder's output (batch, size)."""
        self._check(numbers)
        loc, *parts = numbers.split(self.widths, dim=1)
        return LatentNormal(loc, self.factor(*parts))

    def draw_and_kl(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """A draw for each example and its KL to N(0, I), (batch, n) and (batch,): one training step's.

        The same as `rsample` and `kl` of the distributions, faster for Kronecker products.
        """
        self._check(numbers)
        if self.sides and min(self.sides) > 1 and eager():
            noise = normal_like(numbers[:, : self.dimensions])
            return kronecker_draws.draw_and_kl(numbers, noise, self.sides, LOG_CEILING)
        q = self(numbers)
        return q.rsample(), q.kl()

    def _check(self, numbers: Tensor) -> None:
        if numbers.dim() != 2 or numbers.shape[1] != self.size:
            raise ValueError(
                f"{self} takes {self.size} numbers for every example, and the encoder gave an output of "
                f"shape {tuple(numbers.shape)}: end it with nn.Linear(..., {self.size}), or "
                "latent.size instead of the number"
            )


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

    def factor(self, *parts: Tensor) -> DiagonalFactor:
        return DiagonalFactor(*parts)


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

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.z,)

    def factor(self, *parts: Tensor) -> TriangularFactor:
        return TriangularFactor(*parts)


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

    @property
    def sides(self) -> tuple[int, ...]:
        return self.rows, self.columns

    def factor(self, *parts: Tensor) -> KroneckerFactor:
        return KroneckerFactor(TriangularFactor(*parts[:2]), TriangularFactor(*parts[2:]))


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

    def factor(self, *parts: Tensor) -> DiagonalFactor:
        """Of all numbers 0: k products of factors k^-½, which make 1."""
        shift = 0.5 * math.log(self.rank)
        rows, columns = (part.reshape(len(part), self.rank, -1) - shift for part in parts)
        logs = (rows.unsqueeze(-1) + columns.unsqueeze(-2)).logsumexp(1)
        return DiagonalFactor(logs.flatten(1))


def _triangle(size: int) -> tuple[int, int]:
    """Numbers of the diagonal and below it."""
    return size, size * (size - 1) // 2

"""Sides of a matrix: the covariance F Fᵀ of its rows or of its columns, through its factor F.

A matrix normal is W = M + R X Cᵀ with independent noise X; R and C are the factors F of two sides.
Three structures, each with standard deviations d = exp(log_scale) of independent noise:

| side     | F               | numbers  | a product with F costs | ½ log det F Fᵀ               |
|----------|-----------------|----------|------------------------|------------------------------|
| full     | T diag(d)       | n(n+1)/2 | n²                     | Σ log d                      |
| low rank | diag(d) [I, L]  | n(1 + r) | n r                    | Σ log d + ½ log det(I + LᵀL) |
| diagonal | diag(d)         | n        | n                      | Σ log d                      |

T is unit lower-triangular: F is the Cholesky factor, T diag(d)² Tᵀ the covariance. Entries of T, like those
of L, are of order 1 however narrow or correlated weights are: steps mean the same everywhere.
With a ceiling, rows of F are scaled down softly so that no ‖F_i‖ exceeds it.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from kasuri.numerics import determinants, eigenvalues
from kasuri.numerics.safe import capped_exp, held, safe_sqrt
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.parts import along

Spectrum = tuple[Tensor, Tensor | None]
"""Eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n), None for the identity, in float64."""

LOG_CEILING = 10.0  # d at most e^10 on either side: variances, their products and sums fit float32


class Side(nn.Module, ABC):
    """The covariance F Fᵀ of one side of matrices, F (*blocks, n, width).

    Args:
        log_scale: (*blocks, n) logarithms of d.
        ceiling: bound of every ‖F_i‖, or None.
    """

    def __init__(self, log_scale: Tensor, ceiling: float | None) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(log_scale)
        self.ceiling = ceiling

    @property
    def size(self) -> int:
        """Length n of the side."""
        return self.log_scale.shape[-1]

    def log_scales(self) -> Tensor:
        """Logarithms of d as they are trained, where they count."""
        return self.log_scale

    def logs(self, dtype: torch.dtype | None = None) -> Tensor:
        """Logarithms of d, held at 10; the gradient ignores the bound, so that nothing gets stuck there."""
        return held(self.log_scales().to(dtype or self.log_scale.dtype), LOG_CEILING)

    def deviations(self, dtype: torch.dtype | None = None) -> Tensor:
        """Standard deviations d of the independent noise."""
        return capped_exp(self.log_scales().to(dtype or self.log_scale.dtype), LOG_CEILING)

    def reach(self) -> Tensor | None:
        """What rows of F are scaled by, (*blocks, n); None for 1."""
        return None if self.ceiling is None else _shrink(self._variances(), self.ceiling)

    def variances(self) -> Tensor:
        """Diagonal of F Fᵀ, (*blocks, n)."""
        free, reach = self._variances(), self.reach()
        return free if reach is None else free * reach.square()

    def sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant of F Fᵀ, over all blocks, and its trace, (*blocks)."""
        if self.ceiling is None:
            return self._sums()
        return self.log_det(), self.variances().sum(-1)

    def log_det(self) -> Tensor:
        """Half the log-determinant of F Fᵀ, summed over blocks."""
        total = self._log_det()
        return total if (reach := self.reach()) is None else total + reach.log().sum()

    @property
    @abstractmethod
    def structure(self) -> str | int:
        """As families name it: "full", "diagonal", or the number of common directions."""

    @abstractmethod
    def part(self, index: Tensor) -> "Side":
        """The side of some of its entries, (*blocks, n')."""

    def apart(self, mask: Tensor) -> "Side":
        """The same law where the mask (*blocks, n) is True, without the noise of the other entries."""
        return self

    def settle(self, mask: Tensor) -> None:
        """Take notice of which entries (*blocks, n) a mask leaves, after loading."""

    def marginal_log_det(self, mask: Tensor) -> Tensor:
        """That of the entries where the mask (*blocks, n) is True, (*blocks), in float64."""
        if mask.dim() == 1 and eager() and bool(mask.all()):
            return self.log_det().double()
        return determinants.marginal(self.factor(torch.float64), mask)

    def spread(self, noise: Tensor) -> Tensor:
        """Noise Fᵀ: independent noise (*blocks, k, width) made to vary like this side."""
        moved, reach = self._spread(noise), self.reach()
        return moved if reach is None else moved * reach.unsqueeze(-2)

    def pull(self, x: Tensor) -> Tensor:
        """X F for x (*blocks, k, n): ‖x F‖² is the variance of x · w, w varying like this side."""
        return self._pull(x if (reach := self.reach()) is None else x * reach.unsqueeze(-2))

    def factor(self, dtype: torch.dtype | None = None) -> Tensor:
        """F as a matrix, (*blocks, n, width); with a type, computed in it from the parameters on."""
        factor = self._factor(dtype or self.log_scale.dtype)
        if self.ceiling is None:
            return factor
        return factor * _shrink(factor.square().sum(-1, keepdim=True), self.ceiling)

    def spectrum(self, weights: Tensor | None = None, kept: Tensor | None = None) -> Spectrum:
        """That of diag(w) F Fᵀ diag(w), O(n³) unless the side is diagonal; no gradient in vectors.

        Args:
            weights: w; None for ones.
            kept: rows of F to which it is cut, and which the weights belong to; None for all.
        """
        factor = self.factor(torch.float64)
        factor = factor if kept is None else factor[kept]
        factor = factor if weights is None else factor * weights.unsqueeze(-1)
        return eigenvalues.spectrum(factor)

    def marginal_spectrum(self, mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """Eigenvalues of the entries where the mask (*blocks, n) is True, and perhaps zeros."""
        if (kept := determinants.places(mask)) is not None:
            return self.spectrum(None if weights is None else weights[kept], kept)[0]
        return self.spectrum(mask.double() if weights is None else weights * mask)[0]

    def parts(self) -> tuple[Tensor | None, Tensor | None]:
        """Vector v (*blocks, n) and G (*blocks, n, k), F Fᵀ = diag(v) + G Gᵀ; None for nothing."""
        reach, (variances, directions) = self.reach(), self._parts()
        if reach is not None and variances is not None:
            variances = variances * reach.square()
        if reach is not None and directions is not None:
            directions = directions * reach.unsqueeze(-1)
        return variances, directions

    def solve(self, z: Tensor) -> Tensor:
        """Z (F Fᵀ)⁻¹ for z (*blocks, k, n)."""
        reach = self.reach()
        if reach is None:
            return self._solve(z)
        back = 1 / reach.unsqueeze(-2)
        return self._solve(z * back) * back

    @property
    def width(self) -> int:
        """How many numbers of independent noise it takes."""
        return self.size

    @property
    @abstractmethod
    def cost(self) -> int:
        """Multiplications in a product of F with a vector."""

    @abstractmethod
    def _variances(self) -> Tensor:
        """As without underscore, but for the ceiling; so in all that follows."""

    def _sums(self) -> tuple[Tensor, Tensor]:
        return self._log_det(), self._variances().sum(-1)

    @abstractmethod
    def _log_det(self) -> Tensor: ...

    @abstractmethod
    def _spread(self, noise: Tensor) -> Tensor: ...

    @abstractmethod
    def _pull(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _factor(self, dtype: torch.dtype) -> Tensor: ...

    @abstractmethod
    def _parts(self) -> tuple[Tensor | None, Tensor | None]: ...

    @abstractmethod
    def _solve(self, z: Tensor) -> Tensor: ...


def _shrink(variances: Tensor, ceiling: float) -> Tensor:
    """What makes a standard deviation s the softly bounded 1 / (1/s + 1/ceiling)."""
    return 1 / (1 + safe_sqrt(variances) / ceiling)


class DiagonalSide(Side):
    """Independent entries: F = diag(d)."""

    structure = "diagonal"

    def part(self, index: Tensor) -> "DiagonalSide":
        """These entries."""
        return DiagonalSide(along(self.log_scale, index), self.ceiling)

    @property
    def cost(self) -> int:
        """As many."""
        return self.size

    def spectrum(self, weights: Tensor | None = None, kept: Tensor | None = None) -> Spectrum:
        """As it stands."""
        factor = self.deviations(torch.float64)
        if self.ceiling is not None:
            factor = factor / (1 + factor / self.ceiling)
        factor = factor if kept is None else factor[kept]
        return (factor if weights is None else factor * weights).square(), None

    def _variances(self) -> Tensor:
        return (2 * self.logs()).exp()

    def _log_det(self) -> Tensor:
        return self.logs().sum()

    def _spread(self, noise: Tensor) -> Tensor:
        return noise * self.deviations().unsqueeze(-2)

    def _pull(self, x: Tensor) -> Tensor:
        return self._spread(x)

    def _factor(self, dtype: torch.dtype) -> Tensor:
        return torch.diag_embed(self.deviations(dtype))

    def _parts(self) -> tuple[Tensor, None]:
        return self._variances(), None

    def _solve(self, z: Tensor) -> Tensor:
        return z * (-2 * self.logs()).exp().unsqueeze(-2)

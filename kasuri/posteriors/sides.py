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

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import product

import torch
from torch import Tensor, nn

from kasuri.numerics import covariances, triangular
from kasuri.numerics.safe import bounded_logs, held, safe_sqrt, soft_min_inverse
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.base import bounded_move
from kasuri.posteriors.parts import along

Spectrum = tuple[Tensor, Tensor | None]
"""Eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n), None for the identity, in float64."""

Structure = str | int
"""Of one side: "auto", "full", "diagonal", or the rank of common directions beside a diagonal."""

LOG_CEILING = 10.0  # d at most e^10 on either side: variances, their products and sums fit float32
LARGEST_TURN = 0.3  # Frobenius norm of K where a natural step makes F (I + K) of F
NO_NOISE = -40.0  # logarithm of a standard deviation that changes nothing it is added to


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
        return self.log_scale.shape[-1]

    @property
    def width(self) -> int:
        """How many numbers of independent noise it takes."""
        return self.size

    @property
    @abstractmethod
    def structure(self) -> str | int:
        """As families name it: "full", "diagonal", or the number of common directions."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Multiplications in a product of F with a vector."""

    def logs(self, dtype: torch.dtype | None = None) -> Tensor:
        """Logarithms of d, held at 10; the gradient ignores the bound, so that nothing gets stuck there."""
        return held(self.log_scale.to(dtype or self.log_scale.dtype), LOG_CEILING)

    def reach(self, variances: Tensor) -> Tensor | None:
        """What makes rows of such squared lengths 1 / (1/length + 1/ceiling) long; None without a ceiling."""
        return None if self.ceiling is None else 1 / (1 + safe_sqrt(variances) / self.ceiling)

    @abstractmethod
    def variances(self) -> Tensor:
        """Diagonal of F Fᵀ, (*blocks, n)."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """Half the log-determinant of F Fᵀ, summed over blocks."""

    def sums(self) -> tuple[Tensor, Tensor]:
        """Half the log-determinant of F Fᵀ, over all blocks, and its trace, (*blocks)."""
        return self.log_det(), self.variances().sum(-1)

    @abstractmethod
    def part(self, index: Tensor) -> "Side":
        """The side of some of its entries, (*blocks, n')."""

    def apart(self, mask: Tensor) -> "Side":
        """The same law where the mask (*blocks, n) is True, without the noise of the other entries."""
        return self

    def marginal_log_det(self, mask: Tensor) -> Tensor:
        """That of the entries where the mask (*blocks, n) is True, (*blocks), in float64."""
        if mask.dim() == 1 and eager() and bool(mask.all()):
            return self.log_det().double()
        return covariances.marginal_log_det(self.factor(torch.float64), mask)

    @abstractmethod
    def spread(self, noise: Tensor) -> Tensor:
        """Noise Fᵀ: independent noise (*blocks, k, width) made to vary like this side."""

    @abstractmethod
    def pull(self, x: Tensor) -> Tensor:
        """X F for x (*blocks, k, n): ‖x F‖² is the variance of x · w, w varying like this side."""

    @abstractmethod
    def factor(self, dtype: torch.dtype | None = None) -> Tensor:
        """F as a matrix, (*blocks, n, width); with a type, computed in it from the parameters on."""

    def natural_step(self, gradients: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
        """As of posteriors, if so many vectors vary like this side; none where rows have a ceiling."""
        return {} if self.ceiling is not None else self._natural_step(gradients, copies)

    @abstractmethod
    def _natural_step(self, gradients: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]: ...

    def spectrum(self, weights: Tensor | None = None) -> Spectrum:
        """That of diag(w) F Fᵀ diag(w), O(n³) unless the side is diagonal; no gradient in vectors."""
        factor = self.factor(torch.float64)
        factor = factor if weights is None else factor * weights.unsqueeze(-1)
        return covariances.spectrum(factor)

    @abstractmethod
    def parts(self) -> tuple[Tensor | None, Tensor | None]:
        """Vector v (*blocks, n) and G (*blocks, n, k), F Fᵀ = diag(v) + G Gᵀ; None for nothing."""


class DiagonalSide(Side):
    """Independent entries: F = diag(d)."""

    structure = "diagonal"

    @property
    def cost(self) -> int:
        return self.size

    def logs(self, dtype: torch.dtype | None = None) -> Tensor:
        """Bounded by the ceiling, too."""
        logs = self.log_scale.to(dtype or self.log_scale.dtype)
        return bounded_logs(logs, LOG_CEILING, self.ceiling)

    def variances(self) -> Tensor:
        return (2 * self.logs()).exp()

    def log_det(self) -> Tensor:
        return self.logs().sum()

    def part(self, index: Tensor) -> "DiagonalSide":
        return DiagonalSide(along(self.log_scale, index), self.ceiling)

    def spread(self, noise: Tensor) -> Tensor:
        return noise * self.logs().exp().unsqueeze(-2)

    def pull(self, x: Tensor) -> Tensor:
        return self.spread(x)

    def factor(self, dtype: torch.dtype | None = None) -> Tensor:
        return torch.diag_embed(self.logs(dtype).exp())

    def spectrum(self, weights: Tensor | None = None) -> Spectrum:
        factor = self.logs(torch.float64).exp()
        return (factor if weights is None else factor * weights).square(), None

    def _natural_step(self, gradients: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
        """The information about log d is 2 for each vector."""
        return {"log_scale": bounded_move(gradients["log_scale"] / (-2 * copies))}

    def parts(self) -> tuple[Tensor, None]:
        return self.variances(), None


class LowRankSide(Side):
    """Independent noise plus r common directions: F = diag(d) [I, L], loadings L (*blocks, n, r)."""

    def __init__(self, log_scale: Tensor, loadings: Tensor, ceiling: float | None = None) -> None:
        super().__init__(log_scale, ceiling)
        self.loadings = nn.Parameter(loadings)

    @property
    def structure(self) -> int:
        return self.loadings.shape[-1]

    @property
    def width(self) -> int:
        return self.size + self.structure

    @property
    def cost(self) -> int:
        return self.size * (1 + self.structure)

    def _lengths(self) -> Tensor:
        """Squared lengths of the rows of [I, L]."""
        return 1 + self.loadings.square().sum(-1)

    def logs(self, dtype: torch.dtype | None = None) -> Tensor:
        """Bounded by what the ceiling leaves to them."""
        logs = super().logs(dtype)
        reach = self.reach((2 * logs).exp() * self._lengths().to(logs.dtype))
        return logs if reach is None else logs + reach.log()

    def _capacitance(self) -> Tensor:
        """I + LᵀL (r x r), in float64: with strong loadings it is far from well conditioned."""
        loadings = self.loadings.double()
        return torch.eye(loadings.shape[-1], device=loadings.device) + loadings.mT @ loadings

    def variances(self) -> Tensor:
        return (2 * self.logs()).exp() * self._lengths()

    def log_det(self) -> Tensor:
        diagonal = torch.linalg.cholesky(self._capacitance()).diagonal(dim1=-2, dim2=-1)
        return self.logs().sum() + diagonal.log().sum().to(self.loadings.dtype)

    def part(self, index: Tensor) -> Side:
        """With the same directions, unless the full side of these entries has fewer numbers."""
        if index.shape[-1] <= 2 * self.structure + 1:
            return cut_side(self, index)
        loadings = along(self.loadings.mT, index.unsqueeze(-2)).mT.contiguous()
        return LowRankSide(along(self.log_scale, index), loadings, self.ceiling)

    def spread(self, noise: Tensor) -> Tensor:
        own, common = noise.split([self.size, self.structure], -1)
        return (own + common @ self.loadings.mT) * self.logs().exp().unsqueeze(-2)

    def pull(self, x: Tensor) -> Tensor:
        scaled = x * self.logs().exp().unsqueeze(-2)
        return torch.cat([scaled, scaled @ self.loadings], -1)

    def factor(self, dtype: torch.dtype | None = None) -> Tensor:
        scale, directions = self.logs(dtype).exp(), self.loadings.to(dtype or self.loadings.dtype)
        return torch.cat([torch.diag_embed(scale), directions * scale.unsqueeze(-1)], -1)

    def _natural_step(self, gradients: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
        """Of log d alone, by the diagonal of its information, 1 + V_ii (V⁻¹)_ii for V = I + L Lᵀ.

        The information about loadings is singular at 0, near which they start: they have no natural step.
        """
        loadings = self.loadings
        solved = torch.linalg.solve(self._capacitance(), loadings.mT.double()).mT.to(loadings.dtype)
        own = 1 + loadings.square().sum(-1)
        information = 1 + own * (1 - (loadings * solved).sum(-1))
        return {"log_scale": bounded_move(gradients["log_scale"] / (-copies * information))}

    def parts(self) -> tuple[Tensor, Tensor]:
        scale = self.logs().exp()
        return scale.square(), self.loadings * scale.unsqueeze(-1)


class FullSide(Side):
    """Any covariance: F = T diag(d), T unit lower-triangular and kept as `triangular.fold` does."""

    structure = "full"

    def __init__(self, log_scale: Tensor, lower: Tensor, ceiling: float | None = None) -> None:
        super().__init__(log_scale, ceiling)
        self.lower = nn.Parameter(lower)

    @property
    def cost(self) -> int:
        return self.size**2

    def _free_variances(self) -> Tensor:
        """Those of T diag(d), without a ceiling."""
        squares = (2 * self.logs()).exp()
        return squares + triangular.weighted_squares(self.lower, squares)

    def _reach(self) -> Tensor | None:
        return None if self.ceiling is None else self.reach(self._free_variances())

    def variances(self) -> Tensor:
        free = self._free_variances()
        reach = self.reach(free)
        return free if reach is None else free * reach.square()

    def log_det(self) -> Tensor:
        total, reach = self.logs().sum(), self._reach()
        return total if reach is None else total + reach.log().sum()

    def sums(self) -> tuple[Tensor, Tensor]:
        if self.ceiling is not None:
            return super().sums()
        logs, trace = triangular.block_sums(self.lower, self.log_scale, LOG_CEILING)
        return logs.sum(), trace

    def part(self, index: Tensor) -> Side:
        return cut_side(self, index)

    def marginal_log_det(self, mask: Tensor) -> Tensor:
        """As of every side; a sum, if what is dropped has next to no noise, as `apart` leaves it."""
        if not (eager() and torch.equal(mask, self.log_scale.detach() > NO_NOISE / 2)):
            return super().marginal_log_det(mask)
        logs, reach = self.logs(), self._reach()
        logs = logs if reach is None else logs + reach.log()
        return torch.where(mask, logs, 0.0).sum(-1, dtype=torch.float64)

    def apart(self, mask: Tensor) -> Side:
        """As of every side; what is left has a factor of its own."""
        if bool(mask.all()):
            return self
        logs = torch.where(mask, self.log_scale.detach(), NO_NOISE)
        unit = torch.eye(self.size, dtype=torch.float64, device=logs.device)
        units = unit.expand(*mask.shape, self.size).clone()
        factor = _without_ceiling(self)
        for block in product(*map(range, mask.shape[:-1])):
            kept = mask[block].nonzero().squeeze(-1)
            if len(kept):
                part, unit = _decomposed(factor[block][kept])
                logs[block][kept] = part.to(logs.dtype)
                units[block][kept.unsqueeze(-1), kept] = unit
        return FullSide(logs, triangular.fold(units).to(logs.dtype), self.ceiling)

    def spread(self, noise: Tensor) -> Tensor:
        scaled, reach = noise * self.logs().exp().unsqueeze(-2), self._reach()
        moved = triangular.times_transposed(scaled, self.lower)
        return moved if reach is None else moved * reach.unsqueeze(-2)

    def pull(self, x: Tensor) -> Tensor:
        x = x if (reach := self._reach()) is None else x * reach.unsqueeze(-2)
        return triangular.times(x, self.lower) * self.logs().exp().unsqueeze(-2)

    def factor(self, dtype: torch.dtype | None = None) -> Tensor:
        factor = triangular.unfold(self.lower, dtype) * self.logs(dtype).exp().unsqueeze(-2)
        reach = self.reach(factor.square().sum(-1, keepdim=True))
        return factor if reach is None else factor * reach

    def _natural_step(self, gradients: Mapping[str, Tensor], copies: int) -> dict[str, Tensor]:
        """F ← F (I + K), K lower-triangular: the information is 1 for each vector, 2 on its diagonal.

        K is bounded as a whole, since a step of F turns all vectors at once.
        """
        unit, deviations = triangular.unfold(self.lower), self.logs().exp()
        ratio = deviations.unsqueeze(-1) / deviations.unsqueeze(-2)
        below = triangular.unfold(gradients["lower"]).tril(-1)
        turn = (unit.mT @ below).tril(-1) * ratio / -copies
        widths = gradients["log_scale"] / (-2 * copies)
        size = (turn.square().sum((-2, -1)) + widths.square().sum(-1)).sqrt()
        share = (LARGEST_TURN / size.clamp(min=LARGEST_TURN)).unsqueeze(-1)
        lower = unit @ (turn * ratio * share.unsqueeze(-1))
        return {"log_scale": widths * share, "lower": triangular.fold(lower)}

    def parts(self) -> tuple[None, Tensor]:
        return None, self.factor()


def build_side(
    structure: Structure, deviations: Tensor, noise: float, ceiling: float | None
) -> Side:
    """A side that starts with these marginal standard deviations (*blocks, n).

    Correlations start at 0, but for the loadings of common directions: those have a saddle point at
    0, so they start at random, with squared norm noise² on average. A rank r with n ≤ 2r + 1 gives
    the full side: it is more general and has fewer numbers.
    """
    if ceiling is not None:
        deviations = soft_min_inverse(deviations.clamp(max=0.99 * ceiling), ceiling)
    *blocks, size = deviations.shape
    if structure == "diagonal" or size == 1:
        return DiagonalSide(deviations.log(), ceiling)
    if structure == "full" or (isinstance(structure, int) and size <= 2 * structure + 1):
        lower = deviations.new_zeros(*blocks, *triangular.folded_shape(size))
        return FullSide(deviations.log(), lower, ceiling)
    assert isinstance(structure, int)
    loadings = deviations.new_empty(*blocks, size, structure).normal_() * (noise / structure**0.5)
    own = deviations / (1 + loadings.square().sum(-1)).sqrt()
    return LowRankSide(own.log(), loadings, ceiling)


def cut_side(side: Side, index: Tensor) -> Side:
    """Some entries (*blocks, n') of any side as a full one; a single entry as a diagonal one."""
    logs, unit = _decomposed(along(_without_ceiling(side).mT, index.unsqueeze(-2)).mT)
    logs = logs.to(side.log_scale.dtype)
    if index.shape[-1] == 1:
        return DiagonalSide(logs, side.ceiling)
    return FullSide(logs, triangular.fold(unit).to(side.log_scale.dtype), side.ceiling)


@torch.no_grad()
def _without_ceiling(side: Side) -> Tensor:
    """F in float64, its rows not scaled down: by their own lengths they will be, in any part."""
    free = copy.copy(side)
    free.ceiling = None
    return free.factor(torch.float64)


def _decomposed(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Log d (*blocks, n) and unit lower-triangular T with T diag(d)² Tᵀ = F Fᵀ, F (*blocks, n, width)."""
    lower = torch.linalg.qr(factor.mT).R.mT  # Cholesky factor up to signs, without squaring
    scale = lower.diagonal(dim1=-2, dim2=-1)
    return scale.abs().log(), lower / scale.unsqueeze(-2)

"""A side of any covariance, by its Cholesky factor."""

from itertools import product

import torch
from torch import Tensor, is_grad_enabled, nn

from kasuri.numerics import eigenvalues, triangular
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.parts import along
from kasuri.posteriors.sides import LOG_CEILING, DiagonalSide, Side, Spectrum

NO_NOISE = -40.0  # logarithm of a standard deviation that changes nothing it is added to


class FullSide(Side):
    """Any covariance: F = T diag(d), T unit lower-triangular and kept as `triangular.fold` does.

    Args:
        log_scale: (*blocks, n) logarithms of d.
        lower: T, folded.
        ceiling: bound of every ‖F_i‖, or None.
        only: (*blocks, n) False for masked entries in whose noise the others have no part, so that the
            log-determinant of these is a sum; None for all. Files tell it by next to no noise there.
    """

    structure = "full"
    only: Tensor | None

    def __init__(
        self,
        log_scale: Tensor,
        lower: Tensor,
        ceiling: float | None = None,
        only: Tensor | None = None,
    ) -> None:
        super().__init__(log_scale, ceiling)
        self.lower = nn.Parameter(lower)
        self.register_buffer("only", only, persistent=False)

    def log_scales(self) -> Tensor:
        """Logarithms of d; next to no noise where others have no part in it."""
        if self.only is None:
            return self.log_scale
        return torch.where(self.only, self.log_scale, NO_NOISE)

    def settle(self, mask: Tensor) -> None:
        """As of every side: entries are apart if those that the mask drops have next to no noise."""
        silent = bool((self.log_scale.detach()[~mask] < NO_NOISE / 2).all())
        self.only = mask.clone() if silent and not bool(mask.all()) else None

    def marginal_log_det(self, mask: Tensor) -> Tensor:
        """As of every side; a sum, if the others have no part in what is left."""
        if self.only is None or not eager() or not torch.equal(mask, self.only):
            return super().marginal_log_det(mask)
        logs, reach = self.logs(), self.reach()
        logs = logs if reach is None else logs + reach.log()
        return torch.where(mask, logs, 0.0).sum(-1, dtype=torch.float64)

    @property
    def cost(self) -> int:
        """A square's: of a triangle three quarters are spent, and sweeps besides."""
        return self.size**2

    def spectrum(self, weights: Tensor | None = None, kept: Tensor | None = None) -> Spectrum:
        """As of every side; of all rows, if a gradient may follow and it can be, in one autograd node."""
        plain = self.ceiling is None and self.lower.dim() == 2 and kept is None
        if not (plain and eager() and is_grad_enabled()):
            return super().spectrum(weights, kept)
        logs = self.log_scales()
        return eigenvalues.triangular_spectrum(self.lower, logs, weights, LOG_CEILING)

    def _variances(self) -> Tensor:
        squares = (2 * self.logs()).exp()
        return squares + triangular.weighted_squares(self.lower, squares)

    def _sums(self) -> tuple[Tensor, Tensor]:
        return triangular.normal_sums(self.lower, self.log_scales(), LOG_CEILING)

    def _log_det(self) -> Tensor:
        return self.logs().sum()

    def _spread(self, noise: Tensor) -> Tensor:
        return triangular.times_transposed(noise * self.deviations().unsqueeze(-2), self.lower)

    def _pull(self, x: Tensor) -> Tensor:
        return triangular.times(x, self.lower) * self.deviations().unsqueeze(-2)

    def _factor(self, dtype: torch.dtype) -> Tensor:
        return triangular.unfold(self.lower.to(dtype)) * self.deviations(dtype).unsqueeze(-2)

    def _parts(self) -> tuple[None, Tensor]:
        return None, self._factor(self.log_scale.dtype)

    def _solve(self, z: Tensor) -> Tensor:
        unit = triangular.unfold(self.lower)
        white = torch.linalg.solve_triangular(
            unit.mT, z, upper=True, left=False, unitriangular=True
        )
        white = white * (-2 * self.logs()).exp().unsqueeze(-2)
        return torch.linalg.solve_triangular(
            unit, white, upper=False, left=False, unitriangular=True
        )

    def part(self, index: Tensor) -> Side:
        """Its Cholesky factor again."""
        return cut_side(self, index)

    def apart(self, mask: Tensor) -> Side:
        """As of every side: what is left has a factor of its own."""
        if bool(mask.all()):
            return self
        logs = torch.where(mask, self.log_scale.detach(), NO_NOISE)
        unit = torch.eye(self.size, dtype=torch.float64, device=logs.device)
        units = unit.expand(*mask.shape, self.size).clone()
        factor = self._factor(torch.float64).detach()
        for block in product(*map(range, mask.shape[:-1])):
            kept = mask[block].nonzero().squeeze(-1)
            if len(kept):
                part, unit = _decomposed(factor[block][kept])
                logs[block][kept] = part.to(logs.dtype)
                units[block][kept.unsqueeze(-1), kept] = unit
        return FullSide(logs, triangular.fold(units).to(logs.dtype), self.ceiling, only=mask)


def cut_side(side: Side, index: Tensor) -> Side:
    """Some entries (*blocks, n') of any side as a full one; a single entry as a diagonal one."""
    # the ceiling acts on rows of the factor by their own variance, which is the same in any part
    factor = side._factor(torch.float64).detach()
    logs, unit = _decomposed(along(factor.mT, index.unsqueeze(-2)).mT)
    logs = logs.to(side.log_scale.dtype)
    if index.shape[-1] == 1:
        return DiagonalSide(logs, side.ceiling)
    return FullSide(logs, triangular.fold(unit).to(side.log_scale.dtype), side.ceiling)


def _decomposed(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Log d (*blocks, n) and unit lower-triangular T with T diag(d)² Tᵀ = F Fᵀ, F (*blocks, n, width)."""
    lower = torch.linalg.qr(factor.mT).R.mT  # Cholesky factor up to signs, without squaring
    scale = lower.diagonal(dim1=-2, dim2=-1)
    return scale.abs().log(), lower / scale.unsqueeze(-2)

"""A side whose entries have noise of their own and share a few directions."""

import torch
from torch import Tensor, nn

from kasuri.posteriors.full_side import cut_side
from kasuri.posteriors.parts import along
from kasuri.posteriors.sides import Side


class LowRankSide(Side):
    """Independent noise plus r common directions: F = diag(d) [I, L], loadings L (*blocks, n, r)."""

    def __init__(self, log_scale: Tensor, loadings: Tensor, ceiling: float | None = None) -> None:
        super().__init__(log_scale, ceiling)
        self.loadings = nn.Parameter(loadings)

    @property
    def structure(self) -> int:
        """The number of common directions."""
        return self.loadings.shape[-1]

    def part(self, index: Tensor) -> Side:
        """With the same directions, unless the full side of these entries has fewer numbers."""
        if index.shape[-1] <= 2 * self.structure + 1:
            return cut_side(self, index)
        loadings = along(self.loadings.mT, index.unsqueeze(-2)).mT.contiguous()
        return LowRankSide(along(self.log_scale, index), loadings, self.ceiling)

    @property
    def width(self) -> int:
        """As many, and one for each direction."""
        return self.size + self.loadings.shape[-1]

    @property
    def cost(self) -> int:
        """As for 1 + r diagonals."""
        return self.size * (1 + self.loadings.shape[-1])

    def _capacitance(self) -> Tensor:
        """I + LᵀL (r x r), in float64: with strong loadings it is far from well conditioned."""
        loadings = self.loadings.double()
        return torch.eye(loadings.shape[-1], device=loadings.device) + loadings.mT @ loadings

    def _variances(self) -> Tensor:
        return (2 * self.logs()).exp() * (1 + self.loadings.square().sum(-1))

    def _log_det(self) -> Tensor:
        diagonal = torch.linalg.cholesky(self._capacitance()).diagonal(dim1=-2, dim2=-1)
        return self.logs().sum() + diagonal.log().sum().to(self.loadings.dtype)

    def _spread(self, noise: Tensor) -> Tensor:
        own, common = noise.split([self.size, self.width - self.size], -1)
        return (own + common @ self.loadings.mT) * self.deviations().unsqueeze(-2)

    def _pull(self, x: Tensor) -> Tensor:
        scaled = x * self.deviations().unsqueeze(-2)
        return torch.cat([scaled, scaled @ self.loadings], -1)

    def _factor(self, dtype: torch.dtype) -> Tensor:
        own = torch.eye(self.size, dtype=dtype, device=self.loadings.device)
        own = own.expand(*self.loadings.shape[:-1], self.size)
        return torch.cat([own, self.loadings.to(dtype)], -1) * self.deviations(dtype).unsqueeze(-1)

    def _parts(self) -> tuple[Tensor, Tensor]:
        return (2 * self.logs()).exp(), self.loadings * self.deviations().unsqueeze(-1)

    def _solve(self, z: Tensor) -> Tensor:
        back = (-self.logs()).exp().unsqueeze(-2)
        scaled = z * back
        common = (scaled @ self.loadings).mT.double()
        shared = torch.linalg.solve(self._capacitance(), common).mT.to(z.dtype)
        return (scaled - shared @ self.loadings.mT) * back

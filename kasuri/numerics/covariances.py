"""Covariances F Fᵀ given by their factors: determinants of parts, and eigenvalues, in float64.

Eigenvectors count as constants. A gradient of eigenvalues never divides by their distances, so that
coinciding ones do no harm: dλ = vᵀ d(F Fᵀ) v.
"""

import torch
from torch import Tensor

from kasuri.numerics.safe import safe_sqrt

RESOLUTION = 1e-15  # relative accuracy of eigenvalues in float64
_JITTER = 1e-13  # of a correlation matrix in float64, so that rounding cannot make it indefinite


def marginal_log_det(factor: Tensor, mask: Tensor) -> Tensor:
    """Half the log-determinant of the rows and columns of F Fᵀ where a mask is True, (*blocks).

    What the mask leaves out is made the identity: blocks may leave out different numbers.

    Args:
        factor: F (*blocks, n, width), float64.
        mask: (*blocks, n) of bool.
    """
    lengths = safe_sqrt(factor.square().sum(-1))
    units = torch.where(mask.unsqueeze(-1), factor / lengths.unsqueeze(-1), 0.0)
    whole = units @ units.mT + torch.diag_embed(torch.where(mask, _JITTER, 1.0).to(units))
    pivots = torch.linalg.cholesky(whole).diagonal(dim1=-2, dim2=-1)
    return (pivots * torch.where(mask, lengths, 1.0)).log().sum(-1)


def spectrum(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n) of F Fᵀ, F (*blocks, n, k) in float64."""
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(factor @ factor.mT)
    # as long as the roots of the eigenvalues; what is below rounding error of the largest is noise, and so
    # would be its gradient
    turned = vectors.mT @ factor
    significant = values > RESOLUTION * values.amax(-1, keepdim=True)
    return torch.where(significant, turned.square().sum(-1), 0.0), vectors

"""Determinants of parts of covariances."""

import torch
from torch import Tensor

from weft.numerics.safe import safe_sqrt

_JITTER = 1e-13  # of a correlation matrix in float64, so that rounding cannot make it indefinite


def marginal(factor: Tensor, mask: Tensor) -> Tensor:
    """Half the log-determinant of the rows and columns of F Fᵀ where a mask is True, (*blocks).

    What the mask leaves out is made the identity, so that blocks may leave out different numbers.

    Args:
        factor: F (*blocks, n, width), float64.
        mask: (*blocks, n) of bool.

    Examples:
        >>> factor = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> round(marginal(factor, torch.tensor([True, False])).exp().item(), 6)  # the root of 2²
        2.0
    """
    lengths = safe_sqrt(factor.square().sum(-1))
    kept = torch.where(mask.unsqueeze(-1), factor / lengths.unsqueeze(-1), 0.0)
    whole = kept @ kept.mT + torch.diag_embed(torch.where(mask, _JITTER, 1.0).to(kept))
    pivots = torch.linalg.cholesky(whole).diagonal(dim1=-2, dim2=-1)
    return (pivots * torch.where(mask, lengths, 1.0)).log().sum(-1)

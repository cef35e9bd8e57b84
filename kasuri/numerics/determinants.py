"""Determinants of parts of covariances."""

import torch
from torch import Tensor

from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.torch_internals import eager

_JITTER = 1e-13  # of a correlation matrix in float64, so that rounding cannot make it indefinite


def places(mask: Tensor) -> Tensor | None:
    """Where a mask (n,) is True, if a matrix may be cut to these rows instead of covering the others.

    None with blocks, which may leave out different numbers, where a program is made or transformed, whose
    shapes cannot depend on a mask, and where nothing or everything is left out.

    Examples:
        >>> places(torch.tensor([True, False, True]))
        tensor([0, 2])
        >>> places(torch.tensor([True, True]))
    """
    if mask.dim() != 1 or not eager():
        return None
    found = mask.nonzero().squeeze(-1)
    return found if 0 < len(found) < len(mask) else None


def marginal(factor: Tensor, mask: Tensor) -> Tensor:
    """Half the log-determinant of the rows and columns of F Fᵀ where a mask is True, (*blocks).

    What the mask leaves out is cut away, or made the identity: blocks may leave out different numbers.

    Args:
        factor: F (*blocks, n, width), float64.
        mask: (*blocks, n) of bool.

    Examples:
        >>> factor = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> round(marginal(factor, torch.tensor([True, False])).exp().item(), 6)  # the root of 2²
        2.0
    """
    if (kept := places(mask)) is not None:
        factor, mask = factor[kept], mask[kept]
    lengths = safe_sqrt(factor.square().sum(-1))
    units = torch.where(mask.unsqueeze(-1), factor / lengths.unsqueeze(-1), 0.0)
    whole = units @ units.mT + torch.diag_embed(torch.where(mask, _JITTER, 1.0).to(units))
    pivots = torch.linalg.cholesky(whole).diagonal(dim1=-2, dim2=-1)
    return (pivots * torch.where(mask, lengths, 1.0)).log().sum(-1)

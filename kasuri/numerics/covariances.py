"""Covariances F Fᵀ given by their factors: determinants of parts, and eigenvalues, in float64.

Eigenvectors count as constants. A gradient of eigenvalues never divides by their distances, so that
coinciding ones do no harm: dλ = vᵀ d(F Fᵀ) v, hence 2 V diag(g) Vᵀ F for a gradient g in the values. In
float32 the eigenvectors of trained covariances turn it wrong in the fourth digit (a backward error is
relative to the largest eigenvalue, and the small ones matter as much); float64 costs 1.6 times as much.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.torch_internals import eager

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


def spectrum(factor: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """Eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n) of F Fᵀ.

    Args:
        factor: F (*blocks, n, k), float64.
        precision: of what F is made from: that of the gradient.
    """
    if eager():
        both: tuple[Tensor, Tensor] = _Spectrum.apply(factor, precision)
        return both
    values, vectors = torch.linalg.eigh(factor @ factor.mT)
    return torch.where(_significant(values.detach()), values, 0.0), vectors.detach()


def _significant(values: Tensor) -> Tensor:
    """What is below rounding error of the largest is noise, and so would be its gradient."""
    return values > RESOLUTION * values.amax(-1, keepdim=True)


class _Spectrum(torch.autograd.Function):
    """Eigenvalues in float64; the gradient in the given precision, from numbers of at most 1.

    VᵀF is taken in float64: its rows are as long as the roots of the eigenvalues, and the short ones count
    as much as the others.
    """

    @staticmethod
    def forward(ctx: Any, factor: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(factor @ factor.mT)
        values = torch.where(_significant(values), values, 0.0)
        turned, length = _at_most_one(vectors.mT @ factor)
        ctx.save_for_backward(turned.to(precision), vectors.to(precision), values, length)
        ctx.mark_non_differentiable(vectors)
        return values, vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        turned, vectors, values, length = ctx.saved_tensors
        slopes, steepest = _at_most_one(torch.where(values > 0, 2 * grad, 0.0))
        product = vectors @ (slopes.to(turned.dtype).unsqueeze(-1) * turned)
        return product.double().mul_(steepest * length), None


def _at_most_one(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values by the largest of their sizes, and that."""
    largest = values.abs().amax().clamp_(min=torch.finfo(values.dtype).tiny)
    return values / largest, largest

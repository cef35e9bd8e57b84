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

from kasuri.numerics.fused import scratch
from kasuri.numerics.safe import safe_sqrt
from kasuri.numerics.torch_internals import eager
from kasuri.numerics.triangular import outer, place

RESOLUTION = 1e-15  # relative accuracy of eigenvalues in float64
_JITTER = 1e-13  # of a correlation matrix in float64, so that rounding cannot make it indefinite


def places(mask: Tensor) -> Tensor | None:
    """Where a mask (n,) is True, if a matrix may be cut to these rows instead of covering the others.

    None with blocks, which may leave out different numbers, where a program is made or transformed, whose
    shapes cannot depend on a mask, and where nothing or everything is left out.
    """
    if mask.dim() != 1 or not eager():
        return None
    found = mask.nonzero().squeeze(-1)
    return found if 0 < len(found) < len(mask) else None


def marginal_log_det(factor: Tensor, mask: Tensor) -> Tensor:
    """Half the log-determinant of the rows and columns of F Fᵀ where a mask is True, (*blocks).

    What the mask leaves out is cut away, or made the identity: blocks may leave out different numbers.

    Args:
        factor: F (*blocks, n, width), float64.
        mask: (*blocks, n) of bool.
    """
    if (kept := places(mask)) is not None:
        factor, mask = factor[kept], mask[kept]
    lengths = safe_sqrt(factor.square().sum(-1))
    units = torch.where(mask.unsqueeze(-1), factor / lengths.unsqueeze(-1), 0.0)
    whole = units @ units.mT + torch.diag_embed(torch.where(mask, _JITTER, 1.0).to(units))
    pivots = torch.linalg.cholesky(whole).diagonal(dim1=-2, dim2=-1)
    return (pivots * torch.where(mask, lengths, 1.0)).log().sum(-1)


def spectrum(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n) of F Fᵀ, F (*blocks, n, k) in float64."""
    values, vectors = torch.linalg.eigh(factor @ factor.mT)
    return torch.where(_significant(values.detach()), values, 0.0), vectors.detach()


def triangular_spectrum(
    folded: Tensor, logs: Tensor, weights: Tensor | None, top: float
) -> tuple[Tensor, Tensor]:
    """The same of F = diag(w) T diag(d), from what is trained, in one node; for eager mode.

    Args:
        folded: T below its diagonal (`triangular.fold`), without blocks.
        logs: (n,) log d.
        weights: (n,) w in float64, or None for ones.
        top: where log d is held; the gradient ignores it.
    """
    both: tuple[Tensor, Tensor] = _TriangularSpectrum.apply(folded, logs, weights, top)
    return both


def _significant(values: Tensor) -> Tensor:
    """What is below rounding error of the largest is noise, and so would be its gradient."""
    return values > RESOLUTION * values.amax(-1, keepdim=True)


class _TriangularSpectrum(torch.autograd.Function):
    """Eigenvalues in float64; the gradient in the type of the parameters, from numbers of at most 1.

    Ratios of w, d and λ may be beyond float32. So all are divided by their largest first, and what
    vanishes beside it would vanish in the gradient as well. VᵀF is taken in float64: its rows are
    as long as the roots of the eigenvalues, and the short ones count as much as the others.
    """

    @staticmethod
    def forward(
        ctx: Any, folded: Tensor, logs: Tensor, weights: Tensor | None, top: float
    ) -> tuple[Tensor, Tensor]:
        scale = logs.double().clamp(max=top).exp_()
        factor = place(folded, scratch("factor", scale, len(scale), len(scale))).mul_(scale)
        if weights is not None:
            factor *= weights.unsqueeze(-1)
        gram = _lower_gram(factor)
        values, vectors = torch.linalg.eigh(gram)
        values = torch.where(_significant(values), values, 0.0)
        norm = values[-1].sqrt().clamp_(min=torch.finfo(values.dtype).tiny)
        turned = torch.mm(vectors.T, factor, out=gram).div_(norm)
        dtype = torch.promote_types(folded.dtype, torch.float32)
        turned, small = turned.to(dtype, copy=True), vectors.to(dtype)
        ctx.save_for_backward(turned, small, values, norm, scale, weights)
        ctx.types = folded.dtype, logs.dtype
        ctx.mark_non_differentiable(vectors)
        return values, vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        turned, vectors, values, norm, scale, weights = ctx.saved_tensors
        size, dtype = len(scale), turned.dtype
        slopes, steepest = _at_most_one(torch.where(values > 0, 2 * grad, 0.0))
        slopes, work = slopes.to(dtype), scratch("work", turned, size, size)
        grad_logs = slopes @ torch.square(turned, out=work)
        grad_logs = grad_logs.double() * (steepest * norm.square())
        grad_weights = None
        rows = vectors * slopes
        scale, widest = _at_most_one(scale)
        length = steepest * norm * widest
        if weights is not None:
            shares = (values / norm.square()).to(dtype)
            grad_weights = torch.mul(vectors, rows, out=work) @ shares
            grad_weights = grad_weights.double() * (steepest * norm.square())
            grad_weights = torch.where(weights != 0, grad_weights / weights, 0.0)
            weights, heaviest = _at_most_one(weights)
            rows *= weights.to(dtype).unsqueeze(-1)
            length = length * heaviest
        columns = torch.mul(turned, scale.to(dtype), out=work)
        grad_folded = outer(rows.T, columns, size // 2, 1 - size % 2).double().mul_(length)
        return grad_folded.to(ctx.types[0]), grad_logs.to(ctx.types[1]), grad_weights, None


def _lower_gram(factor: Tensor) -> Tensor:
    """F Fᵀ of a lower-triangular F, below the diagonal blocks only: what `eigh` looks at."""
    half = len(factor) // 2
    gram = scratch("gram", factor, *factor.shape)
    top, left, right = factor[:half, :half], factor[half:, :half], factor[half:, half:]
    torch.mm(top, top.T, out=gram[:half, :half])
    torch.mm(left, top.T, out=gram[half:, :half])
    torch.mm(left, left.T, out=gram[half:, half:])
    gram[half:, half:].addmm_(right, right.T)
    return gram


def _at_most_one(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values by the largest of their sizes, and that."""
    largest = values.abs().amax().clamp_(min=torch.finfo(values.dtype).tiny)
    return values / largest, largest

"""Posteriors of some rows and columns: the marginal of what is left, in the same family if it is closed.

Independent, k-tied, matrix normal (all kinds) and full normal posteriors are: a marginal of theirs is one of
theirs. A radial one is closed under dropping whole vectors only; otherwise one with its means and second
moment stands in for it (`radial_parts`), or, in a single row or column, independent normal weights.
"""

import copy
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from kasuri.compression.parts import Part, along
from kasuri.compression.radial_parts import radial_part
from kasuri.numerics import triangular
from kasuri.posteriors.base import Builder, Elementwise, Family, Posterior
from kasuri.posteriors.full_normal import FullNormalPosterior
from kasuri.posteriors.k_tied import KTiedPosterior
from kasuri.posteriors.masked import Masked, MaskedPosterior, behind_mask, masked
from kasuri.posteriors.matrix_normal import (
    FreeDiagonalPosterior,
    KroneckerFamily,
    KroneckerPosterior,
    MatrixNormalPosterior,
    RankOneDiagonalPosterior,
    ScaledMatrixNormalPosterior,
)
from kasuri.posteriors.mean_field import MeanField, MeanFieldPosterior
from kasuri.posteriors.point import PointPosterior
from kasuri.posteriors.radial.family import INSTEAD, Radial
from kasuri.posteriors.radial.posterior import RadialPosterior
from kasuri.posteriors.sides import NO_NOISE, DiagonalSide, FullSide, LowRankSide, Side


def slice_posterior(q: Posterior, part: Part) -> Posterior | None:
    """The marginal over these entries in the same family, of a radial posterior what is closest to it.

    None if there is none.

    Examples:
        >>> import kasuri
        >>> q = kasuri.MeanField()(torch.arange(6.0).view(2, 3))
        >>> slice_posterior(q, Part(torch.tensor([[3, 5]]), columns=3)).mean
        Parameter containing:
        tensor([[3., 5.]], requires_grad=True)
    """
    if part.blocks is not None:
        q = _some_blocks(q, part.blocks, squeeze=part.places.dim() == 2)
        part = replace(part, blocks=None)
    if isinstance(q, MaskedPosterior):
        base = slice_posterior(q.base, part)
        mask = part.of(q.mask)
        return base if base is None or bool(mask.all()) else masked(base, mask)
    if isinstance(q, PointPosterior):
        return PointPosterior(part.of(q.loc))
    if isinstance(q, MeanFieldPosterior):
        small = MeanFieldPosterior(part.of(q.loc), part.of(q.log_scale), q.max_scale)
        small.note = q.note
        return small
    if isinstance(q, KTiedPosterior):
        sides = (
            along(q.log_rows, part.rows_left.unsqueeze(-2)),
            along(q.log_columns, part.columns_left.unsqueeze(-2)),
        )
        return KTiedPosterior(part.of(q.loc), *sides, q.max_scale)
    if isinstance(q, KroneckerPosterior):
        return _kronecker(q, part)
    if isinstance(q, FullNormalPosterior):
        return FullNormalPosterior(part.of(q.loc), _side(q.side, part.places.flatten(-2)))
    return radial_part(q, part) if isinstance(q, RadialPosterior) else None


def _some_blocks(q: Posterior, blocks: Tensor, squeeze: bool) -> Posterior:
    """A copy with these blocks only: all tensors of a posterior have blocks first."""
    new = copy.deepcopy(q)
    for tensor in (*new.parameters(), *new.buffers()):
        chosen = tensor.data[blocks]
        tensor.data = chosen.squeeze(0) if squeeze else chosen
    for module in new.modules():
        if isinstance(module, RadialPosterior):
            rest = module.shape[1:]
            module._shape = torch.Size(rest if squeeze else (len(blocks), *rest))
    return new


def independent(q: Posterior, part: Part) -> Posterior:
    """Independent normal weights with the means and variances of these entries; 0 where certain."""
    if part.blocks is not None:
        q = _some_blocks(q, part.blocks, squeeze=part.places.dim() == 2)
    mean, variance = part.of(q.mean), part.of(q.variance)
    tiny = torch.finfo(variance.dtype).tiny
    new = MeanFieldPosterior(mean, 0.5 * variance.clamp(min=tiny).log())
    if isinstance(behind_mask(q), RadialPosterior):
        new.note = INSTEAD
    random = variance > 0
    return new if bool(random.all()) else masked(new, random)


def _side(side: Side, index: Tensor) -> Side:
    """A side of some of its entries, (*blocks, n')."""
    if isinstance(side, DiagonalSide):
        return DiagonalSide(along(side.log_scale, index), side.ceiling)
    if isinstance(side, LowRankSide):
        loadings = along(side.loadings.mT, index.unsqueeze(-2)).mT.contiguous()
        if index.shape[-1] > 2 * loadings.shape[-1] + 1:
            return LowRankSide(along(side.log_scale, index), loadings, side.ceiling)
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


def set_apart(q: Posterior) -> None:
    """Let what a mask leaves of rows and columns vary without the noise of the others; the law is the same.

    Their log-determinant is a sum then, and training as fast as without a mask.
    """
    if isinstance(q, MaskedPosterior) and isinstance(q.base, KroneckerPosterior):
        q.base.rows = _apart(q.base.rows, q.mask.any(-1))
        q.base.columns = _apart(q.base.columns, q.mask.any(-2))


def _apart(side: Side, mask: Tensor) -> Side:
    if not isinstance(side, FullSide) or bool(mask.all()):
        return side
    logs = torch.where(mask, side.log_scale.detach(), NO_NOISE)
    unit = torch.eye(side.size, dtype=torch.float64, device=logs.device)
    units = unit.expand(*mask.shape, side.size).clone()
    factor = side._factor(torch.float64).detach()
    for block in product(*map(range, mask.shape[:-1])):
        kept = mask[block].nonzero().squeeze(-1)
        if len(kept):
            part, unit = _decomposed(factor[block][kept])
            logs[block][kept] = part.to(logs.dtype)
            units[block][kept.unsqueeze(-1), kept] = unit
    return FullSide(logs, triangular.fold(units).to(logs.dtype), side.ceiling, only=mask)


def _kronecker(q: KroneckerPosterior, part: Part) -> Posterior | None:
    rows, columns = _side(q.rows, part.rows_left), _side(q.columns, part.columns_left)
    loc = part.of(q.loc)
    if isinstance(q, MatrixNormalPosterior):
        return MatrixNormalPosterior(loc, rows, columns)
    if isinstance(q, RankOneDiagonalPosterior):
        logs = along(q.log_rows, part.rows_left), along(q.log_columns, part.columns_left)
        return RankOneDiagonalPosterior(loc, rows, columns, *logs, q.ceiling)
    if isinstance(q, FreeDiagonalPosterior):
        return FreeDiagonalPosterior(loc, rows, columns, part.of(q.log_extra), q.ceiling)
    if isinstance(q, ScaledMatrixNormalPosterior):
        return ScaledMatrixNormalPosterior(loc, rows, columns, part.of(q.log_scale), q.max_scale)
    return None


def family_of(q: Posterior, before: Builder) -> Builder:
    """The family that builds posteriors like this one, for files; structures that follow sizes are fixed."""
    if isinstance(q, MaskedPosterior):
        inside = before.family if isinstance(before, Masked) else before
        return Masked(family=family_of(q.base, inside))
    plain = before.family if isinstance(before, Masked) else before
    if isinstance(q, KroneckerPosterior) and isinstance(plain, KroneckerFamily):
        return replace(plain, rows=_structure(q.rows), columns=_structure(q.columns))
    if isinstance(q, MeanFieldPosterior) and q.note and isinstance(plain, Radial):
        return plain  # has normal weights for such a matrix, too
    if isinstance(q, MeanFieldPosterior) and not isinstance(plain, MeanField):
        if isinstance(plain, Family):
            return MeanField(scale=plain.scale, noise=plain.noise, max_scale=q.max_scale)
        return MeanField(max_scale=q.max_scale)
    return plain


def _structure(side: Side) -> str | int:
    if isinstance(side, LowRankSide):
        return side.loadings.shape[-1]
    return "diagonal" if isinstance(side, DiagonalSide) else "full"


def settle_mean(q: Posterior, mean: Tensor) -> None:
    """Set the means of a posterior whose means are a parameter; others keep theirs."""
    base = behind_mask(q)
    if isinstance(base, Elementwise | PointPosterior | KroneckerPosterior | FullNormalPosterior):
        base.loc.data.copy_(mean.to(base.loc))

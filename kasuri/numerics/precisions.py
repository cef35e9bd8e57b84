"""Precisions of normal priors that fit second moments best, and the KL at such precisions."""

from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.torch_internals import eager

JUMP = 10.0  # longest jump ahead, in units of the step before


def sum_half_log_ratio(loc: Tensor, scale: Tensor) -> Tensor:
    """½ Σ log(1 + loc²/scale²), exact for small ratios and finite for large ones.

    Scales below 1e-17 count as 1e-17 and ratios above 1e18 as 1e18 (in single precision), so that
    gradients do not overflow. Where both are 0 there is nothing to add.
    """
    if eager():
        return _SumHalfLogRatio.apply(loc, scale)
    return 0.5 * _ratio_of(loc, scale.clamp(min=_smallest(scale))).square().log1p().sum()


def _smallest(scale: Tensor) -> float:
    return torch.finfo(scale.dtype).tiny * 2.0**70


def _ratio_of(loc: Tensor, scale: Tensor) -> Tensor:
    most = torch.finfo(scale.dtype).max ** 0.5 / 4
    return (loc / scale).clamp(-most, most)


class _SumHalfLogRatio(torch.autograd.Function):
    """One node; the plain formula sweeps over the weights three times as often."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, scale: Tensor) -> Tensor:
        held = scale.clamp(min=_smallest(scale))
        ratio = _ratio_of(loc, held)
        squares = ratio.square()
        total = squares.log1p().sum().mul_(0.5)
        slope = (ratio / held).div_(squares.add_(1))
        ctx.save_for_backward(slope, ratio)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        slope, ratio = ctx.saved_tensors
        slope = slope * grad
        return slope, (slope * ratio).neg_()


def fitted(moments: Tensor, groups: str, sweeps: int) -> tuple[Tensor, Tensor]:
    """Precisions τ (*blocks, out, 1) and γ (*blocks, 1, in) for second moments E (*blocks, out, in).

    τ_i = |row i| / Σ_j γ_j E_ij and γ_j = |column j| / Σ_i τ_i E_ij in turns: Sinkhorn's scaling of
    E to the row and column sums of a matrix of ones. The KL is convex in the logarithms, so
    there is one optimum. Sizes count entries above 0; an empty group gets precision 1.

    Examples:
        >>> rows, columns = fitted(torch.tensor([[1.0, 2.0], [2.0, 4.0]]), "both", 3)
        >>> rows * columns
        tensor([[1.0000, 0.5000],
                [0.5000, 0.2500]])
    """
    random = (moments > 0).to(moments.dtype)
    in_row, in_column = random.sum(-1, keepdim=True), random.sum(-2, keepdim=True)
    if groups == "rows":
        return _ratio(in_row, moments.sum(-1, keepdim=True)), torch.ones_like(in_column)
    if groups == "columns":
        return torch.ones_like(in_row), _ratio(in_column, moments.sum(-2, keepdim=True))
    logs = torch.where(moments > 0, moments.clamp(min=_floor(moments)), 1.0).log()
    at = -logs.sum(-2, keepdim=True) / in_column.clamp(min=1)
    new = step = torch.zeros_like(at)
    for sweep in range(sweeps):
        rows = _ratio(in_row, moments @ at.exp().mT)
        before, last, new = step, new, _ratio(in_column, rows.mT @ moments).log()
        step = new - at
        # where some rows and columns are alive and the rest is not, plain sweeps creep along
        # one direction: the secant through the last two steps (Anderson) jumps ahead
        turn = step - before
        slope = (turn * step).sum(-1, keepdim=True) / turn.square().sum(-1, keepdim=True).clamp(
            min=_floor(turn)
        )
        at = new - slope.clamp(-JUMP, 1.0) * (new - last) if sweep else new
    return rows, new.exp()


def _floor(like: Tensor) -> float:
    """A small number whose reciprocal, times any count of weights, does not overflow."""
    return torch.finfo(like.dtype).tiny * 2.0**30


def _ratio(count: Tensor, total: Tensor) -> Tensor:
    return torch.where(count > 0, count / total.clamp(min=_floor(total)), 1.0)

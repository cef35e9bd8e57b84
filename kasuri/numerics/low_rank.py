"""Positive low-rank matrices S = Rᵀ C given by logarithms of their factors.

Factors are stored as (*blocks, k, n): the long side is contiguous, which keeps BLAS away from
the layouts in which a skinny product is ten times slower than it should be. `R` is (*blocks, k,
out), `C` is (*blocks, k, in), S is (*blocks, out, in). Every function takes logarithms and bounds
them first; the gradient ignores the bounds, so that nothing gets stuck at them.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics.fused import scratch
from kasuri.numerics.torch_internals import eager

CEILING = 15.0  # two factors of e^15 make e^30, the ceiling of `capped_exp`
SPREAD = 40.0  # e^-40 · e^-40 is still a normal float32, so no entry of S underflows to 0
BLOCK = 1 << 17  # entries of S handled at once: half a megabyte, it stays in the cache


def bounded(logs: Tensor) -> Tensor:
    """Logarithms of one factor, held to a range in which products neither over- nor underflow.

    At most 15, and at most 40 below the largest of the k values at the same position: only
    factors e^-40 times smaller than their neighbour, which add nothing, are ever moved.
    """
    relative, top = _relative(logs.detach())
    if eager() and not logs.requires_grad:  # inside transforms requires_grad tells nothing
        return relative + top
    return logs + (relative + top - logs.detach())


def _relative(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Bounded logarithms as (difference to the largest at each position, that largest)."""
    top = logs.amax(-2, keepdim=True).clamp(max=CEILING)
    return (logs - top).clamp(-SPREAD, 0.0), top


def factor(logs: Tensor) -> Tensor:
    """R or C from its logarithms."""
    return bounded(logs).exp()


def product(log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """S = RᵀC, in the factors' own precision also inside autocast."""
    with torch.autocast(log_rows.device.type, enabled=False):
        return factor(log_rows).mT @ factor(log_columns)


def square_factors(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of S∘S with K = k(k+1)/2 terms: (RᵀC)∘² = Σ_{a≤b} c_ab (r_a r_b)(c_a c_b)ᵀ.

    Returns (*blocks, K, out) and (*blocks, K, in); the coefficients 1 and 2 sit in the first.

    Examples:
        >>> r, c = torch.rand(2, 3), torch.rand(2, 5)
        >>> p, q = square_factors(r, c)
        >>> torch.allclose(p.T @ q, (r.T @ c) ** 2)
        True
    """
    if rows.shape[-2] == 1:
        return rows.square(), columns.square()
    first, second, weight = pairs(rows)
    left = rows.index_select(-2, first) * rows.index_select(-2, second) * weight
    return left, columns.index_select(-2, first) * columns.index_select(-2, second)


@lru_cache
def _pairs(rank: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    first, second = torch.triu_indices(rank, rank, device=device)
    return first, second, (2 - (first == second).to(dtype)).unsqueeze(-1)


def pairs(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices a ≤ b below k and the coefficients, 1 for a = b and 2 otherwise, as a column."""
    make = _pairs if eager() else _pairs.__wrapped__  # a cache must not hold traced tensors
    return make(rows.shape[-2], rows.dtype, rows.device)


def block_squares(log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """Σ S² of each block, (*blocks): 1ᵀ[(R Rᵀ) ∘ (C Cᵀ)]1 in O(k²(out + in)), without forming S."""
    rows, columns = factor(log_rows), factor(log_columns)
    return ((rows @ rows.mT) * (columns @ columns.mT)).sum((-2, -1))


def block_logs(log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """Σ log S of each block, (*blocks), without underflow: factors enter relative to their largest."""
    outs, ins = log_rows.shape[-1], log_columns.shape[-1]
    rows, columns = bounded(log_rows), bounded(log_columns)
    if rows.shape[-2] == 1:
        return ins * rows.sum((-2, -1)) + outs * columns.sum((-2, -1))
    top_rows = rows.amax(-2, keepdim=True).detach()
    top_columns = columns.amax(-2, keepdim=True).detach()
    relative = (rows - top_rows).exp().mT @ (columns - top_columns).exp()
    tops = ins * top_rows.sum((-2, -1)) + outs * top_columns.sum((-2, -1))
    return relative.log().sum((-2, -1)) + tops


def normal_sums(loc: Tensor, log_rows: Tensor, log_columns: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ log S, Σ (loc² + S²)): what the KL of N(loc, S²) needs, from one pass over S."""
    if eager() and log_rows.dim() == 2:
        both: tuple[Tensor, Tensor] = _NormalSums.apply(loc, log_rows, log_columns)
        return both
    squares = loc.square().sum() + block_squares(log_rows, log_columns).sum()
    return block_logs(log_rows, log_columns).sum(), squares


class _NormalSums(torch.autograd.Function):
    """Both sums with their gradients in the factors, all made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, log_rows: Tensor, log_columns: Tensor
    ) -> tuple[Tensor, Tensor]:
        outs, ins = log_rows.shape[1], log_columns.shape[1]
        relative, top = _relative(torch.cat([log_rows, log_columns], 1))
        relative = relative.exp_()
        total = ins * top[:, :outs].sum() + outs * top[:, outs:].sum()
        if len(relative) == 1:  # then the relative factors are all 1
            slopes = torch.cat(
                [torch.full_like(log_rows, ins), torch.full_like(log_columns, outs)], 1
            )
        else:
            rest, slopes = _sweep(relative, outs)
            total += rest
        factors = relative.mul_(top.exp_())
        rows, columns = factors[:, :outs], factors[:, outs:]
        gram_rows, gram_columns = rows @ rows.T, columns @ columns.T
        squares = torch.cat([gram_columns @ rows, gram_rows @ columns], 1).mul_(factors)
        ctx.save_for_backward(loc, slopes, squares)
        flat = loc.reshape(-1)
        return total, torch.dot(flat, flat).add_((gram_rows * gram_columns).sum())

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loc, slopes, squares = ctx.saved_tensors
        twice = 2 * grad_squares
        both = torch.addcmul(squares * twice, slopes, grad)
        # of their own layout: DistributedDataParallel complains about gradients that are views
        rows, columns = (
            part.clone(memory_format=torch.contiguous_format)
            for part in both.tensor_split([loc.shape[0]], 1)
        )
        return loc * twice, rows, columns


def _sweep(factors: Tensor, outs: int) -> tuple[Tensor, Tensor]:
    """Σ log RᵀC and its gradient in log [R, C], a block of rows of RᵀC at a time.

    The plain formula writes and reads the whole matrix six times and its backward multiplies
    by skinny transposes; here a block is made, used for value and gradient, and forgotten.
    """
    rows, columns = factors[:, :outs], factors[:, outs:].contiguous()
    ins = columns.shape[1]
    height = max(1, min(outs, BLOCK // ins))
    block = scratch("low_rank block", factors, height, ins)
    inverse = scratch("low_rank inverse", factors, height, ins)
    total, slopes = factors.new_zeros(()), torch.zeros_like(factors)
    tall = rows.T.contiguous()
    for start in range(0, outs, height):
        stop = min(start + height, outs)
        if stop - start < height:
            block, inverse = block[: stop - start], inverse[: stop - start]
        torch.mm(tall[start:stop], columns, out=block)
        torch.reciprocal(block, out=inverse)
        total += block.log_().sum()
        slopes[:, start:stop] = F.linear(columns, inverse)
        slopes[:, outs:].addmm_(rows[:, start:stop], inverse)
    return total, slopes.mul_(factors)

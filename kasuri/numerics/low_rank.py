"""Positive low-rank matrices S = Rᵀ C given by logarithms of their factors.

Factors are stored as (*blocks, k, n): the long side is contiguous, which keeps BLAS away from
the layouts in which a skinny product is ten times slower than it should be. `R` is (*blocks, k,
out), `C` is (*blocks, k, in), S is (*blocks, out, in). Every function takes logarithms and bounds
them first; the gradient ignores the bounds, so that nothing gets stuck at them.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.safe import held, sum_squares
from kasuri.numerics.torch_internals import eager

CEILING = 15.0  # two factors of e^15 make e^30, the ceiling of `capped_exp`
_CACHED = 1 << 16  # numbers that fit a cache beside their reciprocals
SPREAD = 40.0  # e^-40 · e^-40 is still a normal float32, so no entry of S underflows to 0


def bounded(logs: Tensor) -> Tensor:
    """Logarithms of one factor, held to a range in which products neither over- nor underflow.

    At most 15, and at most 40 below the largest of the k values at the same position: only
    factors e^-40 times smaller than their neighbour, which add nothing, are ever moved.
    """
    relative, top = _relative(logs.detach())
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
    pairs = _pairs if eager() else _pairs.__wrapped__  # a cache must not hold traced tensors
    first, second, weight = pairs(rows.shape[-2], rows.dtype, rows.device)
    left = rows.index_select(-2, first) * rows.index_select(-2, second) * weight
    return left, columns.index_select(-2, first) * columns.index_select(-2, second)


@lru_cache
def _pairs(rank: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Indices a ≤ b below k and the coefficients, 1 for a = b and 2 otherwise, as a column."""
    first, second = torch.triu_indices(rank, rank, device=device)
    return first, second, (2 - (first == second).to(dtype)).unsqueeze(-1)


def normal_sums(loc: Tensor, log_rows: Tensor, log_columns: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ log S, Σ (loc² + S²)): what the KL of N(loc, S²) needs.

    Σ S² = 1ᵀ[(R Rᵀ) ∘ (C Cᵀ)]1 takes O(k²(out + in)), without forming S.
    """
    if eager():
        both: tuple[Tensor, Tensor] = _NormalSums.apply(loc, log_rows, log_columns)
        return both
    rows, columns = factor(log_rows), factor(log_columns)
    squares = ((rows @ rows.mT) * (columns @ columns.mT)).sum()
    return sum_logs(log_rows, log_columns), sum_squares(loc) + squares


def sum_logs(log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """Σ log S, without underflow: factors enter relative to their largest."""
    outs, ins = log_rows.shape[-1], log_columns.shape[-1]
    if log_rows.shape[-2] == 1:
        return ins * held(log_rows, CEILING).sum() + outs * held(log_columns, CEILING).sum()
    rows, columns = bounded(log_rows), bounded(log_columns)
    top_rows = rows.amax(-2, keepdim=True).detach()
    top_columns = columns.amax(-2, keepdim=True).detach()
    relative = (rows - top_rows).exp().mT @ (columns - top_columns).exp()
    return relative.log().sum() + ins * top_rows.sum() + outs * top_columns.sum()


class _NormalSums(torch.autograd.Function):
    """Values and gradients in one go."""

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, log_rows: Tensor, log_columns: Tensor
    ) -> tuple[Tensor, Tensor]:
        (rows, top_rows), (columns, top_columns) = _relative(log_rows), _relative(log_columns)
        outs, ins = rows.shape[-1], columns.shape[-1]
        logs = ins * top_rows.sum() + outs * top_columns.sum()
        if rows.shape[-2] == 1:
            of_rows, of_columns = torch.full_like(rows, ins), torch.full_like(columns, outs)
        else:
            total, of_rows, of_columns = _sum_logs_and_slopes(rows.exp(), columns.exp())
            logs = logs + total
        rows, columns = rows.add_(top_rows).exp_(), columns.add_(top_columns).exp_()
        in_rows, in_columns = rows @ rows.mT, columns @ columns.mT
        flat = loc.reshape(-1)
        squares = torch.dot(flat, flat) + (in_rows * in_columns).sum()
        slopes = rows * (in_columns @ rows), columns * (in_rows @ columns)
        ctx.save_for_backward(loc, of_rows, of_columns, *slopes)
        return logs, squares

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loc, of_rows, of_columns, square_rows, square_columns = ctx.saved_tensors
        twice = 2 * grad_squares
        rows = torch.addcmul(grad * of_rows, square_rows, twice)
        return loc * twice, rows, torch.addcmul(grad * of_columns, square_columns, twice)


def _sum_logs_and_slopes(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ log RᵀC and its derivatives in log R and log C, some rows at a time: S stays in the cache."""
    total, of_rows, of_columns = rows.new_zeros(()), [], torch.zeros_like(columns)
    for some in rows.split(max(1, _CACHED // columns.shape[-1]), -1):
        product = some.mT @ columns
        inverse = product.reciprocal()
        of_rows.append(columns @ inverse.mT)
        of_columns += some @ inverse
        total = total + _sum_of_logs(product)
    return total, rows * torch.cat(of_rows, -1), columns * of_columns


def _sum_of_logs(product: Tensor) -> Tensor:
    """Σ log P in place, two numbers at a time: no P is below e^-40, so that no product underflows."""
    half = product.shape[-1] // 2
    first, second, rest = product.split([half, half, product.shape[-1] - 2 * half], -1)
    return first.mul_(second).log_().sum() + rest.log_().sum()


def noisy_linear(
    x: Tensor,
    mean: Tensor,
    logs: tuple[Tensor, Tensor],
    centre: Tensor,
    spread: Tensor,
    noise: Tensor,
) -> Tensor:
    """X Mᵀ + b + √(x² (S ∘ S)ᵀ + v) ∘ noise, in one node: a layer N(M, S²) with a bias N(b, v).

    Args:
        x: (batch, in).
        mean: M (out, in).
        logs: logarithms of the factors of S, (k, out) and (k, in).
        centre: b (out).
        spread: v (out).
        noise: (batch, out).
    """
    if torch.is_grad_enabled():
        return _NoisyLinear.apply(x, mean, *logs, centre, spread, noise)
    rows, columns = square_factors(*map(factor, logs))
    deviation = torch.addmm(spread, x.square() @ columns.mT, rows).sqrt_()
    return torch.addmm(centre, x, mean.mT).addcmul_(deviation, noise)


class _NoisyLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        log_rows: Tensor,
        log_columns: Tensor,
        centre: Tensor,
        spread: Tensor,
        noise: Tensor,
    ) -> Tensor:
        rows, columns = square_factors(factor(log_rows), factor(log_columns))
        squares = x.square()
        hidden = squares @ columns.mT
        deviation = torch.addmm(spread, hidden, rows).sqrt_()
        y = torch.addmm(centre, x, mean.mT).addcmul_(deviation, noise)
        # dy/dvariance; where the variance is 0 its own derivatives are 0 as well
        slope = noise / deviation.add_(torch.finfo(x.dtype).tiny ** 0.5).mul_(2)
        ctx.save_for_backward(x, squares, mean, rows, columns, hidden, slope)
        ctx.rank = log_rows.shape[-2]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, squares, mean, rows, columns, hidden, slope = ctx.saved_tensors
        slope = slope * grad
        of_hidden = slope @ rows.mT
        members = _members(ctx.rank, x.dtype, x.device)
        of_rows = members @ (hidden.mT @ slope).mul_(rows)
        of_columns = members @ (of_hidden.mT @ squares).mul_(columns)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.addcmul(grad @ mean, of_hidden @ columns, x, value=2)
        return of_x, grad.mT @ x, of_rows, of_columns, grad.sum(0), slope.sum(0), None


@lru_cache
def _members(rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(k, K): how often each factor is in each product of `square_factors`."""
    first, second = torch.triu_indices(rank, rank, device=device)
    ones = torch.eye(rank, dtype=dtype, device=device)
    return ones[:, first] + ones[:, second]

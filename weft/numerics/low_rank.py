"""Positive low-rank matrices S = Rᵀ C given by logarithms of their factors.

Factors are stored as (*blocks, k, n): the long side is contiguous, which keeps BLAS away from
the layouts in which a skinny product is ten times slower than it should be.
`R` is (*blocks, k, out), `C` is (*blocks, k, in), S is (*blocks, out, in).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CEILING = 15.0  # two factors of e^15 make e^30, the ceiling of `capped_exp`
SPREAD = 40.0  # e^-40 · e^-40 is still a normal float32, so no entry of S underflows to 0
BLOCK = 1 << 18  # entries of S handled at once: about a megabyte, it stays in the cache


def bounded_logs(logs: Tensor) -> Tensor:
    """Logarithms of one factor, held to a range in which products neither over- nor underflow.

    At most 15, and at most 40 below the largest of the k values at the same position: only
    factors e^-40 times smaller than their neighbour, which add nothing, are ever moved.
    """
    logs = logs.clamp(max=CEILING)
    if logs.shape[-2] == 1:
        return logs
    return torch.maximum(logs, logs.amax(-2, keepdim=True) - SPREAD)


def square_factors(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of S∘S with K = k(k+1)/2 terms: (RᵀC)∘² = Σ_{a≤b} c_ab (r_a r_b)(c_a c_b)ᵀ.

    Returns (*blocks, K, out) and (*blocks, K, in); the coefficients 1 and 2 sit in the first.

    >>> r, c = torch.rand(2, 3), torch.rand(2, 5)
    >>> p, q = square_factors(r, c)
    >>> torch.allclose(p.T @ q, (r.T @ c) ** 2)
    True
    """
    rank = rows.shape[-2]
    if rank == 1:
        return rows.square(), columns.square()
    pairs = [(a, b) for a in range(rank) for b in range(a, rank)]
    rows, columns = rows.unbind(-2), columns.unbind(-2)  # type: ignore[assignment]
    left = [rows[a] * rows[b] * (1 if a == b else 2) for a, b in pairs]
    right = [columns[a] * columns[b] for a, b in pairs]
    return torch.stack(left, -2), torch.stack(right, -2)


def sum_of_squares(rows: Tensor, columns: Tensor) -> Tensor:
    """Σ S² = 1ᵀ[(R Rᵀ) ∘ (C Cᵀ)]1 in O(k²(out + in)), without forming S.

    >>> r, c = torch.rand(2, 3), torch.rand(2, 5)
    >>> torch.allclose(sum_of_squares(r, c), (r.T @ c).square().sum())
    True
    """
    return ((rows @ rows.mT) * (columns @ columns.mT)).sum()


def sum_log(log_rows: Tensor, log_columns: Tensor) -> Tensor:
    """Σ log S, exactly: a closed form for k = 1, one fused sweep over S in blocks otherwise.

    >>> a, b = torch.randn(2, 3), torch.randn(2, 5)
    >>> torch.allclose(sum_log(a, b), (a.exp().T @ b.exp()).log().sum(), atol=1e-5)
    True
    """
    outs, ins = log_rows.shape[-1], log_columns.shape[-1]
    if log_rows.shape[-2] == 1:
        return ins * log_rows.sum() + outs * log_columns.sum()
    top_rows = log_rows.amax(-2, keepdim=True).detach()
    top_columns = log_columns.amax(-2, keepdim=True).detach()
    rows, columns = (log_rows - top_rows).exp(), (log_columns - top_columns).exp()
    if log_rows.dim() > 2 or torch.compiler.is_compiling():
        rest = (rows.mT @ columns).log().sum()
    else:
        rest = _SumLogProduct.apply(rows, columns)[0]
    return rest + ins * top_rows.sum() + outs * top_columns.sum()


class _SumLogProduct(torch.autograd.Function):
    """(Σ log RᵀC, its gradients in R and C), all from one pass over RᵀC a block at a time.

    The plain formula writes and reads the whole matrix six times and its backward multiplies
    by skinny transposes; here a block is made, used for value and gradient, and forgotten.
    """

    @staticmethod
    def forward(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outs, ins = rows.shape[1], columns.shape[1]
        height = max(1, min(outs, BLOCK // ins))
        product, inverse = rows.new_empty(height, ins), rows.new_empty(height, ins)
        total = rows.new_zeros(())
        grad_rows, grad_columns = torch.empty_like(rows), torch.zeros_like(columns)
        tall = rows.T.contiguous()
        for start in range(0, outs, height):
            part = slice(start, min(start + height, outs))
            size = part.stop - start
            block, one_over = product[:size], inverse[:size]
            torch.mm(tall[part], columns, out=block)
            torch.reciprocal(block, out=one_over)
            total += block.log_().sum()
            grad_rows[:, part] = F.linear(columns, one_over)
            grad_columns.addmm_(rows[:, part], one_over)
        return total, grad_rows, grad_columns

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        grad_rows, grad_columns = ctx.saved_tensors
        return grad * grad_rows, grad * grad_columns

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        """One application after the other: buffers written in place cannot be batched."""
        each = [
            _SumLogProduct.apply(
                *(
                    x if dim is None else x.select(dim, i)
                    for x, dim in zip(inputs, in_dims, strict=True)
                )
            )
            for i in range(info.batch_size)
        ]
        return tuple(torch.stack(parts) for parts in zip(*each, strict=True)), (0, 0, 0)

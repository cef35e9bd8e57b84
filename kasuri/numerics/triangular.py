"""Unit lower-triangular matrices T, kept as rectangles that hold nothing but their free numbers.

The n(n-1)/2 numbers below the diagonal fill a rectangle exactly: columns left of the middle keep
their place, the triangle right of the middle goes, transposed, to where the left columns
have none. Nothing above the diagonal is stored, trained or counted, unfolding takes two copies
(an index list would take ten times as long), and a product with T takes two products with
parts of the rectangle, three quarters of the arithmetic of a square.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics.safe import held
from kasuri.numerics.torch_internals import eager


def folded_shape(size: int) -> tuple[int, int]:
    """Rows and columns of the rectangle of a matrix of this size.

    Examples:
        >>> folded_shape(4), folded_shape(5)
        ((3, 2), (5, 2))
    """
    return size - 1 + size % 2, size // 2


def size_of(folded: Tensor) -> int:
    """The size of the matrix that a rectangle (*blocks, rows, columns) holds."""
    rows, columns = folded.shape[-2:]
    return 2 * columns + int(rows > 2 * columns)


def unfold(folded: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """T (*blocks, n, n) with ones on its diagonal, of another type if wanted.

    Examples:
        >>> unfold(torch.tensor([[2.0], [3.0], [4.0]]))
        tensor([[1., 0., 0.],
                [3., 1., 0.],
                [4., 2., 1.]])
    """
    return _Unfold.apply(folded, dtype) if eager() else _unfolded(folded, dtype)


def _unfolded(folded: Tensor, dtype: torch.dtype | None) -> Tensor:
    size = size_of(folded)
    half, even = size // 2, 1 - size % 2
    matrix = folded.new_zeros(*folded.shape[:-2], size, size, dtype=dtype or folded.dtype)
    matrix.diagonal(dim1=-2, dim2=-1).fill_(1)
    matrix[..., even:, :half] += folded.tril(even - 1)
    matrix[..., size - half :, half : 2 * half] += folded[..., :half, :].triu(even).mT
    return matrix


def fold(matrix: Tensor) -> Tensor:
    """The rectangle of what is below the diagonal of a matrix (*blocks, n, n).

    Examples:
        >>> T = torch.randn(7, 7).tril(-1) + torch.eye(7)
        >>> torch.equal(unfold(fold(T)), T)
        True
    """
    size = matrix.shape[-1]
    half, even = size // 2, 1 - size % 2
    folded = matrix[..., even:, :half].tril(even - 1)
    corner = matrix[..., size - half :, half : 2 * half].mT.triu(even)
    return torch.cat([folded[..., :half, :] + corner, folded[..., half:, :]], -2)


def times(x: Tensor, folded: Tensor) -> Tensor:
    """X T for x (..., n)."""
    return _Times.apply(x, folded, False) if _fusible(x, folded) else x @ unfold(folded)


def times_transposed(x: Tensor, folded: Tensor) -> Tensor:
    """X Tᵀ for x (..., n)."""
    return _Times.apply(x, folded, True) if _fusible(x, folded) else x @ unfold(folded).mT


def weighted_squares(folded: Tensor, weights: Tensor) -> Tensor:
    """Σ_j T_ij² w_j over what is below the diagonal, (*blocks, n) for weights (*blocks, n)."""
    size = weights.shape[-1]
    half, even = size // 2, 1 - size % 2
    squares = folded.square()
    left, right = squares.tril(even - 1), squares[..., :half, :].triu(even).mT
    from_left = (left @ weights[..., :half, None]).squeeze(-1)
    from_right = (right @ weights[..., half : 2 * half, None]).squeeze(-1)
    return F.pad(from_left, (even, 0)) + F.pad(from_right, (size - half, 0))


def block_sums(folded: Tensor, logs: Tensor, top: float) -> tuple[Tensor, Tensor]:
    """(Σ log d, Σ_ij T_ij² d_j²) for each block, both (*blocks).

    Half the log-determinant and the trace of T diag(d)² Tᵀ: what a KL needs, in one node.
    """
    if eager() and folded.numel():
        both: tuple[Tensor, Tensor] = _BlockSums.apply(folded, logs, top)
        return both
    logs = held(logs, top)
    squares = (2 * logs).exp()
    return logs.sum(-1), squares.sum(-1) + weighted_squares(folded, squares).sum(-1)


def _fusible(x: Tensor, folded: Tensor) -> bool:
    """As many vectors for every matrix, nothing that looks into autograd Functions."""
    alike = x.dim() == folded.dim() <= 3 and x.shape[:-2] == folded.shape[:-2]
    return alike and eager() and x.dtype == folded.dtype and folded.numel() > 0


def cut(folded: Tensor) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """Left triangle, full lower left, right triangle (transposed), n // 2, and 1 for even n."""
    rows, half = folded.shape[-2:]
    even = int(rows < 2 * half)
    top = folded[..., :half, :]
    left = top.clone().tril_(even - 1)  # in place it is quick, unlike tril and triu
    return left, folded[..., half:, :], top - left, half, even


def forwards(x: Tensor, parts: Sequence[Tensor], half: int, even: int) -> Tensor:
    """X T."""
    left, full, right = parts
    y = x.clone()
    _add(y[..., :half], x[..., even : even + half], left)
    _add(y[..., :half], x[..., even + half :], full)
    _add(y[..., half : 2 * half], x[..., -half:], right.mT)
    return y


def backwards(x: Tensor, parts: Sequence[Tensor], half: int, even: int) -> Tensor:
    """X Tᵀ."""
    left, full, right = parts
    y = x.clone()
    _add(y[..., even : even + half], x[..., :half], left.mT)
    _add(y[..., even + half :], x[..., :half], full.mT)
    _add(y[..., -half:], x[..., half : 2 * half], right)
    return y


def _add(y: Tensor, x: Tensor, matrix: Tensor) -> None:
    """Y += X A, for one matrix or one for each block."""
    if y.dim() == 2:
        y.addmm_(x, matrix)
    else:
        y += x @ matrix  # baddbmm_ into a slice takes six times as long


def outer(rows: Tensor, columns: Tensor, half: int, even: int) -> Tensor:
    """The rectangle of rowsᵀ columns, where only what is below the diagonal is computed."""
    folded = rows[..., even:].mT @ columns[..., :half]
    corner = columns[..., half : 2 * half].mT @ rows[..., -half:]
    top = folded[..., :half, :]
    torch.lerp(corner, top, _lower(half, even, rows.dtype, rows.device), out=top)
    return folded


@lru_cache(maxsize=64)
def _lower(half: int, even: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 where the first rows of a rectangle belong to the left columns of the matrix, else 0.

    As numbers, since interpolating by 0 and 1 is exact and three times as fast as `torch.where`.
    """
    return torch.ones(half, half, dtype=dtype, device=device).tril(even - 1)


class _Unfold(torch.autograd.Function):
    """Folding is the adjoint of unfolding: nothing else is needed for the gradient."""

    @staticmethod
    def forward(ctx: Any, folded: Tensor, dtype: torch.dtype | None) -> Tensor:
        ctx.dtype = folded.dtype
        return _unfolded(folded, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return fold(grad).to(ctx.dtype), None


class _Times(torch.autograd.Function):
    """x T or, transposed, x Tᵀ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, folded: Tensor, transposed: bool) -> Tensor:
        *parts, ctx.half, ctx.even = cut(folded)
        ctx.transposed = transposed
        ctx.save_for_backward(x, *parts)
        product = backwards if transposed else forwards
        return product(x, parts, ctx.half, ctx.even)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, *parts = ctx.saved_tensors
        needs_x, needs_matrix, _ = ctx.needs_input_grad
        product = forwards if ctx.transposed else backwards
        left, right = (grad, x) if ctx.transposed else (x, grad)
        return (
            product(grad, parts, ctx.half, ctx.even) if needs_x else None,
            outer(left, right, ctx.half, ctx.even) if needs_matrix else None,
            None,
        )


class _BlockSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, folded: Tensor, logs: Tensor, top: float) -> tuple[Tensor, Tensor]:
        rows, half = folded.shape[-2:]
        ctx.even = int(rows < 2 * half)
        logs = logs.clamp(max=top)
        weights = (2 * logs).exp_()
        columns = torch.ones_like(weights)
        squares = folded.square()
        upper = squares[..., :half, :]
        lower = upper.clone().tril_(ctx.even - 1)
        columns[..., half : 2 * half] += upper.sub_(lower).sum(-1)
        columns[..., :half] += lower.sum(-2).add_(squares[..., half:, :].sum(-2))
        columns *= weights
        ctx.save_for_backward(folded, weights, columns)
        return logs.sum(-1), columns.sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_trace: Tensor) -> tuple[Tensor, Tensor, None]:
        folded, weights, columns = ctx.saved_tensors
        half = folded.shape[-1]
        twice = 2 * grad_trace.unsqueeze(-1)
        slopes = (weights * twice).unsqueeze(-2)
        lower = _lower(half, ctx.even, folded.dtype, folded.device)
        corner = torch.lerp(slopes[..., half : 2 * half].mT, slopes[..., :half], lower)
        gradient = torch.empty_like(folded)
        torch.mul(folded[..., half:, :], slopes[..., :half], out=gradient[..., half:, :])
        torch.mul(folded[..., :half, :], corner, out=gradient[..., :half, :])
        return gradient, torch.addcmul(grad.unsqueeze(-1), columns, twice), None

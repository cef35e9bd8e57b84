"""Draws of matrix normals, one for each example, with their KL to N(0, I), in one autograd node.

Written out, a draw and its KL take some sixty nodes on tensors of a few thousand numbers: bookkeeping,
and gradients that are collected piece by piece. Here the numbers of a distribution stay in one row,
means first, and so does their gradient. A full covariance is the case of one column.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.fused import scratch
from kasuri.numerics.triangular import folded_shape, lower_part


def draw_and_kl(
    numbers: Tensor, noise: Tensor, sizes: Sequence[int], top: float
) -> tuple[Tensor, Tensor]:
    """(vec(M + A X Bᵀ), KL), (batch, n) and (batch,), in eager mode.

    Args:
        numbers: (batch, size): M by rows, log-diagonal of A and what is below the diagonal of its unit
            triangle, folded; then the same of B if there is one.
        noise: X by rows, (batch, n).
        sizes: of A, and of B if there is one; each at least 2.
        top: where log-diagonals are held.
    """
    both: tuple[Tensor, Tensor] = _DrawAndKL.apply(numbers, noise, tuple(sizes), top)
    return both


class _Side:
    """T diag(d) of every example, and what its gradients need.

    Parts of tensors are narrowed, not indexed: the tensors are so small that indexing would cost as much
    as the arithmetic, and `y[a:] += x` twice as much.

    Args:
        numbers: (batch, size) rows, in which those of this side begin with number `begin`.
        begin: of the log-diagonal; what is below the diagonal comes next.
        size: n of this side.
        top: where the log-diagonal is held.
    """

    def __init__(self, numbers: Tensor, begin: int, size: int, top: float) -> None:
        rows, half = folded_shape(size)
        self.begin, self.size, self.half, self.even = begin, size, half, 1 - size % 2
        self.left = lower_part(size, numbers.dtype, numbers.device)
        logs = numbers.narrow(1, begin, size).clamp(max=top)
        folded = numbers.narrow(1, begin + size, rows * half).view(-1, rows, half)
        self.log_det = logs.sum(1)
        self.scale = logs.exp_()  # d, (batch, n)
        self.kept = folded * self.left  # what is left of the middle, (batch, rows, half)
        self.right = folded.narrow(1, 0, half) - self.kept.narrow(
            1, 0, half
        )  # the rest, transposed
        self.squares = torch.ones_like(self.scale)  # Σ_i (T_ij d_j)², (batch, n)
        work = scratch("latent triangles", self.kept, *self.kept.shape)
        self.squares.narrow(1, 0, half).add_(torch.square(self.kept, out=work).sum(1))
        work = scratch("latent corners", self.right, *self.right.shape)
        self.squares.narrow(1, half, half).add_(torch.square(self.right, out=work).sum(2))
        self.variances = self.scale.square()
        self.squares.mul_(self.variances)

    def times_transposed(self, x: Tensor) -> Tensor:
        """X Tᵀ for x (batch, k, n)."""
        half, even, y = self.half, self.even, x.clone()
        y.narrow(2, even, self.size - even).add_(x.narrow(2, 0, half).bmm(self.kept.mT))
        y.narrow(2, self.size - half, half).add_(x.narrow(2, half, half).bmm(self.right))
        return y

    def times(self, x: Tensor) -> Tensor:
        """X T for x (batch, k, n)."""
        half, even, y = self.half, self.even, x.clone()
        y.narrow(2, 0, half).add_(x.narrow(2, even, self.size - even).bmm(self.kept))
        y.narrow(2, half, half).add_(x.narrow(2, self.size - half, half).bmm(self.right.mT))
        return y

    def write(self, out: Tensor, grad: Tensor, fed: Tensor, traces: Tensor, logs: Tensor) -> Tensor:
        """Gradients of diagonal and triangle into their place; grad T.

        Args:
            out: (batch, size) rows of gradients.
            grad: of fed Tᵀ, (batch, k, n).
            fed: what was multiplied, noise · d.
            traces: gradient of Σ squares, doubled, (batch, 1).
            logs: gradient of Σ log d, (batch, 1).
        """
        half, even, rows = self.half, self.even, self.left.shape[0]
        back = self.times(grad)
        diagonal = (back * fed).sum(1).addcmul_(self.squares, traces)
        torch.add(diagonal, logs, out=out.narrow(1, self.begin, self.size))
        slopes = self.variances * traces
        lower = scratch("latent triangles", self.kept, *self.kept.shape)
        torch.bmm(grad.narrow(2, even, self.size - even).mT, fed.narrow(2, 0, half), out=lower)
        lower.addcmul_(self.kept, slopes.narrow(1, 0, half).unsqueeze(1))
        corner = scratch("latent corners", self.right, *self.right.shape)
        torch.bmm(fed.narrow(2, half, half).mT, grad.narrow(2, self.size - half, half), out=corner)
        corner.addcmul_(self.right, slopes.narrow(1, half, half).unsqueeze(2))
        folded = out.narrow(1, self.begin + self.size, rows * half).view(-1, rows, half)
        folded.narrow(1, half, rows - half).copy_(lower.narrow(1, half, rows - half))
        mask, first = self.left.narrow(0, 0, half), folded.narrow(1, 0, half)
        torch.lerp(corner, lower.narrow(1, 0, half), mask, out=first)
        return back


class _DrawAndKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, numbers: Tensor, noise: Tensor, sizes: tuple[int, ...], top: float
    ) -> tuple[Tensor, Tensor]:
        batch, n = noise.shape
        begins = [n + sum(size * (size + 1) // 2 for size in sizes[:k]) for k in range(len(sizes))]
        # X Bᵀ first, then A from the left, which is from the right on the transpose
        moved = noise.reshape(batch, -1, sizes[-1]).mT
        ctx.sides, ctx.fed, ctx.sizes = [], [], sizes
        for begin, size in zip(begins[::-1], sizes[::-1], strict=True):
            side = _Side(numbers, begin, size, top)
            fed = moved.mT * side.scale.unsqueeze(1)
            moved = side.times_transposed(fed)
            ctx.sides.append(side)
            ctx.fed.append(fed)
        ctx.traces = [side.squares.sum(1, keepdim=True) for side in ctx.sides]
        ctx.save_for_backward(numbers)
        loc = numbers.narrow(1, 0, n)
        trace = math.prod(ctx.traces[1:], start=ctx.traces[0]).squeeze(1)
        kl = loc.square().sum(1).add_(trace).sub_(n).mul_(0.5)
        for side in ctx.sides:
            kl.sub_(side.log_det, alpha=n // side.size)
        return loc + (moved.mT if len(sizes) > 1 else moved).reshape(batch, n), kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_kl: Tensor) -> tuple[Tensor, None, None, None]:
        (numbers,) = ctx.saved_tensors
        batch, n = grad.shape
        out, slope = torch.empty_like(numbers), grad_kl.unsqueeze(1)
        torch.addcmul(grad, numbers.narrow(1, 0, n), slope, out=out.narrow(1, 0, n))
        moved = grad.reshape(batch, ctx.sizes[0], -1)
        others = [slope] if len(ctx.sizes) == 1 else [slope * one for one in ctx.traces[::-1]]
        for side, fed, twice in zip(ctx.sides[::-1], ctx.fed[::-1], others[::-1], strict=True):
            back = side.write(out, moved.mT, fed, twice, slope * -(n // side.size))
            if side is not ctx.sides[0]:  # the noise, which comes next, needs no gradient
                moved = back * side.scale.unsqueeze(1)
        return out, None, None, None

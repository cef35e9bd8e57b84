"""Noise of a linear layer with a matrix normal weight, drawn for every example in one autograd node.

‖x C‖ · R ε with R and C of the form T diag(d). Written out it takes some thirty nodes, whose
bookkeeping and sweeps over the batch cost more than the arithmetic of layers of a few hundred units.
"""

from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.fused import scratch
from kasuri.numerics.triangular import backwards, cut, forwards, outer


def push_noise(
    x: Tensor,
    columns: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    noise: Tensor,
    top: float,
) -> Tensor:
    """‖x C‖ · R ε for every row of x (batch, in), in eager mode.

    Args:
        x: (batch, in) inputs.
        columns: T of C below its diagonal, folded, and log d (in,).
        rows: the same of R, of size out.
        noise: ε (batch, out).
        top: where log d is held.

    Examples:
        >>> side = (torch.zeros(1, 1), torch.zeros(2))
        >>> push_noise(torch.tensor([[3.0, 4.0]]), side, side, torch.ones(1, 2), 10.0)
        tensor([[5., 5.]])
    """
    return _PushNoise.apply(x, *columns, *rows, noise, top)


class _PushNoise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        lower_columns: Tensor,
        log_columns: Tensor,
        lower_rows: Tensor,
        log_rows: Tensor,
        noise: Tensor,
        top: float,
    ) -> Tensor:
        *left, half, even = cut(lower_columns)
        *right, half_rows, even_rows = cut(lower_rows)
        scale = log_columns.clamp(max=top).exp_()
        pulled = forwards(x, left, half, even).mul_(scale)
        lengths = torch.linalg.vector_norm(pulled, dim=1, keepdim=True)
        fed = noise * log_rows.clamp(max=top).exp_()
        moved = backwards(fed, right, half_rows, even_rows)
        ctx.save_for_backward(x, pulled, lengths, scale, fed, moved, *left, *right)
        ctx.cuts = half, even, half_rows, even_rows
        return moved * lengths

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, pulled, lengths, scale, fed, moved, *parts = ctx.saved_tensors
        half, even, half_rows, even_rows = ctx.cuts
        work = scratch("output", grad, *grad.shape)
        # lengths have gradient pulled / length; where one is 0, pulled is as well and any finite
        # quotient will do
        slope = torch.mul(grad, moved, out=work).sum(1, keepdim=True)
        slope /= lengths + torch.finfo(grad.dtype).tiny ** 0.5
        wide = torch.mul(pulled, slope, out=scratch("input", x, *x.shape))
        grad_log_columns = (wide * pulled).sum(0)
        wide *= scale
        narrow = torch.mul(grad, lengths, out=work)
        back = forwards(narrow, parts[3:], half_rows, even_rows)
        return (
            backwards(wide, parts[:3], half, even) if ctx.needs_input_grad[0] else None,
            outer(x, wide, half, even),
            grad_log_columns,
            outer(narrow, fed, half_rows, even_rows),
            back.mul_(fed).sum(0),
            None,
            None,
        )

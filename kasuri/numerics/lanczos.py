"""Traces of functions of large matrices, from products with vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

from kasuri.streams import signs

TINY = 1e-12  # relative size of a remainder in which there is nothing left to find


def trace_log(times: Callable[[Tensor], Tensor], like: Tensor, steps: int, least: Tensor) -> Tensor:
    """An estimate of tr log A, A given by its products, from one vector of random signs.

    By Lanczos' recurrence and the quadrature of Gauss and Radau with a node at `least`: never above what
    more steps would give.

    Args:
        times: product of A with a tensor.
        like: a tensor on which A acts.
        steps: of the recurrence.
        least: no eigenvalue of A is below it.

    Examples:
        >>> d = torch.tensor([1.0, 4.0], dtype=torch.float64)
        >>> found = trace_log(lambda z: d * z, d, 2, d.min())
        >>> round(float(found.exp()), 6)
        4.0
    """
    start = signs(like.shape, like)
    basis = [start / start.norm()]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(min(steps, like.numel())):
        moved = times(basis[-1])
        diagonal.append((moved * basis[-1]).sum())
        for _ in range(2):  # twice is enough to keep the basis orthogonal
            for vector in basis:
                moved = moved - (moved * vector).sum() * vector
        length = moved.norm()
        if length <= TINY * diagonal[-1].abs():
            break
        beside.append(length)
        basis.append(moved / length)
    tridiagonal = torch.diag(torch.stack(diagonal))
    if len(diagonal) > 1:
        off = torch.diag(torch.stack(beside[: len(diagonal) - 1]), 1)
        tridiagonal = tridiagonal + off + off.T
    if len(beside) == len(diagonal):  # if not, there is nothing left to find
        tridiagonal = _with_node(tridiagonal, beside[-1], least)
    values, vectors = torch.linalg.eigh(tridiagonal)
    return like.numel() * (vectors[0].square() * values.clamp(min=least).log()).sum()


def _with_node(tridiagonal: Tensor, length: Tensor, node: Tensor) -> Tensor:
    """Golub's extension of a Jacobi matrix by a row that makes `node` an eigenvalue."""
    size = len(tridiagonal)
    unit = torch.zeros(size, 1, dtype=node.dtype, device=node.device)
    unit[-1] = length.square()
    shifted = tridiagonal - node * torch.eye(size, dtype=node.dtype, device=node.device)
    last = node + torch.linalg.solve(shifted, unit)[-1, 0]
    longer = torch.nn.functional.pad(tridiagonal, (0, 1, 0, 1))
    longer[-1, -1] = last
    longer[-1, -2] = longer[-2, -1] = length
    return longer

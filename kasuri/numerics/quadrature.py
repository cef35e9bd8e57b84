"""Rules of numerical integration, by the eigenvalues of Jacobi matrices (Golub and Welsch)."""

import torch
from torch import Tensor


def gauss_hermite(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights for expectations under N(0, 1), in float64, exact up to degree 2 count - 1.

    Examples:
        >>> gauss_hermite(3)[1]
        tensor([0.1667, 0.6667, 0.1667], dtype=torch.float64)
    """
    return _rule(torch.arange(1, count, dtype=torch.float64, device="cpu").sqrt())


def gauss_legendre(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights on [0, 1], exact for polynomials of degree 2 count - 1.

    Examples:
        >>> nodes, weights = gauss_legendre(2)
        >>> round(sum(w * x**3 for x, w in zip(nodes, weights)), 12)
        0.25
    """
    index = torch.arange(1, count, dtype=torch.float64, device="cpu")
    nodes, weights = _rule(index / (4 * index.square() - 1).sqrt())
    return ((1 + nodes) / 2).tolist(), weights.tolist()


def _rule(off: Tensor) -> tuple[Tensor, Tensor]:
    """Of the symmetric density whose Jacobi matrix has these numbers beside its diagonal."""
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (nodes - nodes.flip(0)) / 2, vectors[0].square()

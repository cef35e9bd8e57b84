"""Normal noise whose precision is Gamma distributed: expectations, and the Student-t it makes.

τ ~ Gamma(a, b) with concentration a and rate b; y = f + ε/√τ. Functions of (a, b) alone are computed in
double precision: log Γ(a + ½) - log Γ(a) would lose two digits of a nat in single precision at a = 20,000.
"""

import math

import torch
from torch import Tensor

# the smallest concentration for which so many normals make a Student-t's distribution function to 1e-6
# (below 6 the error grows, to 5e-4 at 1.5)
_NODES = ((1000.0, 2), (250.0, 3), (100.0, 4), (20.0, 8), (6.0, 16), (0.0, 32))


def sums_of_squares(residuals: Tensor, a: Tensor) -> tuple[Tensor, int]:
    """Sums of r² (batch,) or (batch, outputs) over what shares a precision, and how many terms each has.

    The shape of a says what does: () for all of an example, (outputs,) for each last dimension.
    """
    batch, outputs = residuals.shape[0], a.numel()
    squares = residuals.square().reshape(batch, -1, outputs)
    sums = squares.sum(1)
    return (sums if a.dim() else sums.squeeze(1)), squares.shape[1]


def expected_normal_log_prob(squares: Tensor, count: int, a: Tensor, b: Tensor) -> Tensor:
    """E_τ Σ log N(r; 0, 1/τ) = n/2 (ψ(a) - log b - log 2π) - a/(2b) Σ r² over n = `count` residuals r."""
    a, b = a.double(), b.double()
    constant = 0.5 * count * (torch.digamma(a) - b.log() - math.log(2 * math.pi))
    return constant.to(squares.dtype) - (0.5 * a / b).to(squares.dtype) * squares


def student_t_log_prob(squares: Tensor, count: int, a: Tensor, b: Tensor) -> Tensor:
    """Log E_τ Π N(r; 0, 1/τ): the joint Student-t density of n residuals with a common precision.

    log Γ(a + n/2) - log Γ(a) - n/2 log(2πb) - (a + n/2) log(1 + Σ r² / 2b)
    """
    a, b = a.double(), b.double()
    more = a + 0.5 * count
    constant = torch.lgamma(more) - torch.lgamma(a) - 0.5 * count * (2 * math.pi * b).log()
    tail = torch.log1p((0.5 / b).to(squares.dtype) * squares)
    return constant.to(squares.dtype) - more.to(squares.dtype) * tail


def normals_of_student_t(a: Tensor) -> tuple[Tensor, Tensor]:
    """A Student-t with 2a degrees of freedom and scale 1 as a mixture of few centred normals.

    Gauss quadrature over the precision τ ~ Gamma(a, a), exact for polynomials in τ of degree 2K - 1:
    the fewer normals the larger a (2 from 1000 on, 32 below 6). What is made of them is good
    to 1e-6 for a ≥ 6, except for densities far out, which a normal does not reach.

    Standard deviations and weights are (K, *a.shape), in double precision.

    Examples:
        >>> scales, weights = normals_of_student_t(torch.tensor(2000.0))
        >>> scales, weights
        (tensor([1.0111, 0.9888], dtype=torch.float64), tensor([0.5112, 0.4888], dtype=torch.float64))
    """
    a, index = a.detach().double().unique(return_inverse=True)
    count = next(nodes for least, nodes in _NODES if float(a.min()) >= least)
    k = torch.arange(count, dtype=torch.float64, device=a.device)
    off = (k[1:] * (k[1:] + a.unsqueeze(-1) - 1)).sqrt()
    jacobi = torch.diag_embed(2 * k + a.unsqueeze(-1))
    jacobi = jacobi + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    nodes, vectors = torch.linalg.eigh(jacobi)
    scales = (a.unsqueeze(-1) / nodes).sqrt()
    return scales.T[:, index], vectors[..., 0, :].square().T[:, index]


def student_t_cdf(z: Tensor, a: Tensor) -> Tensor:
    """Distribution function of the Student-t with 2a degrees of freedom and scale 1; a broadcasts.

    Examples:
        >>> student_t_cdf(torch.tensor([0.0, 2.1788]), torch.tensor(6.0))
        tensor([0.5000, 0.9750])
    """
    total = torch.zeros_like(z)
    for scale, weight in zip(*normals_of_student_t(a), strict=True):
        total = total + weight.to(z.dtype) * torch.special.ndtr(z / scale.to(z.dtype))
    return total

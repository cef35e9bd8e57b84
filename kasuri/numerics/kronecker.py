"""Log-determinants of K + D, K a Kronecker product of covariances U and V, D diagonal.

K is given by its eigenvalues λ_i μ_j and eigenvectors; D as an (n, m) matrix D_ij beside the weights
it belongs to. Everything takes leading block dimensions and wants float64: ratios of K and D
span hundreds of orders of magnitude for parameters that an optimiser may well pass through.

A function of arbitrary D has no cheap exact value. The bounds here are below it, so that an ELBO
made with them is an ELBO.
"""

import torch
from torch import Tensor

from kasuri.numerics.torch_internals import eager

FAR = 25.0  # e^-25 of a variance changes the logarithm of nothing it is added to by more than 1e-11
LEVELS = 1 << 16  # of logarithms, for sorting by counting

Vectors = Tensor | None  # columns are eigenvectors; None for the identity


def log_det_plus_identity(rows: Tensor, columns: Tensor) -> Tensor:
    """Log det(K + I) = Σ log(1 + λ_i μ_j), exactly, from the eigenvalues of U and V."""
    return torch.log1p(rows.unsqueeze(-1) * columns.unsqueeze(-2)).sum((-2, -1))


def balance(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column logarithms (*blocks, n), (*blocks, m) whose sums fit log D best.

    Their sum over all entries is that of log D.
    """
    half = logs.mean((-2, -1)).unsqueeze(-1) / 2
    return logs.mean(-1) - half, logs.mean(-2) - half


def completed(logs: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """What sums of row and column logarithms would be everywhere, from the rows and columns that count.

    `rows` (*blocks, n) and `columns` (*blocks, m) are 1 for what counts, else 0.
    """
    left = rows / rows.sum(-1, keepdim=True).clamp(min=1)
    right = columns / columns.sum(-1, keepdim=True).clamp(min=1)
    in_rows = (logs @ right.unsqueeze(-1)).squeeze(-1)
    in_columns = (left.unsqueeze(-2) @ logs).squeeze(-2)
    middle = (in_rows * left).sum(-1, keepdim=True)
    in_rows = torch.where(rows > 0, in_rows, middle) - middle
    in_columns = torch.where(columns > 0, in_columns, middle)
    return in_rows.unsqueeze(-1) + in_columns.unsqueeze(-2)


def log_det_bound(
    rows: tuple[Tensor, Vectors], columns: tuple[Tensor, Vectors], logs: Tensor
) -> Tensor:
    """A lower bound of log det(K + D), log D = `logs`, the better of two, (*blocks); exact for D = I.

    Harmonic: Σ_t log(λμ_t + 1 / q_tᵀ D⁻¹ q_t) over the eigenvectors q_t of K. It follows from
    (K + D)⁻¹ ≤ PᵀK⁻¹P + (I-P)ᵀD⁻¹(I-P) with the best P diagonal in the eigenbasis, and Hadamard's
    inequality. Fiedler: Σ_t log(λμ_t + d_t) with both sorted. Eigenvectors count as constants in
    the gradient: the bound holds for any orthonormal basis, and their own gradient is infinite
    where eigenvalues coincide, as they do at the start.
    """
    products = rows[0].unsqueeze(-1) * columns[0].unsqueeze(-2)
    if rows[1] is None and columns[1] is None:
        return (products + logs.exp()).log().sum((-2, -1))  # exact
    inverse = _turned((-logs).exp(), rows[1], columns[1])
    harmonic = (products + 1 / inverse).log().sum((-2, -1))
    if eager() and _never_above(harmonic, rows[0], columns[0], logs):
        return harmonic  # without sorting, which takes longer than all else
    ranked = [values.flatten(-2).sort(-1).values for values in (products, logs)]
    fiedler = (ranked[0] + ranked[1].exp()).log().sum(-1)
    return torch.maximum(harmonic, fiedler)


@torch.no_grad()
def _never_above(bound: Tensor, rows: Tensor, columns: Tensor, logs: Tensor) -> bool:
    """Whether Fiedler's bound of one matrix is plainly below this one.

    Logarithms are rounded up to one of so many levels, and sorted by counting, ten times as fast.
    """
    if logs.dim() > 2:
        return False
    products = (rows.log().unsqueeze(-1) + columns.log()).clamp_(min=logs.min() - FAR)
    ranked = []
    for values in (products, logs):
        low, high = values.aminmax()
        step = (high - low).clamp_(min=1e-9) / LEVELS
        counts = torch.bincount((values.reshape(-1) - low).div_(step).ceil_().int())
        ranked.append((torch.repeat_interleave(counts) * step).add_(low).float())
    return bool(torch.logaddexp(*ranked).sum(dtype=torch.float64) <= bound)


def _turned(matrix: Tensor, rows: Vectors, columns: Vectors) -> Tensor:
    """Rows∘² from the left, transposed, and columns∘² from the right."""
    turned = matrix if rows is None else rows.square().mT @ matrix
    return turned if columns is None else turned @ columns.square()

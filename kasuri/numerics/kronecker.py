"""Log-determinants of K + D, K a Kronecker product of covariances U and V, D diagonal.

K is given by its eigenvalues λ_i μ_j and eigenvectors; D as an (n, m) matrix D_ij beside the weights
it belongs to. Everything takes leading block dimensions and wants float64: ratios of K and D
span hundreds of orders of magnitude for parameters that an optimiser may well pass through.

A function of arbitrary D has no cheap exact value. The bounds here are below it, so that an ELBO
made with them is an ELBO; `log_det_estimate`, for reports, errs by the noise of its probes and, where it
takes too few steps, to the low side.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.lanczos import trace_log
from kasuri.numerics.torch_internals import eager

Vectors = Tensor | None  # columns are eigenvectors; None for the identity

FAR = 25.0  # e^-25 of a variance changes the logarithm of nothing it is added to by more than 1e-11
LEVELS = 1 << 16  # of logarithms, for sorting by counting


def log_det_plus_identity(rows: Tensor, columns: Tensor) -> Tensor:
    """Log det(K + I) = Σ log(1 + λ_i μ_j), exactly.

    Args:
        rows: (*blocks, n) eigenvalues of U.
        columns: (*blocks, m) eigenvalues of V.

    Examples:
        >>> log_det_plus_identity(torch.tensor([1.0, 3.0]), torch.tensor([1.0])).exp()
        tensor(8.)
    """
    if eager() and rows.dim() == columns.dim() == 1:
        total: Tensor = _LogDetPlusIdentity.apply(rows, columns)
        return total
    return torch.log1p(rows.unsqueeze(-1) * columns.unsqueeze(-2)).sum((-2, -1))


def balance(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column logarithms (*blocks, n), (*blocks, m) whose sums fit log D best.

    Their sum over all entries is that of log D.

    Examples:
        >>> r, c = balance(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> r.unsqueeze(-1) + c
        tensor([[1., 2.],
                [3., 4.]])
    """
    half = logs.mean((-2, -1)).unsqueeze(-1) / 2
    return logs.mean(-1) - half, logs.mean(-2) - half


def completed(logs: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """What sums of row and column logarithms would be everywhere, from the rows and columns that count.

    Args:
        logs: (*blocks, n, m).
        rows: (*blocks, n) 1 for rows that count, 0 for others.
        columns: (*blocks, m).

    Examples:
        >>> logs = torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]])
        >>> completed(logs, torch.ones(2), torch.tensor([1.0, 1.0, 0.0]))
        tensor([[1.0000, 2.0000, 1.5000],
                [3.0000, 4.0000, 3.5000]])
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
    """A lower bound of log det(K + D), the better of two, (*blocks); exact for D = I.

    Harmonic: Σ_t log(λμ_t + 1 / q_tᵀ D⁻¹ q_t) over the eigenvectors q_t of K. It follows from
    (K + D)⁻¹ ≤ PᵀK⁻¹P + (I-P)ᵀD⁻¹(I-P) with the best P diagonal in the eigenbasis, and Hadamard's
    inequality. Fiedler: Σ_t log(λμ_t + d_t) with both sorted. Eigenvectors count as constants in
    the gradient: the bound holds for any orthonormal basis, and their own gradient is infinite
    where eigenvalues coincide, as they do at the start.

    Args:
        rows: eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n) of U.
        columns: the same of V, of size m.
        logs: (*blocks, n, m) logarithms of D.

    Examples:
        >>> eye = (torch.ones(2), None)
        >>> log_det_bound(eye, eye, torch.zeros(2, 2)).exp()
        tensor(16.)
    """
    if eager() and logs.dim() == 2:
        total: Tensor = _LogDetBound.apply(*rows, *columns, logs.contiguous())
        return total
    products = rows[0].unsqueeze(-1) * columns[0].unsqueeze(-2)
    inverse = _turned((-logs).exp(), _squared(rows[1]), _squared(columns[1]))
    harmonic = (products + 1 / inverse).log().sum((-2, -1))
    ranked = [values.flatten(-2).sort(-1).values for values in (products, logs)]
    fiedler = (ranked[0] + ranked[1].exp()).log().sum(-1)
    return torch.maximum(harmonic, fiedler)


def log_det_estimate(
    rows: tuple[Tensor, Vectors],
    columns: tuple[Tensor, Vectors],
    logs: Tensor,
    *,
    probes: int,
    steps: int,
) -> Tensor:
    """Log det(K + D) by stochastic Lanczos quadrature, without gradients, (*blocks).

    log det(K + I) is known, so random probes only measure log det of (K + I)^-½ (K + D) (K + I)^-½,
    which has its eigenvalues between the least and the largest of D and 1. The quadrature is Gauss and
    Radau's with a node at that least value: for a logarithm it is never above, whatever the number of steps.

    Args:
        rows: eigenvalues (*blocks, n) and eigenvectors (*blocks, n, n) of U.
        columns: the same of V, of size m.
        logs: (*blocks, n, m) logarithms of D, best balanced around 0.
        probes: random vectors; the error falls with their square root.
        steps: of Lanczos' recurrence for each.

    Examples:
        >>> eye = (torch.ones(3), None)
        >>> float(log_det_estimate(eye, eye, torch.zeros(3, 3), probes=1, steps=2).exp().round())
        512.0
    """
    if logs.dim() > 2:
        each = [
            log_det_estimate(
                (rows[0][block], None if rows[1] is None else rows[1][block]),
                (columns[0][block], None if columns[1] is None else columns[1][block]),
                logs[block],
                probes=probes,
                steps=steps,
            )
            for block in range(len(logs))
        ]
        return torch.stack(each)
    extra = logs.exp()
    products = rows[0].unsqueeze(-1) * columns[0].unsqueeze(-2)
    whiten = (1 + products).rsqrt()
    back = [None if q is None else q.mT for q in (rows[1], columns[1])]

    def times(z: Tensor) -> Tensor:
        z = z * whiten
        varied = _turned(extra * _turned(z, back[0], back[1]), rows[1], columns[1])
        return whiten * (products * z + varied)

    least = extra.min().clamp(max=1)
    measured = [trace_log(times, extra, steps, least) for _ in range(probes)]
    return log_det_plus_identity(rows[0], columns[0]) + torch.stack(measured).mean()


def _squared(vectors: Vectors) -> Vectors:
    return None if vectors is None else vectors.square()


def _turned(matrix: Tensor, rows: Vectors, columns: Vectors) -> Tensor:
    """RowsᵀA columns."""
    turned = matrix if rows is None else rows.mT @ matrix
    return turned if columns is None else turned @ columns


class _LogDetPlusIdentity(torch.autograd.Function):
    """Gradients are found on the way, so that nothing of size (n, m) is kept."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor) -> Tensor:
        shares = torch.outer(rows, columns)
        total = torch.log1p(shares).sum()
        shares.add_(1).reciprocal_()
        ctx.save_for_backward(shares @ columns, rows @ shares)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = ctx.saved_tensors
        return grad * rows, grad * columns


class _LogDetBound(torch.autograd.Function):
    """The better of both bounds; only its gradient is found, on the way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, left: Vectors, columns: Tensor, right: Vectors, logs: Tensor
    ) -> Tensor:
        products, extra = torch.outer(rows, columns), logs.exp()
        left, right = _squared(left), _squared(right)
        inverse = _turned(extra.reciprocal(), left, right)
        shares = inverse.reciprocal().add_(products)
        total = shares.log().sum()
        turned = left is not None or right is not None  # if not, this bound is exact
        better = _fiedler_above(total, rows, columns, logs) if turned else None
        if better is not None:
            total, slopes, extra = better
        else:
            slopes = shares.reciprocal_()
            back = [None if q is None else q.mT for q in (left, right)]
            extra = _turned(inverse.square_().reciprocal_().mul_(slopes), *back).div_(extra)
        ctx.save_for_backward(slopes @ columns, rows @ slopes, extra)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns, extra = ctx.saved_tensors
        return grad * rows, None, grad * columns, None, grad * extra


def _fiedler_above(
    least: Tensor, rows: Tensor, columns: Tensor, logs: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Fiedler's bound with its slopes in λμ and in log D, or None if it is not above `least`."""
    log_products = rows.log().unsqueeze(-1) + columns.log()
    log_products.clamp_(min=logs.min() - FAR)
    if _sorted_at_most(log_products, logs) <= least:
        return None
    order, other = _order(log_products), _order(logs)
    products, extra = torch.outer(rows, columns).view(-1)[order], logs.view(-1)[other].exp_()
    ranked = products.add_(extra)
    total = ranked.log().sum()
    if total <= least:
        return None
    slopes, shares = torch.empty_like(logs), torch.empty_like(logs)
    slopes.view(-1)[order] = ranked.reciprocal_()
    shares.view(-1)[other] = extra.mul_(ranked)
    return total, slopes, shares


def _sorted_at_most(a: Tensor, b: Tensor) -> Tensor:
    """At least Σ_t log(e^a_t + e^b_t) with both sorted: enough to rule Fiedler's bound out.

    Rounded up to one of so many levels they are sorted by counting, ten times as fast.
    """
    ranked = []
    for logs in (a, b):
        low, high = logs.aminmax()
        step = (high - low).clamp_(min=1e-9) / LEVELS
        counts = torch.bincount((logs.view(-1) - low).div_(step).ceil_().int())
        ranked.append((torch.repeat_interleave(counts) * step).add_(low).float())
    return torch.logaddexp(*ranked).sum(dtype=torch.float64)


def _order(logs: Tensor) -> Tensor:
    """Indices that sort a matrix, up to differences of a millionth; as whole numbers it is faster.

    A pairing in an order that is wrong by so little has the same sum, up to rounding.
    """
    return (logs.view(-1).clamp(-2000, 2000) * 2**20).int().argsort()

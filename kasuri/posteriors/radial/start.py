"""Initial values of radial posteriors: means at a given weight, standard deviations at a given scale.

A weight is split exactly into radii and directions. Its noise is then that of independent normal weights as
far as radii and directions can tell: the total variance is N σ², and a radius varies by σ as any other
direction does. All is computed in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.directions import concentration_at
from kasuri.posteriors.radial.polar import along_columns, to_matrix, to_vectors

FILL = 0.01  # in units of the scale: what stands for rows and columns of zeros, which have no direction
LOG_TOP = 29.0  # of concentrations, a little below what posteriors hold
STEPS = 50  # of bisection


@dataclass(frozen=True)
class Concentrating:
    """How concentrations are chosen.

    Args:
        scale: root mean square of the standard deviations of the weights to aim at.
        gap: 1 - cosine, for a concentration that does not follow `scale`.
        min_gap: likewise for an upper bound.
        own: whether every vector has a concentration of its own.
    """

    scale: float
    gap: float | None = None
    min_gap: float | None = None
    own: bool = False

    def given(self, vectors: Tensor) -> Tensor | None:
        """The concentration of vectors (*blocks, n, d) that does not follow the scale, (*blocks, 1)."""
        if self.gap is None:
            return None
        kappa = concentration_at(vectors.shape[-1], self.gap)
        return vectors.new_full((*vectors.shape[:-2], 1), kappa)

    def start(self, vectors: Tensor, growth: Tensor, kappa: Tensor) -> "Start":
        """Radii and directions of which the vectors are the means, at these concentrations or the bound."""
        *blocks, count, d = vectors.shape
        if self.min_gap is not None:
            kappa = kappa.clamp(max=0.99 * concentration_at(d, self.min_gap))
        kappa = kappa.expand(*blocks, count if self.own else 1)
        norms = torch.linalg.vector_norm(vectors, dim=-1)
        log_radii = norms.log() - vmf.mean_resultant(kappa, d).log()
        return Start(vectors / norms.unsqueeze(-1), log_radii, growth, kappa)


@dataclass(frozen=True)
class Start:
    """Vectors (*blocks, n, d) = radius · direction, and how noisy both are.

    Args:
        directions: unit vectors.
        log_radii: logarithms of the *mean* radii (*blocks, n).
        growth: log(E z²/(E z)²) of the radii, (*blocks, n).
        concentration: of the directions, (*blocks, 1) or (*blocks, n).
    """

    directions: Tensor
    log_radii: Tensor
    growth: Tensor
    concentration: Tensor


def filled(weight: Tensor, scale: float, positions: int) -> Tensor:
    """The weight in float64, with rows and columns of zeros replaced by ± 0.01 scale."""
    weight = weight.detach().double()
    signs = torch.where(torch.rand_like(weight) < 0.5, -1.0, 1.0)
    empty = torch.zeros_like(weight, dtype=torch.bool)
    for side in ("rows", "columns"):
        vectors = to_vectors(weight, side, positions)
        zero = (vectors == 0).all(-1, keepdim=True).expand(vectors.shape)
        empty |= to_matrix(zero, side, positions)
    return torch.where(empty, FILL * scale * signs, weight)


def natural_growth(norms: Tensor, d: int, scale: float) -> Tensor:
    """Growth of the length of a normal vector of this mean and N(0, scale²) noise: about (σ/length)²."""
    return torch.log1p(scale**2 / (norms.square() + d * scale**2))


def single(vectors: Tensor, growth: Tensor, how: Concentrating) -> Start:
    """The start of one set of vectors.

    E‖w‖² = (length of the mean)² e^growth / A² is to be that of noise N(0, scale²) around the mean: for
    every vector if each has a concentration of its own, else in total.

    Args:
        vectors: (*blocks, n, d), the means.
        growth: of the radii, (*blocks, n).
        how: concentrations are chosen.
    """
    d, kappa = vectors.shape[-1], how.given(vectors)
    if kappa is None:
        squares = vectors.square().sum(-1)
        radial, wanted = squares * growth.exp(), squares + d * how.scale**2
        if not how.own:
            radial, wanted = (part.sum(-1, keepdim=True) for part in (radial, wanted))
        resultant = (radial / wanted).sqrt().clamp(max=1.0)
        kappa = vmf.inverse_mean_resultant(resultant, d).clamp(max=math.exp(LOG_TOP))
    return how.start(vectors, growth, kappa)


def hadamard_vectors(weight: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Rows and columns whose elementwise product is a weight: sign √|w_ij| and √|w_ij|."""
    roots = weight.abs().sqrt()
    return weight.sign() * roots, to_vectors(roots, "columns", positions)


def scaled_rows(weight: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Rows and logarithms of column scales whose product is a weight.

    Columns get their norms, up to a common factor that makes their geometric mean 1.

    Examples:
        >>> rows, logs = scaled_rows(torch.tensor([[1.0, 4.0], [0.0, 3.0]]), 1)
        >>> rows / rows[0, 0], (logs[1] - logs[0]).exp()
        (tensor([[1.0000, 0.8000],
                [0.0000, 0.6000]]), tensor(5.))
    """
    lengths = torch.linalg.vector_norm(to_vectors(weight, "columns", positions), dim=-1)
    logs = lengths.log() - lengths.log().mean(-1, keepdim=True)
    return weight / along_columns(logs.exp(), positions), logs


def hadamard(
    weight: Tensor,
    positions: int,
    growths: tuple[Tensor, Tensor],
    factor: float,
    how: Concentrating,
) -> tuple[Start, Start]:
    """Starts of rows and columns whose elementwise product, times a factor, is a weight.

    Both sides share the noise: equal κ/d, and radii whose logarithms have the same mean.

    Args:
        weight: (*blocks, out, in) from `filled`.
        positions: neighbouring columns that belong to one input.
        growths: of the radii of rows and columns.
        factor: what the product is multiplied by.
        how: concentrations are chosen.
    """
    rows, columns = hadamard_vectors(weight / factor, positions)
    kappas = [how.given(rows), how.given(columns)]
    if how.gap is None:
        sizes = [
            v.square().sum(-1) * g.exp() for v, g in zip((rows, columns), growths, strict=True)
        ]
        size = factor**2 * sizes[0].unsqueeze(-1) * along_columns(sizes[1], positions)
        shares = [F.normalize(v, dim=-1, eps=0.0).square() for v in (rows, columns)]
        shares[1] = to_matrix(shares[1], "columns", positions)
        dimensions = (rows.shape[-1], columns.shape[-1])
        log = _log_concentration(size, shares, dimensions, weight, how.scale)
        kappas = [d * log.exp() for d in dimensions]
    starts = [
        how.start(vectors, growth, kappa)
        for vectors, growth, kappa in zip((rows, columns), growths, kappas, strict=True)
        if kappa is not None
    ]
    means = [start.log_radii.mean(-1, keepdim=True) for start in starts]
    uneven = (means[0] - means[1]) / 2
    first = replace(starts[0], log_radii=starts[0].log_radii - uneven)
    return first, replace(starts[1], log_radii=starts[1].log_radii + uneven)


def scaled(
    weight: Tensor, positions: int, growths: tuple[Tensor, Tensor], how: Concentrating
) -> tuple[Start, Tensor]:
    """The start of rows and the log-radii of columns, whose product is a weight.

    Args:
        weight: (*blocks, out, in) from `filled`.
        positions: neighbouring columns that belong to one input.
        growths: of the radii of rows and columns.
        how: concentrations are chosen.
    """
    rows, logs = scaled_rows(weight, positions)
    d, kappa = weight.shape[-1], how.given(rows)
    if kappa is None:
        size = (rows.square().sum(-1) * growths[0].exp()).unsqueeze(-1)
        size = size * along_columns((2 * logs + growths[1]).exp(), positions)
        shares = [F.normalize(rows, dim=-1, eps=0.0).square()]
        kappa = d * _log_concentration(size, shares, (d,), weight, how.scale).exp()
    return how.start(rows, growths[0], kappa), logs


def _log_concentration(
    size: Tensor, shares: Sequence[Tensor], dimensions: Sequence[int], weight: Tensor, scale: float
) -> Tensor:
    """log(κ/d) of all sides at which E‖W‖² is that of noise N(0, scale²) around the weight, (*blocks, 1).

    Args:
        size: products of squared mean radii and their growth at A = 1, (*blocks, out, in).
        shares: squared components of the mean directions of each side, (*blocks, out, in).
        dimensions: of these directions.
        weight: the mean.
        scale: of the noise.
    """
    wanted = weight.square().sum((-2, -1)) + weight.shape[-2] * weight.shape[-1] * scale**2
    # E‖W‖² = Σ size Π (a + b share), a and b functions of κ: sums over the matrix are taken once
    sums: dict[tuple[bool, ...], Tensor] = {(): size}
    for share in shares:
        sums = {
            (*key, own): part * share if own else part
            for key, part in sums.items()
            for own in (False, True)
        }
    totals = {key: part.sum((-2, -1)) for key, part in sums.items()}
    low = torch.full_like(wanted, -12.0)
    high = torch.full_like(wanted, LOG_TOP - math.log(max(dimensions)))
    for _ in range(STEPS):
        middle = (low + high) / 2
        moments = [_second_moment(d * middle.exp(), d) for d in dimensions]
        square = torch.zeros_like(wanted)
        for key, total in totals.items():
            for own, (a, b) in zip(key, moments, strict=True):
                total = total * (b if own else a)
            square = square + total
        low = torch.where(square > wanted, middle, low)
        high = torch.where(square > wanted, high, middle)
    return ((low + high) / 2).unsqueeze(-1)


def _second_moment(kappa: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """(a, b) of E x_j² / A² = a + b μ_j²."""
    found = vmf.terms(kappa, d)
    square = (kappa * found.spread).square()
    return found.spread / square, 1 + (found.slope - found.spread) / square

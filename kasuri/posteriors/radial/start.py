"""Concentrations at which a radial posterior starts with a given noise.

The noise is that of independent normal weights as far as radii and directions can tell: the total variance is
N σ², and a radius varies by σ as any other direction does. All is computed in float64.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.polar import Side, to_vectors

FILL = 0.01  # in units of the scale: what stands for rows and columns of zeros, which have no direction
LOG_TOP = 29.0  # of concentrations, a little below what posteriors hold
STEPS = 50  # of bisection


def filled(weight: Tensor, scale: float, positions: int) -> Tensor:
    """The weight in float64, with rows and columns of zeros replaced by ± 0.01 scale."""
    weight = weight.detach().double()
    signs = torch.where(torch.rand_like(weight) < 0.5, -1.0, 1.0)
    empty = torch.zeros_like(weight, dtype=torch.bool)
    sides: tuple[Side, ...] = ("rows", "columns")
    for side in sides:
        vectors = to_vectors(weight, side, positions)
        zero = (vectors == 0).all(-1, keepdim=True).expand(vectors.shape)
        empty |= to_vectors(zero, side, positions)
    return torch.where(empty, FILL * scale * signs, weight)


def natural_growth(norms: Tensor, d: int, scale: float) -> Tensor:
    """Growth of the length of a normal vector of this mean and N(0, scale²) noise: about (σ/length)²."""
    return torch.log1p(scale**2 / (norms.square() + d * scale**2))


def one_side(vectors: Tensor, growth: Tensor, scale: float, own: bool) -> Tensor:
    """κ of one set of vectors (*blocks, n, d), (*blocks, 1), or (*blocks, n) if each has its own.

    E‖w‖² = (length of the mean)² e^growth / A² is to be that of noise N(0, scale²) around the mean: for
    every vector if each has a concentration of its own, else in total.
    """
    d, squares = vectors.shape[-1], vectors.square().sum(-1)
    radial, wanted = squares * growth.exp(), squares + d * scale**2
    if not own:
        radial, wanted = (part.sum(-1, keepdim=True) for part in (radial, wanted))
    resultant = (radial / wanted).sqrt().clamp(max=1.0)
    return vmf.inverse_mean_resultant(resultant, d).clamp(max=math.exp(LOG_TOP))


def both_sides(
    weight: Tensor, sides: Sequence[Tensor], size: Tensor, positions: int, scale: float
) -> list[Tensor]:
    """κ of each side, with κ/d the same for all, at which E‖W‖² is that of noise N(0, scale²), (*blocks, 1).

    Args:
        weight: the mean, (*blocks, out, in).
        sides: the vectors of rows, and of columns if they have directions too.
        size: products of squared mean radii and their growth at A = 1, (*blocks, out, in).
        positions: neighbouring columns that belong to one input.
        scale: of the noise.
    """
    wanted = weight.square().sum((-2, -1)) + weight.shape[-2] * weight.shape[-1] * scale**2
    # E‖W‖² = Σ size Π (a + b share), a and b functions of κ: sums over the matrix are taken once
    names: tuple[Side, ...] = ("rows", "columns")
    sums: dict[tuple[bool, ...], Tensor] = {(): size}
    for side, vectors in zip(names, sides, strict=False):
        share = to_vectors(F.normalize(vectors, dim=-1, eps=0.0).square(), side, positions)
        sums = {
            (*key, own): part * share if own else part
            for key, part in sums.items()
            for own in (False, True)
        }
    totals = {key: part.sum((-2, -1)) for key, part in sums.items()}
    dimensions = [vectors.shape[-1] for vectors in sides]
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
    return [d * ((low + high) / 2).exp().unsqueeze(-1) for d in dimensions]


def squared_radii(vectors: Tensor, growth: Tensor) -> Tensor:
    """E r² of vectors of these means, if their directions were certain."""
    return vectors.square().sum(-1) * growth.exp()


def _second_moment(kappa: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """(a, b) of E x_j² / A² = a + b μ_j²."""
    of = vmf.terms(kappa, d)
    square = (kappa * of.spread).square()
    return of.spread / square, 1 + (of.slope - of.spread) / square

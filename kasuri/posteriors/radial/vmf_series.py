"""The normaliser of a von Mises-Fisher distribution and its derivatives, by Debye's expansion.

ℓ_ν(κ) = log[Γ(ν+1) (2/κ)^ν I_ν(κ)] is 0 at κ = 0, and everything else follows from it. At a large order b
it has an expansion in 1/b that holds for all κ at once; the recurrence of Bessel functions leads from
there down to the order that was asked for, in a direction and a form in which nothing cancels. No
special function is called, so it runs wherever torch does.
"""

import math
from collections import defaultdict
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

# Sixteen terms from order 14 on leave 1e-13 relative in each of `Terms`, 2e-12 in the derivative of the
# slope. More terms of an asymptotic expansion help only if the order to start from is high enough.
TERMS = 16
LOWEST = 14.0
FEWER = ((400.0, 4), (100.0, 6), (40.0, 9))  # terms that are enough from these orders on
# From order 7 on ten terms leave 1e-7: single precision, with fewer steps of the recurrence
COARSE, TERMS_OF_COARSE = 7.0, 10


class Terms(NamedTuple):
    """Quantities of order ν = d/2 - 1 at κ, each accurate relative to its own size.

    Args:
        ell: ℓ(κ).
        divergence: κ ℓ'(κ) - ℓ(κ).
        spread: ℓ'(κ) / κ, which is 1/d at 0.
        slope: ℓ''(κ).
    """

    ell: Tensor
    divergence: Tensor
    spread: Tensor
    slope: Tensor


def debye_polynomials(count: int) -> list[dict[int, float]]:
    """D_1, D_2, ... of log I_b = (leading terms) + Σ_k b^-k D_k(b/√(b² + κ²)), as {exponent: coefficient}.

    Bessel's equation gives D_1' = ⅛(1 - 5p²) and D_{k+1}' = ½(v D_k')' + ½v Σ_{i+j=k} D_i' D_j' with
    v = p²(1 - p²). Signs alternate with exponents, so that only numbers of one sign are ever added.

    Examples:
        >>> debye_polynomials(1)
        [{1: 0.125, 3: -0.20833333333333334}]
    """
    slopes = [{0: 1 / 8, 2: -5 / 8}]
    while len(slopes) < count:
        following: dict[int, float] = defaultdict(float)
        for e, c in slopes[-1].items():
            following[e + 1] += c * (e + 2) / 2
            following[e + 3] -= c * (e + 4) / 2
        for one, other in zip(slopes[:-1], reversed(slopes[:-1]), strict=True):
            for (e, c), (f, g) in product(one.items(), other.items()):
                following[e + f + 2] += c * g / 2
                following[e + f + 4] -= c * g / 2
        slopes.append(following)
    return [{e + 1: c / (e + 1) for e, c in slope.items()} for slope in slopes]


def _table() -> Tensor:
    """(3, exponents, terms): c_ke · (1, e, e²)."""
    found = torch.zeros(3 * TERMS, TERMS, dtype=torch.float64, device="cpu")
    for k, polynomial in enumerate(debye_polynomials(TERMS)):
        for e, c in polynomial.items():
            found[e - 1, k] = c
    exponents = torch.arange(1, 3 * TERMS + 1, dtype=torch.float64, device="cpu").unsqueeze(-1)
    return torch.stack([found, found * exponents, found * exponents.square()])


_TABLE = _table()


def terms(kappa: Tensor, d: int, lowest: float = LOWEST) -> Terms:
    """All quantities at κ, a float64 tensor of any shape, for dimension d.

    Differentiable as it stands. The derivative of `slope` is as accurate as `slope`; those of the
    others lose digits at large κ, and their accurate values are in `slope` and `spread`.

    Args:
        kappa: (...) concentrations.
        d: dimension of the space around the sphere.
        lowest: order to come down from; COARSE for single precision.

    Examples:
        >>> two = torch.tensor(2.0, dtype=torch.float64)
        >>> round(float(2 * terms(two, 3).spread), 10)  # coth 2 - 1/2
        0.5373147207
    """
    order = d / 2 - 1
    steps = max(0, math.ceil(lowest - order))
    found = _expansion(kappa, order + steps)
    for step in range(steps):
        found = _down(kappa, found, order + steps - step)
    return found


def _expansion(kappa: Tensor, b: float) -> Terms:
    """The quantities at a large order b.

    With R = √(b² + κ²) and p = b/R the sums are S_j = Σ_e c_e e^j p^e; d(p^e)/dκ = -e κ/R² p^e.
    """
    enough = TERMS if b >= LOWEST else TERMS_OF_COARSE
    count = next((count for order, count in FEWER if b >= order), enough)
    small = torch.full((count,), 1 / b, dtype=kappa.dtype, device=kappa.device)
    coefficients = _TABLE[:, : 3 * count, :count].to(kappa.device) @ small.cumprod(0)
    at_one = coefficients.sum(-1)
    exponents = torch.arange(1, 3 * count + 1, dtype=kappa.dtype, device=kappa.device)
    q = kappa.square()
    root = (q + b * b).sqrt()
    wide = b + root
    log_p = torch.log1p(q / (b * b)) * -0.5
    powers = torch.expm1(log_p.unsqueeze(-1) * exponents)  # p^e - 1, exact where κ is small
    s0, s1, s2 = (powers @ coefficients.mT).unbind(-1)
    # ½ log p, the last of the leading terms, has the derivatives of a power with S_1 = ½
    s1, s2 = s1 + (at_one[1] + 0.5), s2 + at_one[2]
    inverse = 1 / root.square()
    w = q * inverse  # 1 - p²
    s = q / (b * wide)
    log_s = b * torch.log1p(s / 2)
    rest = log_p / 2 + s0
    return Terms(
        ell=b * s - log_s + rest,
        divergence=log_s - rest - s1 * w,
        spread=1 / wide - s1 * inverse,
        slope=b / (root * wide) + (s1 * (2 * w - 1) + s2 * w) * inverse,
    )


def _down(kappa: Tensor, above: Terms, order: float) -> Terms:
    """The quantities of order - 1 from those of `order`, by I_{o-1} = I_{o+1} + (2o/κ) I_o."""
    q, twice = kappa.square(), 2 * order
    ahead = q * above.spread
    spread = 1 / (twice + ahead)
    log = torch.log1p(ahead / twice)
    return Terms(
        ell=above.ell + log,
        divergence=above.divergence + q * spread * (above.slope + above.spread) - log,
        spread=spread,
        slope=(twice - q * above.slope) * spread.square(),
    )

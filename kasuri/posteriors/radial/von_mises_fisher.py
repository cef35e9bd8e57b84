"""Functions of the concentration of a von Mises-Fisher distribution on the unit sphere of R^d.

vMF(x | μ, κ) = exp(κ μᵀx - ℓ(κ)) / S_d, with S_d the surface of the sphere and ℓ(0) = 0. Concentrations
are tensors of any shape, d is a number of at least 2, and κ = 0 is the uniform distribution. `terms` has
all functions of κ; KL, entropy and the inverse are made of them. All is
computed in float64, whatever comes in and goes out: to 1e-12 relative for d from 2 to 4000 and κ from 0
to 1e5, and without a cliff beyond. Derivatives are those of the functions, not of their approximations.

Everything follows from ℓ_ν(κ) = log[Γ(ν+1) (2/κ)^ν I_ν(κ)], ν = d/2 - 1. At a large order b it has Debye's
expansion in 1/b, which holds for all κ at once; the recurrence of Bessel functions leads from there
down to the order that was asked for, in a direction and a form in which nothing cancels. No
special function is called, so it runs wherever torch does.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kasuri.numerics.torch_internals import is_exporting

# Sixteen terms from order 14 on leave 1e-13 relative in each of `Series`, 2e-12 in the derivative of the
# slope. More terms of an asymptotic expansion help only if the order to start from is high enough.
TERMS = 16
LOWEST = 14.0

NEWTON = 5  # steps of the inverse; the start is within percents
CLOSE = 1e-9  # distance of a resultant to 1 within which Newton's steps would be those of rounding


class Series(NamedTuple):
    """Functions of κ, each accurate relative to its own size."""

    ell: Tensor  # ℓ(κ) = log E exp(κ x_1) of a uniform x on the sphere; convex, at most κ
    divergence: Tensor  # κ A(κ) - ℓ(κ), the KL to the uniform distribution
    resultant: Tensor  # A(κ) = ℓ'(κ) = I_{d/2}(κ) / I_{d/2-1}(κ), the length of the mean vector
    spread: Tensor  # A(κ)/κ, the variance in every direction across μ; 1/d at κ = 0
    slope: Tensor  # A'(κ), the variance along μ


def terms(kappa: Tensor, d: int) -> Series:
    """All functions at κ, a tensor of any shape, in its type.

    One operation, whose derivatives are made of its own results (those of `slope` to 1e-6, all others to
    1e-12): differentiating the series would lose digits where κ is large, and a compiler would take a
    minute over it. Exported programs hold the series, so that they need nothing of kasuri.

    Examples:
        >>> terms(torch.tensor([0.0, 2.0]), 3).resultant
        tensor([0.0000, 0.5373])
    """
    function: Callable[..., Series] = _Terms.apply
    if torch.compiler.is_compiling():  # exporting is compiling
        function = _terms if is_exporting() else _terms_op
    return Series(*(part.to(real_type(kappa)) for part in function(kappa.double(), d)))


@torch.no_grad()
def inverse_mean_resultant(resultant: Tensor, d: int) -> Tensor:
    """The κ with A(κ) = resultant, (...): infinite at 1, not a number beyond.

    The length of the mean of unit vectors gives the maximum-likelihood concentration. By Newton's method,
    without derivatives.

    Args:
        resultant: (...) in [0, 1].
        d: dimension of the space around the sphere.

    Examples:
        >>> inverse_mean_resultant(terms(torch.tensor([0.5, 50.0]), 7).resultant, 7)
        tensor([ 0.5000, 50.0000])
    """
    wide = resultant.double()
    inner = torch.where(wide < 1, wide, 0.0)
    approximate = inner * (d - inner.square()) / ((1 - inner) * (1 + inner))
    # so close to 1 that steps would be those of rounding; `about` is as exact as a resultant can tell there
    close = inner > 1 - CLOSE
    inner, kappa = torch.where(close, 0.0, inner), torch.where(close, 0.0, approximate)
    for _ in range(NEWTON):
        now = terms(kappa, d)
        kappa = kappa - (now.resultant - inner) / now.slope
    beyond = torch.where(wide == 1, math.inf, math.nan)
    kappa = torch.where(wide < 1, torch.where(close, approximate, kappa), beyond)
    return kappa.to(real_type(resultant))


def kl(kappa_q: Tensor, kappa_p: Tensor, d: int, gap: Tensor | float = 0.0) -> Tensor:
    """KL(vMF(μ_q, κ_q) ‖ vMF(μ_p, κ_p)) in float64, (...), with an error of rounding in κ.

    ℓ(κ_p) - ℓ(κ_q) - (κ_p - κ_q) A(κ_q) for the concentrations, and κ_p gap A(κ_q) for the directions. The
    gap is 1 - μ_pᵀμ_q, best as ½ ‖μ_p - μ_q‖²: of close directions a cosine has lost its digits.
    """
    kappa_q, kappa_p = kappa_q.double(), kappa_p.double()
    q, p = terms(kappa_q, d), terms(kappa_p, d)
    return kappa_p * gap * q.resultant + (p.ell - q.ell - (kappa_p - kappa_q) * q.resultant)


def log_surface(d: int) -> float:
    """Log of the surface 2 π^{d/2} / Γ(d/2) of the unit sphere in R^d."""
    return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)


def entropy(kappa: Tensor, d: int) -> Tensor:
    """Differential entropy with respect to the surface of the sphere, log S_d - KL to uniform, (...)."""
    return (log_surface(d) - terms(kappa.double(), d).divergence).to(real_type(kappa))


def check_dimension(d: int) -> None:
    """Refuse spheres that are no manifold."""
    if d < 2:
        raise ValueError(
            f"a von Mises-Fisher distribution in dimension {d}: the unit sphere of R^1 is two points; "
            "use d >= 2, or a Bernoulli sign"
        )


def real_type(tensor: Tensor) -> torch.dtype:
    """The tensor's own type; of whole numbers torch's default."""
    return tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()


def debye_polynomials(count: int) -> list[dict[int, float]]:
    """D_1, D_2, ... of log I_b = (leading terms) + Σ_k b^-k D_k(b/√(b² + κ²)), as {exponent: coefficient}.

    Bessel's equation gives D_1' = ⅛(1 - 5p²) and D_{k+1}' = ½(v D_k')' + ½v Σ_{i+j=k} D_i' D_j' with
    v = p²(1 - p²). Signs alternate with exponents, so that only numbers of one sign are ever added.
    """
    slopes = [{0: 1 / 8, 2: -5 / 8}]
    while len(slopes) < count:
        following: dict[int, float] = defaultdict(float)
        for e, c in slopes[-1].items():
            following[e + 1] += c * (e + 2) / 2
            following[e + 3] -= c * (e + 4) / 2
        for left, right in zip(slopes[:-1], reversed(slopes[:-1]), strict=True):
            for (e, c), (f, g) in product(left.items(), right.items()):
                following[e + f + 2] += c * g / 2
                following[e + f + 4] -= c * g / 2
        slopes.append(following)
    return [{e + 1: c / (e + 1) for e, c in slope.items()} for slope in slopes]


_POLYNOMIALS = debye_polynomials(TERMS)


@lru_cache(maxsize=1024)
def _coefficients(b: float) -> tuple[list[list[float]], float, float]:
    """(e, c_e, c_e e, c_e e²) for every exponent e; Σ c_e e + ½ and Σ c_e e², of order b."""
    sums = [0.0] * (3 * TERMS)
    for k, polynomial in enumerate(_POLYNOMIALS):
        for e, c in polynomial.items():
            sums[e - 1] += c / b ** (k + 1)
    table = [[e, c, c * e, c * e**2] for e, c in enumerate(sums, 1)]
    # ½ log p, the last of the leading terms, has the derivatives of a power with S_1 = ½
    return table, sum(row[2] for row in table) + 0.5, sum(row[3] for row in table)


def _terms(kappa: Tensor, d: int) -> Series:
    check_dimension(d)
    order = d / 2 - 1
    steps = max(0, math.ceil(LOWEST - order))
    q = kappa.square()
    now = _expansion(kappa, order + steps)
    if not steps:
        return now
    # I_{o-1} = I_{o+1} + (2o/κ) I_o, for spreads and slopes; the others are sums over the orders
    spreads, slopes, orders = [now.spread], [now.slope], []
    for step in range(steps):
        twice = 2 * (order + steps - step)
        spreads.append((q * spreads[-1] + twice).reciprocal())
        slopes.append((twice - q * slopes[-1]) * spreads[-1].square())
        orders.append(twice)
    above = torch.stack(spreads[:-1], -1)
    twices = torch.tensor(orders, dtype=kappa.dtype, device=kappa.device)
    wide = q.unsqueeze(-1)
    logs = torch.log1p(wide * above / twices).sum(-1)
    rise = (torch.stack(spreads[1:], -1) * (torch.stack(slopes[:-1], -1) + above)).sum(-1)
    return Series(
        ell=now.ell + logs,
        divergence=now.divergence + (q * rise - logs),
        resultant=kappa * spreads[-1],
        spread=spreads[-1],
        slope=slopes[-1],
    )


_SCHEMA = "(Tensor kappa, int d) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
_terms_op = torch.library.custom_op("kasuri::vmf_terms", _terms, mutates_args=(), schema=_SCHEMA)


@_terms_op.register_fake
def _(kappa: Tensor, d: int) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(kappa) for _ in Series._fields)


@_terms_op.register_vmap
def _(info: Any, dims: tuple[int | None, ...], kappa: Tensor, d: int) -> tuple[Any, Any]:
    return _terms_op(kappa, d), (dims[0],) * len(Series._fields)


def _save_terms(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, ...]) -> None:
    ctx.d = inputs[1]
    ctx.save_for_backward(inputs[0], *output[2:])


def _terms_backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
    """By Bessel's equation, A'' = -2 A A' - (d-1) (A/κ)'; close to 0 by two terms of the power series."""
    kappa, resultant, spread, slope = ctx.saved_tensors
    d = ctx.d
    small = kappa < 0.01 * d
    first = -2 * kappa / (d * d * (d + 2))
    second = 8 * kappa.clamp(max=0.01 * d).pow(3) / (d**3 * (d + 2) * (d + 4))
    quotient = (slope - spread) / torch.where(small, 1.0, kappa)
    bend = torch.where(small, first + second, quotient)
    curve = torch.where(small, 3 * first + 5 * second, -2 * resultant * slope - (d - 1) * bend)
    by_resultant = grads[2] + grads[1] * kappa
    return grads[0] * resultant + by_resultant * slope + grads[3] * bend + grads[4] * curve, None


_terms_op.register_autograd(_terms_backward, setup_context=_save_terms)


class _Terms(torch.autograd.Function):
    """The operation for eager code: torch.func cannot differentiate operations of a library."""

    forward = staticmethod(_terms)
    setup_context = staticmethod(_save_terms)
    backward = staticmethod(_terms_backward)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], kappa: Tensor, d: int) -> tuple[Any, Any]:
        return _Terms.apply(kappa, d), (dims[0],) * len(Series._fields)


def _expansion(kappa: Tensor, b: float) -> Series:
    """The quantities at a large order b.

    With R = √(b² + κ²) and p = b/R the sums are S_j = Σ_e c_e e^j p^e; d(p^e)/dκ = -e κ/R² p^e.
    """
    q = kappa.square()
    rows, first, second = _coefficients(b)
    table = torch.tensor(rows, dtype=q.dtype, device=q.device)
    root = (q + b * b).sqrt()
    wide = b + root
    log_p = torch.log1p(q / (b * b)) * -0.5
    powers = torch.expm1(log_p.unsqueeze(-1) * table[:, 0])  # p^e - 1, exact where κ is small
    s0, s1, s2 = (powers @ table[:, 1:]).unbind(-1)
    s1, s2 = s1 + first, s2 + second
    inverse = 1 / root.square()
    w = q * inverse  # 1 - p²
    s = q / (b * wide)
    log_s = b * torch.log1p(s / 2)
    rest = log_p / 2 + s0
    spread = 1 / wide - s1 * inverse
    return Series(
        ell=b * s - log_s + rest,
        divergence=log_s - rest - s1 * w,
        resultant=kappa * spread,
        spread=spread,
        slope=b / (root * wide) + (s1 * (2 * w - 1) + s2 * w) * inverse,
    )

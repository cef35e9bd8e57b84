"""Functions of the concentration of a von Mises-Fisher distribution on the unit sphere of R^d.

vMF(x | μ, κ) = exp(κ μᵀx - ℓ(κ)) / S_d, with S_d the surface of the sphere and ℓ(0) = 0. Concentrations
are tensors of any shape, d is a number of at least 2, and κ = 0 is the uniform distribution. All is
computed in float64, whatever comes in and goes out: to 1e-12 relative for d from 2 to 4000 and κ from 0
to 1e5, and without a cliff beyond. Derivatives are those of the functions, not of their approximations.

Everything follows from ℓ_ν(κ) = log[Γ(ν+1) (2/κ)^ν I_ν(κ)], ν = d/2 - 1. At a large order b it has Debye's
expansion in 1/b, which holds for all κ at once; the recurrence of Bessel functions leads from there
down to the order that was asked for, in a direction and a form in which nothing cancels. No
special function is called, so it runs wherever torch does.
"""

import math
from collections import defaultdict
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
FEWER = ((400.0, 4), (100.0, 6), (40.0, 9))  # terms that are enough from these orders on

NEWTON = 5  # steps of the inverse; the start is within percents
CLOSE = 1e-9  # distance of a resultant to 1 within which Newton's steps would be those of rounding


def ell(kappa: Tensor, d: int) -> Tensor:
    """ℓ(κ) = log E exp(κ x_1) of a uniform x on the sphere, (...); 0 at κ = 0, convex, at most κ."""
    return terms(kappa.double(), d).ell.to(real_type(kappa))


def divergence(kappa: Tensor, d: int, prior: float = 0.0) -> Tensor:
    """KL(vMF(μ, κ) ‖ vMF(μ, prior)) of the same mean direction, (...): κ A(κ) - ℓ(κ) if prior = 0."""
    of = terms(kappa.double(), d)
    value = of.divergence
    if prior:
        value = value - prior * of.resultant + terms(value.new_tensor(prior), d).ell
    return value.to(real_type(kappa))


def mean_resultant(kappa: Tensor, d: int) -> Tensor:
    """A(κ) = ℓ'(κ) = I_{d/2}(κ) / I_{d/2-1}(κ), the length of the mean vector, (...)."""
    return terms(kappa.double(), d).resultant.to(real_type(kappa))


def mean_resultant_complement(kappa: Tensor, d: int) -> Tensor:
    """1 - A(κ), accurate where A is close to 1, (...)."""
    of = terms(kappa.double(), d)
    # A' = 1 - A² - (d-1) A/κ, solved for 1 - A: nothing cancels; the derivative is that of -A
    value = (of.slope + (d - 1) * of.spread) / (1 + of.resultant)
    value = value.detach() - (of.resultant - of.resultant.detach())
    return value.to(real_type(kappa))


def mean_resultant_slope(kappa: Tensor, d: int) -> Tensor:
    """A'(κ), the variance of μᵀx, (...)."""
    return terms(kappa.double(), d).slope.to(real_type(kappa))


def tangent_variance(kappa: Tensor, d: int) -> Tensor:
    """A(κ)/κ, the variance of x in every direction across μ, (...)."""
    return terms(kappa.double(), d).spread.to(real_type(kappa))


@torch.no_grad()
def inverse_mean_resultant(resultant: Tensor, d: int) -> Tensor:
    """The κ with A(κ) = resultant, (...): infinite at 1, not a number beyond.

    The length of the mean of unit vectors gives the maximum-likelihood concentration. By Newton's method,
    without derivatives.

    Args:
        resultant: (...) in [0, 1].
        d: dimension of the space around the sphere.

    Examples:
        >>> inverse_mean_resultant(mean_resultant(torch.tensor([0.5, 50.0]), 7), 7)
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


def kl(kappa_q: Tensor, kappa_p: Tensor, gap: Tensor, d: int) -> Tensor:
    """KL(vMF(μ_q, κ_q) ‖ vMF(μ_p, κ_p)) in float64, (...), with an error of rounding in κ.

    κ_p (1 - μ_pᵀμ_q) A(κ_q) for the directions, and ℓ(κ_p) - ℓ(κ_q) - (κ_p - κ_q) A(κ_q) for the
    concentrations. The gap is 1 - μ_pᵀμ_q, best as ½ ‖μ_p - μ_q‖²: of close directions a cosine has lost its
    digits.
    """
    q, p, gap = kappa_q.double(), kappa_p.double(), gap.double()
    resultant = mean_resultant(q, d)
    return p * gap * resultant + (ell(p, d) - ell(q, d) - (p - q) * resultant)


def log_surface(d: int) -> float:
    """Log of the surface 2 π^{d/2} / Γ(d/2) of the unit sphere in R^d."""
    return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)


def entropy(kappa: Tensor, d: int) -> Tensor:
    """Differential entropy with respect to the surface of the sphere, log S_d - KL to uniform, (...)."""
    return (log_surface(d) - divergence(kappa.double(), d)).to(real_type(kappa))


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


class Series(NamedTuple):
    """Quantities of order ν = d/2 - 1 at κ, each accurate relative to its own size."""

    ell: Tensor  # ℓ(κ)
    divergence: Tensor  # κ ℓ'(κ) - ℓ(κ)
    resultant: Tensor  # ℓ'(κ)
    spread: Tensor  # ℓ'(κ) / κ, which is 1/d at 0
    slope: Tensor  # ℓ''(κ)


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
    count = next((count for order, count in FEWER if b >= order), TERMS)
    sums = [0.0] * (3 * count)
    for k, polynomial in enumerate(_POLYNOMIALS[:count]):
        for e, c in polynomial.items():
            sums[e - 1] += c / b ** (k + 1)
    table = [[e, c, c * e, c * e**2] for e, c in enumerate(sums, 1)]
    # ½ log p, the last of the leading terms, has the derivatives of a power with S_1 = ½
    return table, sum(row[2] for row in table) + 0.5, sum(row[3] for row in table)


def terms(kappa: Tensor, d: int) -> Series:
    """All quantities at κ, a float64 tensor of any shape, for dimension d.

    One operation, whose derivatives are made of its own results (those of `slope` to 1e-6, all others to
    1e-12): differentiating the series would lose digits where κ is large, and a compiler would take a
    minute over it. Exported programs hold the series, so
    that they need nothing of kasuri.
    """
    if is_exporting():
        return _terms(kappa, d)
    function = _terms_op if torch.compiler.is_compiling() else _Terms.apply
    return Series(*function(kappa, d))


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


@lru_cache(maxsize=4096)
def _terms_of_number(kappa: float, d: int) -> tuple[float, ...]:
    """Kept by value: a layer asks for those of its one κ several times in a step, and in every evaluation."""
    wide = torch.tensor(kappa, dtype=torch.float64, device="cpu")
    return tuple(part.item() for part in _terms(wide, d))


def _computed(kappa: Tensor, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if kappa.numel() != 1 or kappa.device.type != "cpu":
        return _terms(kappa, d)
    ell, divergence, resultant, spread, slope = (
        torch.full_like(kappa, value) for value in _terms_of_number(kappa.item(), d)
    )
    return ell, divergence, resultant, spread, slope


_terms_op = torch.library.custom_op("kasuri::vmf_terms", _computed, mutates_args=())


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

    forward = staticmethod(_computed)
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

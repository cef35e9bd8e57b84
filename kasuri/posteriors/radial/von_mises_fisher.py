"""Functions of the concentration of a von Mises-Fisher distribution on the unit sphere of R^d.

vMF(x | μ, κ) = exp(κ μᵀx - ℓ(κ)) / S_d, with S_d the surface of the sphere and ℓ(0) = 0. Concentrations
are tensors of any shape, d is a number of at least 2, and κ = 0 is the uniform distribution. All is
computed in float64, whatever comes in and goes out: to 1e-12 relative for d from 2 to 4000 and κ from 0
to 1e5, and without a cliff beyond. Derivatives are those of
the functions, not of their approximations.

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

# Sixteen terms from order 14 on leave 1e-13 relative in each of `Series`, 2e-12 in the derivative of the
# slope. More terms of an asymptotic expansion help only if the order to start from is high enough.
TERMS = 16
LOWEST = 14.0
FEWER = ((400.0, 4), (100.0, 6), (40.0, 9))  # terms that are enough from these orders on

NEWTON = 3  # steps of the inverse before the two with derivatives; the start is within percents
CLOSE = 1e-9  # distance of a resultant to 1 within which Newton's steps would be those of rounding

Function = Callable[[Tensor], Tensor]


def ell(kappa: Tensor, d: int) -> Tensor:
    """ℓ(κ) = log E exp(κ x_1) of a uniform x on the sphere; 0 at κ = 0, convex, at most κ.

    Args:
        kappa: (...) concentrations, not negative.
        d: dimension of the space around the sphere.

    Examples:
        >>> ell(torch.tensor([0.0, 1.0]), 3)  # log(sinh κ / κ)
        tensor([0.0000, 0.1614])
    """
    return _narrow(kappa, d, _exactly(lambda k: terms(k, d).ell, _ratio(d)))


def divergence_from_uniform(kappa: Tensor, d: int) -> Tensor:
    """KL(vMF(μ, κ) ‖ uniform) = κ A(κ) - ℓ(κ), (...)."""
    value = _exactly(lambda k: terms(k, d).divergence, lambda k: k * _slope(d)(k))
    return _narrow(kappa, d, value)


def mean_resultant(kappa: Tensor, d: int) -> Tensor:
    """A(κ) = ℓ'(κ) = I_{d/2}(κ) / I_{d/2-1}(κ), the length of the mean vector, (...).

    Examples:
        >>> mean_resultant(torch.tensor([0.0, 1.0]), 3)  # coth κ - 1/κ
        tensor([0.0000, 0.3130])
    """
    return _narrow(kappa, d, _ratio(d))


def mean_resultant_complement(kappa: Tensor, d: int) -> Tensor:
    """1 - A(κ), accurate where A is close to 1, (...)."""
    return _narrow(kappa, d, _complement(d))


def mean_resultant_slope(kappa: Tensor, d: int) -> Tensor:
    """A'(κ), the variance of μᵀx, (...)."""
    return _narrow(kappa, d, _slope(d))


def tangent_variance(kappa: Tensor, d: int) -> Tensor:
    """A(κ)/κ, the variance of x in every direction across μ, (...)."""
    return _narrow(kappa, d, lambda k: terms(k, d).spread)


def inverse_mean_resultant(resultant: Tensor, d: int) -> Tensor:
    """The κ with A(κ) = resultant, (...): infinite at 1, not a number beyond.

    The length of the mean of unit vectors gives the maximum-likelihood concentration.

    Args:
        resultant: (...) in [0, 1].
        d: dimension of the space around the sphere.

    Examples:
        >>> inverse_mean_resultant(mean_resultant(torch.tensor([0.5, 50.0]), 7), 7)
        tensor([ 0.5000, 50.0000])
    """
    return _narrow(resultant, d, lambda r: _inverse(r, d))


def kl(kappa_q: Tensor, kappa_p: Tensor, gap: Tensor, d: int) -> Tensor:
    """KL(vMF(μ_q, κ_q) ‖ vMF(μ_p, κ_p)) in float64, (...), with an error of rounding in κ.

    κ_p (1 - μ_pᵀμ_q) A(κ_q) for the directions, and ℓ(κ_p) - ℓ(κ_q) - (κ_p - κ_q) A(κ_q) for the
    concentrations.

    Args:
        kappa_q: (...) concentrations of q.
        kappa_p: (...) concentrations of p.
        gap: (...) 1 - μ_pᵀμ_q, best as ½ ‖μ_p - μ_q‖²: of close directions a cosine has lost its digits.
        d: dimension of the space around the sphere.

    Examples:
        >>> one, two = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> kl(one, two, 0 * one, 3)
        tensor(0.1207, dtype=torch.float64)
    """
    q, p, gap = kappa_q.double(), kappa_p.double(), gap.double()
    resultant = mean_resultant(q, d)
    return p * gap * resultant + (ell(p, d) - ell(q, d) - (p - q) * resultant)


def log_surface(d: int) -> float:
    """Log of the surface 2 π^{d/2} / Γ(d/2) of the unit sphere in R^d."""
    check_dimension(d)
    return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)


def entropy(kappa: Tensor, d: int) -> Tensor:
    """Differential entropy with respect to the surface of the sphere, log S_d - KL to uniform, (...)."""
    return (log_surface(d) - divergence_from_uniform(kappa.double(), d)).to(_type_of(kappa))


def check_dimension(d: int) -> None:
    """Refuse spheres that are no manifold."""
    if d < 2:
        raise ValueError(
            f"a von Mises-Fisher distribution in dimension {d}: the unit sphere of R^1 is two points and has "
            "no directions to concentrate on; use d >= 2, or a Bernoulli sign"
        )


def _narrow(kappa: Tensor, d: int, function: Function) -> Tensor:
    """The function in float64, of and as the tensor's own type."""
    check_dimension(d)
    return function(kappa.double()).to(_type_of(kappa))


def _type_of(kappa: Tensor) -> torch.dtype:
    """Of results; those of whole numbers are none."""
    return kappa.dtype if kappa.is_floating_point() else torch.get_default_dtype()


def _inverse(resultant: Tensor, d: int) -> Tensor:
    """Newton's method; its last two steps carry the derivatives, each doubling the orders that are right."""
    inner = torch.where(resultant < 1, resultant, 0.0)
    about = inner * (d - inner.square()) / ((1 - inner) * (1 + inner))
    # so close to 1 that steps would be those of rounding; `about` is as exact as a resultant can tell there
    close = inner > 1 - CLOSE
    inner = torch.where(close, 0.0, inner)
    fixed = inner.detach()
    kappa = torch.where(close, 0.0, about.detach())
    for _ in range(NEWTON):
        found = terms(kappa, d)
        kappa = kappa - (kappa * found.spread - fixed) / found.slope
    for _ in range(2):
        kappa = kappa - (_ratio(d)(kappa) - inner) / _slope(d)(kappa)
    beyond = torch.where(resultant == 1, math.inf, math.nan)
    return torch.where(resultant < 1, torch.where(close, about, kappa), beyond)


def _ratio(d: int) -> Function:
    """A(κ)."""
    return _exactly(lambda k: k * terms(k, d).spread, _slope(d))


def _complement(d: int) -> Function:
    """1 - A(κ)."""

    def value(kappa: Tensor) -> Tensor:
        found = terms(kappa, d)
        # A' = 1 - A² - (d-1) A/κ, solved for 1 - A: nothing cancels
        return (found.slope + (d - 1) * found.spread) / (1 + kappa * found.spread)

    return _exactly(value, lambda k: -_slope(d)(k))


def _slope(d: int) -> Function:
    """A'(κ); its plain derivative is accurate."""
    return lambda k: terms(k, d).slope


def _exactly(value: Function, derivative: Function) -> Function:
    """`value` with a derivative of its own; while compiling, the plain function.

    torch.compile cannot trace such functions; the plain derivatives have errors of 1e-15 κ.
    """

    def function(kappa: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return value(kappa)
        return _Exactly.apply(kappa, value, derivative)

    return function


class _Exactly(torch.autograd.Function):
    """Element by element: for vmap a batch is more elements, and every operation is called once."""

    @staticmethod
    def forward(kappa: Tensor, value: Function, derivative: Function) -> Tensor:
        return value(kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kappa, _, ctx.derivative = inputs
        ctx.save_for_backward(kappa)
        ctx.save_for_forward(kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        return grad * ctx.derivative(kappa), None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        kappa: Tensor,
        value: Function,
        derivative: Function,
    ) -> tuple[Tensor, int | None]:
        found: Tensor = _Exactly.apply(kappa, value, derivative)
        return found, dims[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        (kappa,) = ctx.saved_tensors
        return tangent * ctx.derivative(kappa)


def divergence(kappa: Tensor, prior: float, d: int) -> Tensor:
    """KL(vMF(μ, κ) ‖ vMF(μ, prior)) of the same mean direction, in float64, in one evaluation.

    Args:
        kappa: (...) concentrations in float64.
        prior: concentration of the prior, 0 for the uniform distribution.
        d: dimension of the space around the sphere.
    """

    def value(kappa: Tensor) -> Tensor:
        found = terms(kappa, d)
        return found.divergence - prior * kappa * found.spread

    function = _exactly(value, lambda k: (k - prior) * _slope(d)(k))
    if prior == 0:
        return function(kappa)
    if torch.compiler.is_compiling():  # which sees no caches
        return function(kappa) + terms(torch.full_like(kappa, prior), d).ell
    return function(kappa) + _ell_of_number(prior, d)


@lru_cache(maxsize=1024)
def _ell_of_number(kappa: float, d: int) -> float:
    return float(terms(torch.tensor(kappa, dtype=torch.float64, device="cpu"), d).ell)


class Series(NamedTuple):
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


def terms(kappa: Tensor, d: int) -> Series:
    """All quantities at κ, a float64 tensor of any shape, for dimension d.

    Differentiable as it stands. The derivative of `slope` is as accurate as `slope`; those of the
    others lose digits at large κ, and their accurate values are in `slope` and `spread`.

    Args:
        kappa: (...) concentrations.
        d: dimension of the space around the sphere.
    """
    order = d / 2 - 1
    steps = max(0, math.ceil(LOWEST - order))
    found = _expansion(kappa, order + steps)
    for step in range(steps):
        found = _down(kappa, found, order + steps - step)
    return found


def _expansion(kappa: Tensor, b: float) -> Series:
    """The quantities at a large order b.

    With R = √(b² + κ²) and p = b/R the sums are S_j = Σ_e c_e e^j p^e; d(p^e)/dκ = -e κ/R² p^e.
    """
    count = next((count for order, count in FEWER if b >= order), TERMS)
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
    return Series(
        ell=b * s - log_s + rest,
        divergence=log_s - rest - s1 * w,
        spread=1 / wide - s1 * inverse,
        slope=b / (root * wide) + (s1 * (2 * w - 1) + s2 * w) * inverse,
    )


def _down(kappa: Tensor, above: Series, order: float) -> Series:
    """The quantities of order - 1 from those of `order`, by I_{o-1} = I_{o+1} + (2o/κ) I_o."""
    q, twice = kappa.square(), 2 * order
    ahead = q * above.spread
    spread = 1 / (twice + ahead)
    log = torch.log1p(ahead / twice)
    return Series(
        ell=above.ell + log,
        divergence=above.divergence + q * spread * (above.slope + above.spread) - log,
        spread=spread,
        slope=(twice - q * above.slope) * spread.square(),
    )

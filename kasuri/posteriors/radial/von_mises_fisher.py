"""Functions of the concentration of a von Mises-Fisher distribution on the unit sphere of R^d.

vMF(x | μ, κ) = exp(κ μᵀx - ℓ(κ)) / S_d, with S_d the surface of the sphere and ℓ(0) = 0. Concentrations
are tensors of any shape, d is a number of at least 2, and κ = 0 is the uniform distribution. All is
computed in float64, whatever comes in and goes out: to 1e-12 relative for d from 2 to 4000 and κ from 0
to 1e5 (the KL of two distributions to 1e-11), and without a cliff beyond. Derivatives are those of
the functions, not of their approximations.
"""

import math

import torch
from torch import Tensor

from kasuri.posteriors.radial.vmf_exact import Function, bregman, complement, exactly, ratio, slope
from kasuri.posteriors.radial.vmf_series import terms

NEWTON = (
    3  # steps of the inverse before the two that carry derivatives; the start is within percents
)


CLOSE = 1e-9


def ell(kappa: Tensor, d: int) -> Tensor:
    """ℓ(κ) = log E exp(κ x_1) of a uniform x on the sphere; 0 at κ = 0, convex, at most κ.

    Args:
        kappa: (...) concentrations, not negative.
        d: dimension of the space around the sphere.

    Examples:
        >>> ell(torch.tensor([0.0, 1.0]), 3)  # log(sinh κ / κ)
        tensor([0.0000, 0.1614])
    """
    return _narrow(kappa, d, _ell(d))


def divergence_from_uniform(kappa: Tensor, d: int) -> Tensor:
    """KL(vMF(μ, κ) ‖ uniform) = κ A(κ) - ℓ(κ), (...).

    Examples:
        >>> divergence_from_uniform(torch.tensor([0.0, 1.0]), 3)
        tensor([0.0000, 0.1516])
    """
    value = exactly(lambda k: terms(k, d).divergence, lambda k: k * slope(d)(k))
    return _narrow(kappa, d, value)


def mean_resultant(kappa: Tensor, d: int) -> Tensor:
    """A(κ) = ℓ'(κ) = I_{d/2}(κ) / I_{d/2-1}(κ), the length of the mean vector, (...).

    Examples:
        >>> mean_resultant(torch.tensor([0.0, 1.0]), 3)  # coth κ - 1/κ
        tensor([0.0000, 0.3130])
    """
    return _narrow(kappa, d, ratio(d))


def mean_resultant_complement(kappa: Tensor, d: int) -> Tensor:
    """1 - A(κ), accurate where A is close to 1, (...).

    Examples:
        >>> mean_resultant_complement(torch.tensor(1e9, dtype=torch.float64), 3)
        tensor(1.0000e-09, dtype=torch.float64)
    """
    return _narrow(kappa, d, complement(d))


def mean_resultant_slope(kappa: Tensor, d: int) -> Tensor:
    """A'(κ), the variance of μᵀx, (...).

    Examples:
        >>> mean_resultant_slope(torch.tensor([0.0, 1.0]), 3)
        tensor([0.3333, 0.2759])
    """
    return _narrow(kappa, d, slope(d))


def tangent_variance(kappa: Tensor, d: int) -> Tensor:
    """A(κ)/κ, the variance of x in every direction across μ, (...).

    Examples:
        >>> tangent_variance(torch.tensor([0.0, 1.0]), 3)
        tensor([0.3333, 0.3130])
    """
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


def kl(kappa_q: Tensor, kappa_p: Tensor, cosine: Tensor, d: int) -> Tensor:
    """KL(vMF(μ_q, κ_q) ‖ vMF(μ_p, κ_p)), (...), accurate also where it is close to 0.

    κ_p (1 - μ_pᵀμ_q) A(κ_q) for the directions, and ℓ(κ_p) - ℓ(κ_q) - (κ_p - κ_q) A(κ_q) for the
    concentrations.

    Args:
        kappa_q: (...) concentrations of q.
        kappa_p: (...) concentrations of p.
        cosine: (...) μ_pᵀμ_q.
        d: dimension of the space around the sphere.

    Examples:
        >>> one, two = torch.tensor(1.0), torch.tensor(2.0)
        >>> kl(one, two, one, 3)
        tensor(0.1207)
    """
    dtype = torch.promote_types(torch.promote_types(kappa_q.dtype, kappa_p.dtype), cosine.dtype)
    return kl_of_gap(kappa_q, kappa_p, 1 - cosine.double(), d).to(dtype)


def kl_of_gap(kappa_q: Tensor, kappa_p: Tensor, gap: Tensor, d: int) -> Tensor:
    """As `kl`, in float64, from 1 - μ_pᵀμ_q: of close directions a cosine has lost the digits of that.

    Args:
        kappa_q: (...) concentrations of q.
        kappa_p: (...) concentrations of p.
        gap: (...) ½ ‖μ_p - μ_q‖² in float64.
        d: dimension of the space around the sphere.

    Examples:
        >>> kappa, gap = torch.tensor([1e5, 1e-18], dtype=torch.float64)
        >>> kl_of_gap(kappa, kappa, gap, 3)  # κ (1 - cos) A(κ)
        tensor(9.9999e-14, dtype=torch.float64)
    """
    check_dimension(d)
    q, p = torch.broadcast_tensors(kappa_q.double(), kappa_p.double())
    return p * gap * ratio(d)(q) + bregman(q, p, d)


def log_surface(d: int) -> float:
    """Log of the surface 2 π^{d/2} / Γ(d/2) of the unit sphere in R^d.

    Examples:
        >>> round(math.exp(log_surface(2)) / math.pi, 12)
        2.0
    """
    check_dimension(d)
    return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)


def entropy(kappa: Tensor, d: int) -> Tensor:
    """Differential entropy with respect to the surface of the sphere, log S_d - KL to uniform, (...).

    Examples:
        >>> entropy(torch.tensor(0.0), 3).exp() / math.pi
        tensor(4.0000)
    """
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


def _ell(d: int) -> Function:
    return exactly(lambda k: terms(k, d).ell, ratio(d))


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
        kappa = kappa - (ratio(d)(kappa) - inner) / slope(d)(kappa)
    beyond = torch.where(resultant == 1, math.inf, math.nan)
    return torch.where(resultant < 1, torch.where(close, about, kappa), beyond)

"""KL divergences of radii: KL(q ‖ p) for positive numbers under half-Cauchy, Gamma and Weibull priors.

All are -H(log z) - E[log p(z) + log z], so that any q that knows its entropy and moments goes with any
prior. Exponentials are held at e^30 in value, not in slope: far-off parameters cost much and
are driven back, and nothing overflows.
"""

import math

from torch import Tensor

from kasuri.numerics.safe import held
from kasuri.posteriors.radial.positive import LogNormal, Positive

TOP = 30.0


def to_gamma(q: Positive, shape: float, scale: float) -> Tensor:
    """KL(q ‖ Gamma(shape, scale)), elementwise: -H - a E log z + E z/θ + a log θ + log Γ(a).

    Args:
        q: of the radii.
        shape: a.
        scale: θ, the inverse of a rate.

    Examples:
        >>> import torch
        >>> from kasuri.posteriors.radial.positive import Gamma
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> to_gamma(Gamma(zero, zero), 1.0, 1.0)  # both are the exponential distribution
        tensor([0.], dtype=torch.float64)
    """
    log_scale = math.log(scale)
    paid = held(q.log_moment(1) - log_scale, TOP).exp()
    return paid - q.log_entropy() - shape * (q.mean_log() - log_scale) + math.lgamma(shape)


def to_inverse_gamma(q: LogNormal, shape: float, scale: float) -> Tensor:
    """KL(q ‖ inverse-Gamma(shape, scale)), elementwise: -H + a E log z + β E 1/z - a log β + log Γ(a).

    Args:
        q: of the radii; log-normal, because E 1/z of other kinds may be infinite.
        shape: a.
        scale: β.

    Examples:
        >>> import torch
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> q, inverse = LogNormal(zero + 0.3, zero), LogNormal(zero - 0.3, zero)
        >>> torch.equal(to_inverse_gamma(q, 0.5, 2.0), to_gamma(inverse, 0.5, 1 / 2))
        True
    """
    return to_gamma(LogNormal(-q.loc, q.log_variance), shape, 1 / scale)


def to_weibull(q: Positive, shape: float, scale: float) -> Tensor:
    """KL(q ‖ Weibull(shape, scale)), elementwise: -H - k E log z + E (z/λ)^k + k log λ - log k.

    Args:
        q: of the radii.
        shape: k.
        scale: λ.

    Examples:
        >>> import torch
        >>> from kasuri.posteriors.radial.positive import Weibull
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> to_weibull(Weibull(zero, zero), 1.0, 1.0).abs() < 1e-15
        tensor([True])
    """
    log_scale = math.log(scale)
    paid = held(q.log_moment(shape) - shape * log_scale, TOP).exp()
    return paid - q.log_entropy() - shape * (q.mean_log() - log_scale) - math.log(shape)


def to_half_cauchy(q: LogNormal, scale: float, single: bool = False) -> Tensor:
    """KL(q ‖ C⁺(scale)), elementwise: -H - E log z + E log(1 + z²/γ²) + log(πγ/2).

    The expectation is a sum over nodes (`LogNormal.mean_softplus`, to 1e-9); all else is exact.

    Args:
        q: of the radii.
        scale: γ, the median of the prior.
        single: whether single precision is enough.

    Examples:
        >>> import torch
        >>> q = LogNormal(torch.zeros(()).double(), torch.tensor(0.9).double())
        >>> to_half_cauchy(q, 1.0)
        tensor(0.0240, dtype=torch.float64)
    """
    log_scale = math.log(scale)
    tail = q.mean_softplus(2.0, 2 * log_scale, single)
    return tail - q.log_entropy() - (q.mean_log() - log_scale) + math.log(math.pi / 2)


def to_half_cauchy_augmented(alpha: LogNormal, beta: LogNormal, scale: float) -> Tensor:
    """KL of two factors, z² = αβ, to those of C⁺(scale), elementwise and in closed form.

    α ~ Gamma(½, scale γ²) and β ~ inverse-Gamma(½, 1) make z half-Cauchy. At least `to_half_cauchy` of z,
    for what is known of α and β beyond their product is paid for as well.

    Args:
        alpha: the first factors.
        beta: the second ones.
        scale: γ.

    Examples:
        >>> import torch
        >>> one = LogNormal(torch.zeros(()).double(), torch.zeros(()).double())
        >>> product = LogNormal(one.loc, one.log_variance - math.log(2))
        >>> to_half_cauchy_augmented(one, one, 1.0), to_half_cauchy(product, 1.0)
        (tensor(1.6043, dtype=torch.float64), tensor(0.2819, dtype=torch.float64))
    """
    return to_gamma(alpha, 0.5, scale**2) + to_inverse_gamma(beta, 0.5, 1.0)

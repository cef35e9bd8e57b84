"""Radii: positive numbers z (*blocks, n), one for every row or column of a matrix, and their KLs.

q(z) is log-normal. What a product of radii or a KL needs are moments and entropies of log z, which
stay small where z itself leaves the range of floating-point numbers. Everything is computed in float64:
n numbers are nothing beside n x d weights.

All KLs are -H(log z) - E[log p(z) + log z].
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kasuri.numerics.safe import held
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.posteriors.parts import along
from kasuri.streams import normal

LOG_SCALE_TOP = 4.0  # of the standard deviation of log z, which would be absurd long before
# Means are held below e^10, E z² / (E z)² below e^12: the second moment of a product of two matrices of such
# radii, and its gradients, then fit float32
LOG_TOP, GROWTH_TOP = 10.0, 12.0

# The trapezoid rule for a mean under N(0, 1). For a softplus it is more exact than a Gauss-Hermite rule of
# its size: its errors fall with the distance of poles, not with its root.
NODES = 0.3 * torch.arange(-22, 23, dtype=torch.float64, device="cpu")
WEIGHTS = torch.softmax(-0.5 * NODES.square(), 0)


@dataclass(frozen=True)
class LogNormal:
    """Independent positive numbers z with log z ~ N(loc, exp(log_variance)), float64 tensors."""

    loc: Tensor
    log_variance: Tensor

    def log_entropy(self) -> Tensor:
        """Differential entropy of log z; that of z is larger by E log z."""
        return 0.5 * (self.log_variance + (LOG_TWO_PI + 1))

    def log_mode(self) -> Tensor:
        """The logarithm of the mode of z, m - v."""
        return self.loc - self.growth()

    def growth(self) -> Tensor:
        """Log(E z² / (E z)²) = v; of independent numbers the growth of a product is the sum."""
        return self.log_variance.exp()

    def mean(self) -> Tensor:
        """E z = e^(m + v/2)."""
        return held(self.loc + 0.5 * self.growth(), LOG_TOP).exp()

    def variance(self) -> Tensor:
        return self.mean().square() * torch.expm1(held(self.growth(), GROWTH_TOP))

    def times(self, other: "LogNormal") -> "LogNormal":
        """The law of products with independent numbers; both broadcast."""
        log_variance = torch.logaddexp(self.log_variance, other.log_variance)
        return LogNormal(self.loc + other.loc, log_variance)


def joint_log_entropy(local: LogNormal, common: LogNormal) -> Tensor:
    """Entropy of the vector log z_i + log s, the z_i (..., n) and s (..., 1) independent, (...).

    Its covariance is diag(v) + u 11ᵀ, whose determinant is Π v_i (1 + u Σ 1/v_i).
    """
    ratios = torch.logsumexp(common.log_variance - local.log_variance, -1)
    # logaddexp with 0, whose derivatives exist everywhere
    extra = ratios.clamp(min=0) + torch.log1p((-ratios.abs()).exp())
    return local.log_entropy().sum(-1) + 0.5 * extra


class Radii(nn.Module):
    """q(z) over n positive numbers: log z ~ N(loc, exp(log_scale)²), both (*blocks, n)."""

    def __init__(self, law: LogNormal) -> None:
        super().__init__()
        self.loc = nn.Parameter(law.loc.clone())
        self.log_scale = nn.Parameter(0.5 * law.log_variance)

    def law(self) -> LogNormal:
        log_scale = held(self.log_scale.double(), LOG_SCALE_TOP)
        return LogNormal(self.loc.double(), 2 * log_scale)

    def rsample_log(self) -> Tensor:
        """A draw of log z, (*blocks, n)."""
        law = self.law()
        scale = (0.5 * law.log_variance).exp()
        return law.loc + scale * normal(scale.shape, dtype=scale.dtype, device=scale.device)

    def some(self, index: Tensor) -> "Radii":
        """These radii (*blocks, n') alone."""
        return Radii(LogNormal(along(self.loc, index), 2 * along(self.log_scale, index)))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Files of version 0.2 hold F factors (*blocks, F, n) with z = (f_1 ... f_F)^(1/F)."""
        loc, log_scale = prefix + "loc", prefix + "log_scale"
        if loc in state and state[loc].dim() > self.loc.dim():
            count = state[loc].shape[-2]
            state[loc] = state[loc].mean(-2)
            log_variance = torch.logsumexp(2 * state[log_scale], -2)
            state[log_scale] = 0.5 * log_variance - math.log(count)
        super()._load_from_state_dict(state, prefix, *rest)


def kl_to_half_cauchy(q: LogNormal, scale: float) -> Tensor:
    """KL(q ‖ C⁺(scale)), elementwise: -H - E log z + E log(1 + z²/γ²) + log(πγ/2).

    The expectation is a sum over nodes: exact to 1e-6 nats where log z has a standard deviation of up to
    2, to 1e-4 up to 3; all else is in closed form. γ is the median of the prior.
    """
    loc = q.loc - math.log(scale)
    nodes, weights = NODES.to(loc.device), WEIGHTS.to(loc.device)
    deviation = (0.5 * q.log_variance).exp().unsqueeze(-1)
    tail = F.softplus(2 * (loc.unsqueeze(-1) + deviation * nodes), threshold=40) @ weights
    return tail - q.log_entropy() - loc + math.log(math.pi / 2)


def kl_to_half_cauchy_augmented(q: LogNormal, scale: float) -> Tensor:
    """KL of two factors, z² = αβ, to those of C⁺(scale), elementwise and in closed form.

    α ~ Gamma(½, scale γ²) and β ~ inverse-Gamma(½, 1) make z half-Cauchy. For log z ~ N(m, v) the posteriors
    of α and β are log-normal, both of variance 2v, with the means for which the KL is smallest. It is
    v - log v + log cosh(m - log γ) - log 2, and at least `kl_to_half_cauchy`: what is known of α and β beyond
    their product is paid for as well.
    """
    loc = q.loc - math.log(scale)
    log_cosh = F.softplus(2 * loc, threshold=40) - loc - math.log(2)
    return q.growth() - q.log_variance + log_cosh - math.log(2)

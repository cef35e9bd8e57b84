"""Radii: positive numbers z (*blocks, n), one for every row or column of a matrix, and their KLs.

q(z) is log-normal, made of F factors: z = (f_1 ... f_F)^(1/F). Two of them (z² = αβ) are what the augmented
half-Cauchy prior asks for. What a product of radii or a KL needs are moments and entropies of log z, which
stay small where z itself leaves the range of floating-point numbers. Everything is computed in float64:
n numbers are nothing beside n x d weights.

All KLs are -H(log z) - E[log p(z) + log z]. Exponentials are held at e^30 in value, not in slope: far-off
parameters cost much and are driven back, and nothing overflows.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kasuri.numerics.safe import held
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.posteriors.parts import along
from kasuri.streams import normal

LOG_SCALE_TOP = 4.0  # of the standard deviation of log z, which would be absurd long before
PAID_TOP = 30.0
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

    def log_moment(self, power: float) -> Tensor:
        """Log E z^power = p m + p² v / 2."""
        return power * self.loc + (0.5 * power**2) * self.growth()

    def log_mode(self, power: float = 1.0) -> Tensor:
        """1/power of the logarithm of the mode of z^power, m - p v."""
        return self.loc - power * self.growth()

    def growth(self) -> Tensor:
        """Log(E z² / (E z)²) = v; of independent numbers the growth of a product is the sum."""
        return self.log_variance.exp()


def joint_log_entropy(local: LogNormal, common: LogNormal) -> Tensor:
    """Entropy of the vector log z_i + log s, the z_i (..., n) and s (..., 1) independent, (...).

    Its covariance is diag(v) + u 11ᵀ, whose determinant is Π v_i (1 + u Σ 1/v_i).
    """
    ratios = torch.logsumexp(common.log_variance - local.log_variance, -1)
    # logaddexp with 0, whose derivatives exist everywhere
    extra = ratios.clamp(min=0) + torch.log1p((-ratios.abs()).exp())
    return local.log_entropy().sum(-1) + 0.5 * extra


class Radii(nn.Module):
    """q(z) over n positive numbers: z = (f_1 ... f_F)^(1/F) with log f ~ N(loc, exp(log_scale)²).

    `loc` and `log_scale` are (*blocks, F, n). At the start the F factors share a law (*blocks, n) evenly.
    """

    def __init__(self, law: LogNormal, factors: int) -> None:
        super().__init__()
        shape = (*law.loc.shape[:-1], factors, law.loc.shape[-1])
        log_scale = 0.5 * (law.log_variance + math.log(factors))
        self.loc = nn.Parameter(law.loc.unsqueeze(-2).expand(shape).clone())
        self.log_scale = nn.Parameter(log_scale.unsqueeze(-2).expand(shape).clone())

    def factors(self) -> list[LogNormal]:
        logs = 2 * held(self.log_scale.double(), LOG_SCALE_TOP)
        pairs = zip(self.loc.double().unbind(-2), logs.unbind(-2), strict=True)
        return [LogNormal(loc, log_variance) for loc, log_variance in pairs]

    def law(self) -> LogNormal:
        """That of z: means of logarithms are averaged, variances averaged and divided by F."""
        logs = 2 * held(self.log_scale.double(), LOG_SCALE_TOP)
        log_variance = torch.logsumexp(logs, -2) - 2 * math.log(self.loc.shape[-2])
        return LogNormal(self.loc.double().mean(-2), log_variance)

    def rsample_log(self) -> Tensor:
        """A draw of log z, (*blocks, n)."""
        scale = held(self.log_scale.double(), LOG_SCALE_TOP).exp()
        noise = normal(scale.shape, dtype=scale.dtype, device=scale.device)
        return (self.loc + scale * noise).mean(-2)

    @torch.no_grad()
    def some(self, index: Tensor) -> "Radii":
        """These radii (*blocks, n') alone."""
        other = copy.deepcopy(self)
        for name, value in self.named_parameters():
            setattr(other, name, nn.Parameter(along(value, index.unsqueeze(-2))))
        return other


def kl_to_gamma(q: LogNormal, shape: float, scale: float) -> Tensor:
    """KL(q ‖ Gamma(a, θ)), θ the inverse of a rate: -H - a E log z + E z/θ + a log θ + log Γ(a)."""
    log_scale = math.log(scale)
    paid = held(q.log_moment(1) - log_scale, PAID_TOP).exp()
    return paid - q.log_entropy() - shape * (q.loc - log_scale) + math.lgamma(shape)


def kl_to_inverse_gamma(q: LogNormal, shape: float, scale: float) -> Tensor:
    """KL(q ‖ inverse-Gamma(shape, scale)), elementwise: -H + a E log z + β E 1/z - a log β + log Γ(a)."""
    return kl_to_gamma(LogNormal(-q.loc, q.log_variance), shape, 1 / scale)


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


def kl_to_half_cauchy_augmented(factors: Sequence[LogNormal], scale: float) -> Tensor:
    """KL of two factors, z² = αβ, to those of C⁺(scale), elementwise and in closed form.

    α ~ Gamma(½, scale γ²) and β ~ inverse-Gamma(½, 1) make z half-Cauchy. At least `kl_to_half_cauchy` of z,
    for what is known of α and β beyond their product is paid for as well.
    """
    alpha, beta = factors
    return kl_to_gamma(alpha, 0.5, scale**2) + kl_to_inverse_gamma(beta, 0.5, 1.0)


def half_cauchy_kls(pairs: Sequence[tuple[Radii, float]]) -> list[Tensor]:
    """`kl_to_half_cauchy` of several radii with their scales, in one evaluation: calls are what costs."""
    laws = [radii.law() for radii, _ in pairs]
    locs = [law.loc - math.log(scale) for law, (_, scale) in zip(laws, pairs, strict=True)]
    flat = LogNormal(
        torch.cat([loc.flatten() for loc in locs]),
        torch.cat([law.log_variance.flatten() for law in laws]),
    )
    parts = kl_to_half_cauchy(flat, 1.0).split([loc.numel() for loc in locs])
    return [part.view(loc.shape) for part, loc in zip(parts, locs, strict=True)]

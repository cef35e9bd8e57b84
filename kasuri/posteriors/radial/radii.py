"""Posteriors of radii: positive numbers z (*blocks, n), one for every row or column of a matrix.

| kind         | parameters                                | law of z                                  |
|--------------|-------------------------------------------|-------------------------------------------|
| `LogNormal`  | location and scale of each of F factors   | z = (f_1 ... f_F)^(1/F), f log-normal      |
| `Gamma`      | log-mean, log-concentration               | Gamma                                      |
| `Weibull`    | log-scale, log-concentration              | Weibull                                    |

Two factors (z² = αβ) are what the augmented half-Cauchy prior asks for; z itself is log-normal with any
number of them. Everything is computed in float64: n numbers are nothing beside n x d weights.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from kasuri.numerics.safe import held
from kasuri.posteriors.radial import positive
from kasuri.streams import generator, normal, uniform

LOG_SCALE_TOP = 4.0  # of the standard deviation of log z, which would be absurd long before
GAMMA_RANGE = (-5.0, 30.0)  # of log a
WEIBULL_RANGE = (-3.0, 12.0)  # of log k


class Radii(nn.Module, ABC):
    """q(z) over n positive numbers, (*blocks, n)."""

    loc: nn.Parameter

    @property
    def size(self) -> int:
        """How many, n."""
        return self.loc.shape[-1]

    @abstractmethod
    def law(self) -> positive.Positive:
        """The distribution of z."""

    @abstractmethod
    def rsample_log(self) -> Tensor:
        """A draw of log z, (*blocks, n) in float64."""

    def extra_repr(self) -> str:
        """How many."""
        return str(self.size)


class LogNormalRadii(Radii):
    """z = (f_1 ... f_F)^(1/F) with log f ~ N(loc, exp(log_scale)²).

    Args:
        law: of the radii at the start; the factors share it evenly.
        factors: F.
    """

    def __init__(self, law: positive.LogNormal, factors: int) -> None:
        super().__init__()
        shape = (*law.loc.shape[:-1], factors, law.loc.shape[-1])
        log_scale = 0.5 * (law.log_variance + math.log(factors))
        self.loc = nn.Parameter(law.loc.unsqueeze(-2).expand(shape).clone())
        self.log_scale = nn.Parameter(log_scale.unsqueeze(-2).expand(shape).clone())

    def factors(self) -> list[positive.LogNormal]:
        """The distribution of each factor."""
        logs = 2 * held(self.log_scale.double(), LOG_SCALE_TOP)
        pairs = zip(self.loc.double().unbind(-2), logs.unbind(-2), strict=True)
        return [positive.LogNormal(loc, log_variance) for loc, log_variance in pairs]

    def law(self) -> positive.LogNormal:
        """Log-normal: means of logarithms are averaged, variances averaged and divided by F."""
        count = self.loc.shape[-2]
        logs = 2 * held(self.log_scale.double(), LOG_SCALE_TOP)
        if count == 1:
            return positive.LogNormal(self.loc.squeeze(-2).double(), logs.squeeze(-2))
        log_variance = torch.logsumexp(logs, -2) - 2 * math.log(count)
        return positive.LogNormal(self.loc.double().mean(-2), log_variance)

    def rsample_log(self) -> Tensor:
        """Average of loc + scale · ε over the factors."""
        scale = held(self.log_scale.double(), LOG_SCALE_TOP).exp()
        noise = normal(scale.shape, dtype=scale.dtype, device=scale.device)
        each = self.loc + scale * noise
        return each.squeeze(-2) if each.shape[-2] == 1 else each.mean(-2)


class GammaRadii(Radii):
    """Gamma distributed z with mean exp(loc) and concentration exp(log_concentration)."""

    def __init__(self, law: positive.Gamma) -> None:
        super().__init__()
        self.loc = nn.Parameter(law.loc.clone())
        self.log_concentration = nn.Parameter(law.log_concentration.clone())

    def law(self) -> positive.Gamma:
        """Gamma."""
        return positive.Gamma(self.loc.double(), _between(self.log_concentration, GAMMA_RANGE))

    def rsample_log(self) -> Tensor:
        """Log of g u^(1/a) / rate, g ~ Gamma(a + 1), u uniform: no draw underflows."""
        law = self.law()
        a = law.concentration
        share = uniform(a.shape, dtype=a.dtype, device=a.device)
        return (
            torch._standard_gamma(a + 1, generator=generator(a.device)).log()
            + torch.log1p(-share) / a
            - law.log_rate()
        )


class WeibullRadii(Radii):
    """z = exp(loc) E^(1/k), E exponential, k = exp(log_concentration)."""

    def __init__(self, law: positive.Weibull) -> None:
        super().__init__()
        self.loc = nn.Parameter(law.loc.clone())
        self.log_concentration = nn.Parameter(law.log_concentration.clone())

    def law(self) -> positive.Weibull:
        """Weibull."""
        return positive.Weibull(self.loc.double(), _between(self.log_concentration, WEIBULL_RANGE))

    def rsample_log(self) -> Tensor:
        """Loc + log E / k."""
        law = self.law()
        share = uniform(law.loc.shape, dtype=law.loc.dtype, device=law.loc.device)
        exponential = torch.log1p(-share).neg().clamp(min=1e-300)
        return law.loc + exponential.log() * law.inverse


def _between(raw: Tensor, limits: tuple[float, float]) -> Tensor:
    """The raw parameter in float64, held inside the limits; gradients still point back from outside."""
    wide = raw.double()
    return wide + (wide.clamp(*limits) - wide).detach()

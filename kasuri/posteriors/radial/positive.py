"""Distributions of positive numbers, described by their logarithms: log-normal, Gamma, Weibull.

What a product of radii or a KL needs are moments and entropies of log z, which stay small where z
itself leaves the range of floating-point numbers. All tensors are float64, elementwise and
independent.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from kasuri.posteriors.radial.softplus import mean_softplus

EULER = 0.57721566490153286  # minus the mean of the logarithm of an exponential variable

LARGE = 1e6  # a concentration from which on a series does better than gamma functions


@dataclass(frozen=True)
class Positive(ABC):
    """Independent positive numbers z."""

    @abstractmethod
    def log_entropy(self) -> Tensor:
        """Differential entropy of log z; that of z is larger by E log z."""

    @abstractmethod
    def mean_log(self) -> Tensor:
        """E log z."""

    @abstractmethod
    def log_moment(self, power: float) -> Tensor:
        """Log E z^power, for powers of 0 and more."""

    @abstractmethod
    def log_mode(self, power: float = 1.0) -> Tensor:
        """1/power of the logarithm of the mode of z^power, -inf where the density falls from 0 on."""

    def growth(self) -> Tensor:
        """Log(E z² / (E z)²) ≥ 0; of independent numbers the growth of a product is the sum."""
        return self.log_moment(2) - 2 * self.log_moment(1)


@dataclass(frozen=True)
class LogNormal(Positive):
    """Log z ~ N(loc, exp(log_variance)); powers may be negative.

    Examples:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> LogNormal(zero, zero).log_moment(2)
        tensor([2.], dtype=torch.float64)
    """

    loc: Tensor
    log_variance: Tensor

    def log_entropy(self) -> Tensor:
        """½ (log 2πe + log variance)."""
        return 0.5 * (self.log_variance + (math.log(2 * math.pi) + 1))

    def mean_log(self) -> Tensor:
        """The location."""
        return self.loc

    def log_moment(self, power: float) -> Tensor:
        """Mean and variance of log z make p m + p² v / 2."""
        return power * self.loc + (0.5 * power**2) * self.log_variance.exp()

    def log_mode(self, power: float = 1.0) -> Tensor:
        """By variance below the location: m - p v."""
        return self.loc - power * self.log_variance.exp()

    def growth(self) -> Tensor:
        """The variance of log z."""
        return self.log_variance.exp()

    def mean_softplus(self, slope: float, shift: float, single: bool = False) -> Tensor:
        """E log(1 + z^slope e^-shift), to 1e-9, or to 1e-6 if single precision is enough.

        Examples:
            >>> zero = torch.zeros((), dtype=torch.float64)
            >>> LogNormal(zero, zero - 100).mean_softplus(2.0, 0.0)  # z = 1: log 2
            tensor(0.6931, dtype=torch.float64)
        """
        std = abs(slope) * (0.5 * self.log_variance).exp()
        return mean_softplus(slope * self.loc - shift, std, single)


@dataclass(frozen=True)
class Gamma(Positive):
    """Gamma distributed z with mean exp(loc) and concentration a.

    Examples:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> Gamma(zero, zero).growth().exp()  # E z² / (E z)² = 1 + 1/a
        tensor([2.], dtype=torch.float64)
    """

    loc: Tensor
    log_concentration: Tensor

    @property
    def concentration(self) -> Tensor:
        """The concentration a."""
        return self.log_concentration.exp()

    def log_rate(self) -> Tensor:
        """Log of a / mean."""
        return self.log_concentration - self.loc

    def log_entropy(self) -> Tensor:
        """Without the mean: a + log Γ(a) - a ψ(a); by Stirling's series where these would cancel."""
        a = self.concentration.clamp(max=LARGE)
        plain = a + torch.lgamma(a) - a * torch.digamma(a)
        series = 0.5 * (math.log(2 * math.pi) + 1 - self.log_concentration)
        series = series + (-self.log_concentration).exp() / 6
        return torch.where(self.log_concentration > math.log(LARGE), series, plain)

    def mean_log(self) -> Tensor:
        """ψ(a) - log rate."""
        return torch.digamma(self.concentration) - self.log_rate()

    def log_moment(self, power: float) -> Tensor:
        """Log Γ(a + p) - log Γ(a) - p log rate."""
        if power in (1, 2):
            more = torch.log1p((-self.log_concentration).exp())
            return self.loc if power == 1 else 2 * self.loc + more
        a = self.concentration.clamp(max=LARGE)
        plain = torch.lgamma(a + power) - torch.lgamma(a) - power * self.log_concentration
        series = power * (power - 1) / 2 * (-self.log_concentration).exp()
        more = torch.where(self.log_concentration > math.log(LARGE), series, plain)
        return power * self.loc + more

    def log_mode(self, power: float = 1.0) -> Tensor:
        """Log(a - p) - log rate."""
        return (self.concentration - power).clamp(min=0).log() - self.log_rate()


@dataclass(frozen=True)
class Weibull(Positive):
    """z = λ E^(1/k), E exponential, with log λ = loc and k = exp(log_concentration).

    Examples:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> Weibull(zero, zero).log_moment(3).exp()  # exponential: 3!
        tensor([6.], dtype=torch.float64)
    """

    loc: Tensor
    log_concentration: Tensor

    @property
    def inverse(self) -> Tensor:
        """1/k."""
        return (-self.log_concentration).exp()

    def log_entropy(self) -> Tensor:
        """γ + 1 - log k."""
        return (EULER + 1) - self.log_concentration

    def mean_log(self) -> Tensor:
        """Log λ - γ/k."""
        return self.loc - EULER * self.inverse

    def log_moment(self, power: float) -> Tensor:
        """For p > -k, p log λ + log Γ(1 + p/k)."""
        return power * self.loc + torch.lgamma(1 + power * self.inverse)

    def log_mode(self, power: float = 1.0) -> Tensor:
        """Log λ + log(1 - p/k) / k."""
        return self.loc + self.inverse * (1 - power * self.inverse).clamp(min=0).log()


def weibull_log_concentration(growth: Tensor) -> Tensor:
    """The log k at which a Weibull variable has this growth, by bisection in float64.

    Examples:
        >>> k = weibull_log_concentration(torch.tensor(2.0, dtype=torch.float64).log())
        >>> k.abs() < 1e-12  # exponential: E z² = 2 (E z)²
        tensor(True)
    """
    low, high = torch.full_like(growth, -5.0), torch.full_like(growth, 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        # for large k the quotient of gamma functions is all rounding: π²/6 k^-2 there
        exact = Weibull(torch.zeros_like(middle), middle).growth()
        value = torch.where(middle > 8, math.pi**2 / 6 * (-2 * middle).exp(), exact)
        low, high = (
            torch.where(value > growth, middle, low),
            torch.where(value > growth, high, middle),
        )
    return (low + high) / 2


def sum_log_entropy(local: LogNormal, common: LogNormal) -> Tensor:
    """Entropy of the vector log z_i + log s, the z_i (..., n) and s (..., 1) independent, (...).

    Its covariance is diag(v) + u 11ᵀ, whose determinant is Π v_i (1 + u Σ 1/v_i).

    Examples:
        >>> zero = torch.zeros(1, dtype=torch.float64)
        >>> one = LogNormal(zero, zero)
        >>> sum_log_entropy(one, one) - one.log_entropy().sum()  # ½ log 2
        tensor(0.3466, dtype=torch.float64)
    """
    ratios = torch.logsumexp(common.log_variance - local.log_variance, -1)
    # logaddexp with 0, whose derivatives exist everywhere
    extra = ratios.clamp(min=0) + torch.log1p((-ratios.abs()).exp())
    return local.log_entropy().sum(-1) + 0.5 * extra

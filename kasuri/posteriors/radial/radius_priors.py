"""Priors of one radius, up to its scale: half-Cauchy in two forms, Gamma, inverse-Gamma, Weibull."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from kasuri.posteriors.radial import radial_kl
from kasuri.posteriors.radial.positive import LogNormal
from kasuri.posteriors.radial.radii import LogNormalRadii, Radii


class RadiusPrior(ABC):
    """p(z) of one radius, up to its scale."""

    @abstractmethod
    def kl(self, radii: Radii, scale: float) -> Tensor:
        """KL(q ‖ p) of every radius, in float64."""

    def kls(self, pairs: Sequence[tuple[Radii, float]]) -> list[Tensor]:
        """`kl` of several radii with their scales."""
        return [self.kl(radii, scale) for radii, scale in pairs]


class HalfCauchy(RadiusPrior):
    """C⁺(scale), directly."""

    def kl(self, radii: Radii, scale: float) -> Tensor:
        """-H(z) - E log p, by a sum over nodes."""
        return self.kls([(radii, scale)])[0]

    def kls(self, pairs: Sequence[tuple[Radii, float]]) -> list[Tensor]:
        """All in one evaluation, of z over its scale: for few radii a call costs more than the sums."""
        laws = [_log_normal(radii, "half-cauchy") for radii, _ in pairs]
        locs = [
            (law.loc - math.log(scale)).flatten()
            for law, (_, scale) in zip(laws, pairs, strict=True)
        ]
        spreads = [law.log_variance.flatten() for law in laws]
        single = all(radii.loc.dtype == torch.float32 for radii, _ in pairs)
        whole = LogNormal(torch.cat(locs), torch.cat(spreads))
        found = radial_kl.to_half_cauchy(whole, 1.0, single)
        parts = found.split([len(one) for one in locs])
        return [part.view(law.loc.shape) for part, law in zip(parts, laws, strict=True)]


class AugmentedHalfCauchy(RadiusPrior):
    """C⁺(scale) as √(αβ), α Gamma and β inverse-Gamma distributed."""

    def kl(self, radii: Radii, scale: float) -> Tensor:
        """The sum of the KLs of both factors."""
        if not isinstance(radii, LogNormalRadii) or radii.loc.shape[-2] != 2:
            raise ValueError(
                'RadialPrior(form="augmented") speaks of two log-normal factors of every radius, and this '
                "posterior does not have them: write kasuri.Radial(factors=2), or "
                'kasuri.RadialPrior(form="direct")'
            )
        alpha, beta = radii.factors()
        return radial_kl.to_half_cauchy_augmented(alpha, beta, scale)


class GammaRadius(RadiusPrior):
    """Gamma(shape, scale)."""

    def __init__(self, shape: float) -> None:
        self.shape = shape

    def kl(self, radii: Radii, scale: float) -> Tensor:
        """In closed form for every kind of radius."""
        return radial_kl.to_gamma(radii.law(), self.shape, scale)


class InverseGammaRadius(RadiusPrior):
    """Inverse-Gamma(shape, scale)."""

    def __init__(self, shape: float) -> None:
        self.shape = shape

    def kl(self, radii: Radii, scale: float) -> Tensor:
        """In closed form."""
        return radial_kl.to_inverse_gamma(_log_normal(radii, "inverse-gamma"), self.shape, scale)


class WeibullRadius(RadiusPrior):
    """Weibull(shape, scale)."""

    def __init__(self, shape: float) -> None:
        self.shape = shape

    def kl(self, radii: Radii, scale: float) -> Tensor:
        """In closed form for every kind of radius."""
        return radial_kl.to_weibull(radii.law(), self.shape, scale)


def _log_normal(radii: Radii, prior: str) -> LogNormal:
    law = radii.law()
    if not isinstance(law, LogNormal):
        raise ValueError(
            f'RadialPrior(radius="{prior}") of a {type(law).__name__} radius: its KL has no closed form, or '
            'is infinite; write radius="gamma" or radius="weibull", or kasuri.Radial(radius="log-normal")'
        )
    return law


def radius_prior(radius: str, form: str, shape: float) -> RadiusPrior:
    """The prior behind these names; refuses what does not exist.

    Examples:
        >>> type(radius_prior("half-cauchy", "augmented", 1.0)).__name__
        'AugmentedHalfCauchy'
    """
    forms: dict[str, type[HalfCauchy | AugmentedHalfCauchy]]
    forms = {"direct": HalfCauchy, "augmented": AugmentedHalfCauchy}
    shaped: dict[str, type[GammaRadius | InverseGammaRadius | WeibullRadius]]
    shaped = {"gamma": GammaRadius, "inverse-gamma": InverseGammaRadius, "weibull": WeibullRadius}
    if form not in forms:
        raise ValueError(f'RadialPrior(form={form!r}): write form="direct" or form="augmented"')
    if radius == "half-cauchy":
        return forms[form]()
    if radius not in shaped:
        raise ValueError(
            f'RadialPrior(radius={radius!r}): write "half-cauchy", "gamma", "inverse-gamma" or "weibull"'
        )
    return shaped[radius](shape)

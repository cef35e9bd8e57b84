"""A prior of radii and directions: few rows and columns are long, their directions are not known.

For posteriors made by `kasuri.Radial`. Under it KL(q ‖ p) is that of the radii and directions a weight
is made of: a vMF divergence and a radial one for every row or column, and one for the factor of the layer,
once. It is at least the KL of the weights themselves, so the ELBO remains a bound, if the prior does not
follow the posterior: with mean="posterior", the default and the paper's, no fixed prior stands behind
the KL, and -ELBO does not compare with that of other priors. Everything is in closed form, except for the
half-Cauchy prior without augmentation, which takes sums over nodes.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from kasuri.checks import between, one_of
from kasuri.posteriors.base import Posterior
from kasuri.posteriors.masked import MaskedPosterior, behind_mask
from kasuri.posteriors.radial.polar import Directions, concentration_at, to_vectors
from kasuri.posteriors.radial.posterior import RadialPosterior
from kasuri.posteriors.radial.radii import kl_to_half_cauchy, kl_to_half_cauchy_augmented
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal

Form = Literal["direct", "augmented"]
Mean = Literal["posterior", "uniform"]
FORMS = {"direct": kl_to_half_cauchy, "augmented": kl_to_half_cauchy_augmented}
NOT_OF_WEIGHTS = "RadialPrior has no log_prob of weights; write prior.kl(posterior)"


class RadialPrior(Prior):
    """Heavy-tailed radii, local and of the layer, times directions from von Mises-Fisher distributions.

    Row i of a matrix is s z_i ξ_i with half-Cauchy z_i ~ C⁺(local) and s ~ C⁺(layer); columns likewise.
    Other posteriors (of biases, and where `kasuri.Radial` fell back on mean-field) have the prior `others`.

    Args:
        local: scale of the radii of rows and columns, the median of a half-Cauchy distribution.
        layer: scale of the layer's factor s.
        form: of the half-Cauchy KL. "direct"; or "augmented", that of two factors, z² = αβ, as
            published, which is larger.
        mean: mean directions of the prior. "posterior" for those of the posterior, so that directions
            are free and only their concentration costs, as published; or "uniform" for a uniform
            distribution of directions.
        gap: of the prior's κ, at which the most likely cosine to its mean is 1 - gap.
        others: prior of other posteriors, by default kasuri.Normal(1.0).

    Examples:
        >>> import kasuri
        >>> q = kasuri.Radial(grouping="double", scale=0.05)(torch.randn(5, 4))
        >>> bool(q.kl(RadialPrior()) > 0)
        True
        >>> RadialPrior(0.01, 0.001)
        RadialPrior(
          local=0.01, layer=0.001, form='direct', mean='posterior', gap=0.5
          (others): Normal(1)
        )
    """

    of_weights = False

    def __init__(
        self,
        local: float = 1.0,
        layer: float = 1.0,
        *,
        form: str = "direct",
        mean: str = "posterior",
        gap: float = 0.5,
        others: Prior | None = None,
    ) -> None:
        super().__init__()
        between(0, math.inf, local=local, layer=layer)
        between(0, 1, gap=gap)
        one_of(form=(form, Form), mean=(mean, Mean))
        self.local, self.layer, self.form, self.mean, self.gap = local, layer, form, mean, gap
        self.others = Normal(1.0) if others is None else others

    def prepare(self, posteriors: Sequence[Posterior]) -> None:
        others = [q for q in posteriors if not _is_radial(q)]
        if len(others) == len(posteriors) and not any(q.note for q in others):
            raise ValueError(
                "RadialPrior: none of these posteriors has radii and directions; convert the network with "
                'kasuri.Radial() (an estimator: posterior="radial"), or write kasuri.Normal(1.0)'
            )
        self.others.prepare(others)

    def kl(self, *posteriors: Posterior) -> Tensor:
        """KL(q ‖ p), summed over the given posteriors."""
        others = [q for q in posteriors if not _is_radial(q)]
        terms = [self._kl_of(q) for q in posteriors if _is_radial(q)]
        if others:
            terms.append(self.others.kl(*others))
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum()

    def _kl_of(self, posterior: Posterior) -> Tensor:
        """KL of radii and directions; rows and columns of which nothing is left count nothing."""
        q: Any = behind_mask(posterior)
        half_cauchy, terms = FORMS[self.form], []
        for side, polar in q.sides().items():
            kl = half_cauchy(polar.local.law(), self.local)
            if polar.directions is not None:
                kl = kl + self._kl_of_directions(polar.directions)
            if isinstance(posterior, MaskedPosterior):
                kl = kl * to_vectors(posterior.mask, side, q.positions).any(-1)
            terms.append(kl.sum())
            if polar.layer is not None:
                terms.append(half_cauchy(polar.layer.law(), self.layer).sum())
        return torch.stack(terms).sum().to(polar.local.loc.dtype)

    def _kl_of_directions(self, directions: Directions) -> Tensor:
        if self.mean == "uniform":
            return directions.kl(0.0)
        return directions.kl(concentration_at(directions.dimension, self.gap))

    def expected_log_prob(self, *posteriors: Posterior) -> Tensor:
        raise TypeError(NOT_OF_WEIGHTS)

    def log_prob(self, weight: Tensor) -> Tensor:
        raise TypeError(NOT_OF_WEIGHTS)

    @classmethod
    def restored(cls, options: dict[str, Any]) -> "RadialPrior":
        """From a file; files of version 0.2 name the kind of radius, and there is one now."""
        options = {key: value for key, value in options.items() if key != "shape"}
        kind = options.pop("radius", "half-cauchy")
        if kind != "half-cauchy":
            raise ValueError(
                f"RadialPrior(radius={kind!r}) of version 0.2: must be half-cauchy now"
            )
        return cls(**options)

    def extra_repr(self) -> str:
        scales = f"local={self.local:g}, layer={self.layer:g}, form={self.form!r}"
        return f"{scales}, mean={self.mean!r}, gap={self.gap:g}"


def _is_radial(posterior: Posterior) -> bool:
    return isinstance(behind_mask(posterior), RadialPosterior)

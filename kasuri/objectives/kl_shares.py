"""How much each posterior contributes to the KL of an objective."""

import math

import torch

from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal


@torch.no_grad()
def kl_by_name(elbo: ELBO) -> dict[str, float | None]:
    """The share of each posterior in the KL of an objective; the shares add up to `elbo.kl()`.

    A normal prior that fits its scale to all weights it governs is taken at that scale. None if a
    prior ties its weights in a way that cannot be divided among them.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> prior = kasuri.Normal(1.0, learn="closed form")
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), prior, num_data=9)
        >>> math.isclose(sum(kl_by_name(elbo).values()), elbo.kl().item(), rel_tol=1e-5)
        True
    """
    posteriors = dict(named_posteriors(elbo.bnn))
    shares: dict[str, float | None] = {}
    for prior, names in elbo.groups():
        group = [posteriors[name] for name in names]
        fixed = at_its_scale(prior, group)
        kls = [float(fixed.kl(posterior)) for posterior in group]
        total = float(prior.kl(*group))
        adds_up = math.isclose(math.fsum(kls), total, rel_tol=1e-3, abs_tol=1e-3)
        shares |= {name: kl if adds_up else None for name, kl in zip(names, kls, strict=True)}
    return shares


@torch.no_grad()
def at_its_scale(prior: Prior, group: list[Posterior]) -> Prior:
    """The prior itself, or a fixed one at the scale that a normal prior fits to these posteriors."""
    if isinstance(prior, Normal) and prior.learn == "closed form":
        return Normal(float(prior.fitted_scale(*group)))
    return prior

"""Whether a posterior has learned anything: how much of it is still, or again, the prior.

In a wide network at temperature 1 the KL outweighs the data, and the best posterior is the prior itself.
Before scores show it, the weights do: their marginal distributions are those of the prior.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.trained import Trained, objective_of
from kasuri.posteriors.base import Posterior
from kasuri.priors.normal import at_its_scale, normal_precisions

SAME = 0.01  # nats: two distributions so close give no event probabilities more than 0.07 apart
WIDE, NARROW = 1.5, 0.01  # of a standard deviation, in units of the prior's


@dataclass(frozen=True)
class LayerState:
    """One random weight against its prior; shares are None if the prior is not a fixed normal one.

    Args:
        name: of the weight.
        shape: of the weight.
        kl: of all of them, in nats: its share of the whole.
        at_prior: share of weights whose marginal KL from the prior is below 0.01 nats: they cannot be told
            from the prior. (Of other than normal families: by their first two moments.)
        wide: share of weights with a standard deviation above 1.5 times the prior's.
        narrow: share of weights with one below 0.01 times the prior's.
    """

    name: str
    shape: tuple[int, ...]
    kl: float
    at_prior: float | None = None
    wide: float | None = None
    narrow: float | None = None

    @property
    def weights(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, not a bias or another vector."""
        return len(self.shape) >= 2


@dataclass(frozen=True)
class Collapse:
    """How much of a posterior is its prior.

    Args:
        layers: every random weight.
        kl: of the whole network, in nats.
    """

    layers: tuple[LayerState, ...]
    kl: float

    def __str__(self) -> str:
        lines = [f"{'weight':<24}{'weights':>10}{'KL':>11}{'per weight':>12}{'at the prior':>14}"]
        for layer in self.layers:
            kl = f"{layer.kl:>11.1f}{layer.kl / layer.weights:>12.3f}"
            share = "–" if layer.at_prior is None else f"{layer.at_prior:.1%}"
            lines.append(f"{layer.name:<24}{layer.weights:>10,}{kl}{share:>14}")
        return "\n".join([*lines, f"KL {self.kl:.1f} nats"])


@torch.no_grad()
def collapse_check(model: nn.Module | Trained) -> Collapse:
    """Compare a posterior with its prior, layer by layer.

    A normal prior that fits its scale to all weights it governs is taken at that scale.

    Args:
        model: a kasuri.ELBO, or what `kasuri.fit` returned.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(50, 10), kasuri.MeanField(scale=1.0, noise=0.0))
        >>> with torch.no_grad():
        ...     for _, q in kasuri.named_posteriors(bnn):
        ...         _ = q.loc.zero_()
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=9)
        >>> collapse = collapse_check(elbo)
        >>> [layer.at_prior for layer in collapse.layers], round(collapse.kl, 3)
        ([1.0, 1.0], 0.0)
    """
    elbo = elbo_of(model)
    posteriors = dict(named_posteriors(elbo.bnn))
    layers = []
    for prior, names in elbo.groups():
        group = [posteriors[name] for name in names]
        fixed = at_its_scale(prior, group)
        for name, q in zip(names, group, strict=True):
            precisions = normal_precisions(fixed, q.shape)
            layers.append(_state(name, q, float(fixed.kl(q)), precisions))
    return Collapse(tuple(layers), float(elbo.kl()))


def elbo_of(model: nn.Module | Trained) -> ELBO:
    """The objective, which must know likelihood and prior."""
    elbo = objective_of(model)
    if not isinstance(elbo, ELBO):
        raise TypeError(
            f"{type(model).__name__} has no likelihood and prior; give the kasuri.ELBO or what kasuri.fit "
            "returned"
        )
    return elbo


def _state(name: str, q: Posterior, kl: float, precisions: Tensor | None) -> LayerState:
    mean, variance = q.mean.double().cpu(), q.variance.double().cpu()
    if precisions is None or not bool((variance > 0).all()):
        return LayerState(name, tuple(q.shape), kl)
    width = variance * precisions
    kls = 0.5 * (mean.square() * precisions + width - 1 - width.log())
    marks = kls < SAME, width > WIDE**2, width < NARROW**2
    return LayerState(name, tuple(q.shape), kl, *(float(mark.double().mean()) for mark in marks))

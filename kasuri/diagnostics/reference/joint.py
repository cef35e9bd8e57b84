"""The log-density that inference is about, as a function of one vector of all random weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from kasuri.inputs import run
from kasuri.network.calls import Given
from kasuri.network.contexts import drawing_from, evaluating
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Dense, Posterior
from kasuri.prediction.figures import at_its_scale
from kasuri.priors.base import Prior
from kasuri.training.batches import tensors


@dataclass(frozen=True)
class Truth:
    """A posterior that is known: draws of the vector of all random weights, and its law if exact.

    Args:
        weights: (S, D) draws, in the order of `LogJoint`.
        exact: the normal distribution they come from, if it is one.
        notes: what the sampler says about itself.
    """

    weights: Tensor
    exact: td.MultivariateNormal | None = None
    notes: Mapping[str, float] | None = None


class LogJoint:
    """log p(y | w) / η + log p(w): the tempered posterior of an objective, up to a constant.

    η is the temperature of the objective, so this is the density whose approximation the objective asks for.
    What has no posterior, point estimates and the size of the noise stay as they are. The network
    runs in evaluation mode.

    Args:
        elbo: objective with a normal prior; its network brings order and shapes of the weights.
        data: (x, y), or anything with attributes x and y: all training data.
        temperature: η, if not the objective's own.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(2, 1), kasuri.MeanField())
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=1)
        >>> joint = LogJoint(elbo, (torch.zeros(1, 2), torch.zeros(1, 1)))
        >>> joint.size, round(float(joint(torch.zeros(3))), 3)  # four standard normals at 0
        (3, -3.676)
    """

    def __init__(self, elbo: ELBO, data: Any, temperature: float | None = None) -> None:
        self.elbo = elbo
        self.x, self.y = tensors(data)
        self.temperature = elbo.weight_at(0) if temperature is None else temperature
        if not self.temperature > 0:
            raise ValueError(
                f"LogJoint(temperature={self.temperature}): at 0 there is no posterior but a point; "
                "write a temperature above 0"
            )
        posteriors = dict(named_posteriors(elbo.bnn))
        random = {name for name, q in posteriors.items() if bool((q.variance > 0).any())}
        self.posteriors = {name: q for name, q in posteriors.items() if name in random}
        self._points = [q for name, q in posteriors.items() if name not in random]
        priors = _priors(elbo, posteriors)
        self.priors = {name: prior for name, prior in priors.items() if name in random}
        self.size = sum(q.numel() for q in self.posteriors.values())

    def __call__(self, weights: Tensor) -> Tensor:
        """The log-density at a vector (D,); gradients flow."""
        parts = self.split(weights)
        f = self.outputs(weights, self.x)
        fit = self.elbo.likelihood.log_prob(f, self.y).sum()
        logs = [prior.log_prob(parts[name]).sum() for name, prior in self.priors.items()]
        return fit / self.temperature + torch.stack(logs).sum()

    def outputs(self, weights: Tensor, x: Any) -> Tensor:
        """The network's outputs at inputs x, with these weights (D,)."""
        parts = self.split(weights)
        given = {id(q): parts[name] for name, q in self.posteriors.items()}
        given |= {id(q): q.mean for q in self._points}
        with evaluating(self.elbo.bnn) as net, drawing_from(net, Given(given)):
            return run(net, x, self.elbo.output)

    def split(self, weights: Tensor) -> dict[str, Tensor]:
        """The vector as weight matrices, by name."""
        pieces = weights.split([q.numel() for q in self.posteriors.values()])
        named = zip(self.posteriors.items(), pieces, strict=True)
        return {name: piece.reshape(q.shape) for (name, q), piece in named}

    def draw(self, samples: int) -> Tensor:
        """Draws (S, D) of the objective's own posterior."""
        with torch.no_grad():
            return torch.stack([self.mean(draw=True) for _ in range(samples)])

    @torch.no_grad()
    def mean(self, draw: bool = False) -> Tensor:
        """The mean of the objective's own posterior, or a draw, as a vector (D,)."""
        posteriors = self.posteriors.values()
        return torch.cat([(q.rsample() if draw else q.mean).reshape(-1) for q in posteriors])

    @torch.no_grad()
    def log_posterior(self, weights: Tensor) -> Tensor | None:
        """Log q(w) of the objective's own posterior at draws (S, D); None if a family has no density."""
        dense = {name: q for name, q in self.posteriors.items() if isinstance(q, Dense)}
        if len(dense) < len(self.posteriors):
            return None
        draws = [self.split(vector) for vector in weights]
        logs = [[q.log_prob(draw[name]).double() for name, q in dense.items()] for draw in draws]
        return torch.stack([torch.stack(each).sum() for each in logs])

    @torch.no_grad()
    def entropy(self) -> float:
        """Entropy of the objective's own posterior in nats."""
        return sum(float(q.entropy()) for q in self.posteriors.values())


def _priors(elbo: ELBO, posteriors: Mapping[str, Posterior]) -> dict[str, Prior]:
    """A prior with a density for every random weight; those that follow the posterior are refused."""
    found: dict[str, Prior] = {}
    for prior, names in elbo.groups():
        fixed = at_its_scale(prior, [posteriors[name] for name in names])
        fixed.log_prob(torch.zeros(1, 1))  # says why if it has none
        found |= dict.fromkeys(names, fixed)
    return found

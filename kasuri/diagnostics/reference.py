"""What the posterior really is, on problems small enough to know, and how far a family is from it.

`conjugate` is exact where the network is linear in its random weights. `LogJoint` is the density that any
sampler takes, NUTS of Pyro for example. `distance` compares a family with the truth.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td
from torch.func import jacrev

from kasuri.inputs import run
from kasuri.likelihoods import Gaussian
from kasuri.network.contexts import drawing_from, evaluating
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Located
from kasuri.priors.base import Prior
from kasuri.priors.normal import at_its_scale, normal_precisions
from kasuri.streams import normal, normal_like, seeded
from kasuri.training.batches import tensors


@dataclass(frozen=True)
class Truth:
    """A posterior that is known: draws of the vector of all random weights, and its law if exact.

    Args:
        weights: (S, D) draws, in the order of `LogJoint`.
        exact: the normal distribution they come from, if it is one.
    """

    weights: Tensor
    exact: td.MultivariateNormal | None = None


class LogJoint:
    """log p(y | w) / η + log p(w): the tempered posterior of an objective, up to a constant.

    η is the temperature of the objective, so this is the density whose approximation the objective asks for.
    Point estimates, parameters without a posterior and the size of the noise keep their values. The
    network runs in evaluation mode.

    Args:
        elbo: objective with a normal prior; its network brings order and shapes of the weights.
        data: (x, y), or anything with attributes x and y: all training data.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(2, 1), kasuri.MeanField())
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=1)
        >>> joint = LogJoint(elbo, (torch.zeros(1, 2), torch.zeros(1, 1)))
        >>> joint.size, round(float(joint(torch.zeros(3))), 3)  # four standard normals at 0
        (3, -3.676)
    """

    def __init__(self, elbo: ELBO, data: Any) -> None:
        self.elbo = elbo
        self.x, self.y = tensors(data)
        self.temperature = elbo.weight_at(0)
        if not self.temperature > 0:
            raise ValueError(
                "LogJoint: at temperature 0 the posterior is a single point; give a temperature above 0"
            )
        posteriors = dict(named_posteriors(elbo.bnn))
        self.posteriors = {n: q for n, q in posteriors.items() if bool((q.variance > 0).any())}
        self._points = {id(q): q for n, q in posteriors.items() if n not in self.posteriors}
        self.priors: dict[str, Prior] = {}
        for prior, names in elbo.groups():
            fixed = at_its_scale(prior, [posteriors[name] for name in names])
            fixed.log_prob(torch.zeros(1, 1))  # raises if weights have no density of their own
            self.priors |= {name: fixed for name in names if name in self.posteriors}
        self.size = sum(q.numel() for q in self.posteriors.values())

    def __call__(self, weights: Tensor) -> Tensor:
        """The log-density at a vector (D,); gradients flow."""
        parts = self.split(weights)
        fit = self.elbo.likelihood.log_prob(self.outputs(weights, self.x), self.y).sum()
        logs = [prior.log_prob(parts[name]).sum() for name, prior in self.priors.items()]
        return fit / self.temperature + torch.stack(logs).sum()

    def outputs(self, weights: Tensor, x: Any) -> Tensor:
        """The network's outputs at inputs x, with these weights (D,)."""
        parts = self.split(weights)
        given = {id(q): parts[name] for name, q in self.posteriors.items()}
        given |= {key: q.mean for key, q in self._points.items()}
        with evaluating(self.elbo.bnn) as net, drawing_from(net, given):
            return run(net, x, self.elbo.output)

    def split(self, weights: Tensor) -> dict[str, Tensor]:
        """The vector as weight matrices, by name."""
        pieces = weights.split([q.numel() for q in self.posteriors.values()])
        named = zip(self.posteriors.items(), pieces, strict=True)
        return {name: piece.reshape(q.shape) for (name, q), piece in named}

    @torch.no_grad()
    def mean(self) -> Tensor:
        """The mean of the objective's own posterior, as a vector (D,)."""
        return torch.cat([q.mean.reshape(-1) for q in self.posteriors.values()])

    @torch.no_grad()
    def draw(self, samples: int) -> Tensor:
        """Draws (S, D) of the objective's own posterior."""
        posteriors = self.posteriors.values()
        draws = [[q.rsample().reshape(-1) for q in posteriors] for _ in range(samples)]
        return torch.stack([torch.cat(parts) for parts in draws])


def conjugate(joint: LogJoint, samples: int = 1000) -> Truth:
    """The exact (tempered) posterior N(μ, Λ⁻¹), Λ = JᵀJ/(ησ²) + S⁻¹, μ = Λ⁻¹ Jᵀ(y - f₀)/(ησ²).

    J is the derivative of the outputs by the weights and f₀ the outputs at weights 0. It need not be a
    linear model of the inputs: a network whose last layer alone is random is one.

    Args:
        joint: of an objective with kasuri.Gaussian noise and a normal prior.
        samples: draws of the result, the same every time.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(1, 1, bias=False), kasuri.MeanField())
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> truth = conjugate(LogJoint(elbo, (torch.ones(3, 1), torch.full((3, 1), 2.0))))
        >>> truth.exact.mean, truth.exact.variance  # 3 · 2 / (3 + 1), 1 / (3 + 1)
        (tensor([1.5000], dtype=torch.float64), tensor([0.2500], dtype=torch.float64))
    """
    noise = joint.elbo.likelihood
    if not isinstance(noise, Gaussian):
        raise ValueError(
            f"conjugate: the noise must be kasuri.Gaussian, got {type(noise).__name__}; give the LogJoint to "
            "a sampler, such as Pyro's"
        )
    priors = []
    for name, q in joint.posteriors.items():
        precisions = normal_precisions(joint.priors[name], q.shape)
        if precisions is None:
            raise ValueError(
                f"conjugate: the prior of {name!r} must be normal with mean 0, e.g. kasuri.Normal(1.0)"
            )
        priors.append(precisions.reshape(-1))
    origin = torch.zeros_like(joint.mean())

    def outputs(weights: Tensor) -> Tensor:
        return joint.outputs(weights, joint.x).reshape(-1)

    with torch.no_grad(), seeded(0):
        slopes, start = jacrev(outputs)(origin).double(), outputs(origin).double()
        variance = float(noise.scale) ** 2 * joint.temperature
        precision = slopes.T @ slopes / variance + torch.diag(torch.cat(priors))
        pull = slopes.T @ (joint.y.reshape(-1).double() - start) / variance
        exact = td.MultivariateNormal(
            torch.linalg.solve(precision, pull), precision_matrix=precision
        )
        draws = normal((samples, len(origin)), dtype=torch.float64) @ exact.scale_tril.T
        elsewhere = normal_like(origin)
        there, straight = outputs(elsewhere).double(), start + slopes @ elsewhere.double()
        if not torch.allclose(there, straight, rtol=1e-3, atol=1e-3 * float(there.abs().max() + 1)):
            raise ValueError(
                "conjugate: the output must be linear in the random weights; make the last layer alone "
                "random (where=kasuri.last_layer(net)), or give the LogJoint to a sampler"
            )
    return Truth((exact.mean + draws).to(origin), exact)


@dataclass(frozen=True)
class Distance:
    """What separates a posterior q from the truth π; 0, 1, 0, 1 and 0 if they are the same.

    Args:
        mean: root mean square over weights of (E_q w - E_π w) / std_π w.
        spread: geometric mean over weights of std_q w / std_π w.
        predictive_mean: the same as `mean` for outputs at the given inputs.
        predictive_spread: the same as `spread` for outputs.
        kl: KL(q ‖ π) in nats, where π is known exactly and q is normal.
    """

    mean: float
    spread: float
    predictive_mean: float
    predictive_spread: float
    kl: float | None = None


def distance(elbo: ELBO, truth: Truth, data: Any, x: Any, samples: int = 1000) -> Distance:
    """The distance of an objective's posterior from the truth of the same network, data and prior.

    Args:
        elbo: whose posterior is compared.
        truth: from `conjugate`, or draws of a sampler.
        data: the training data.
        x: inputs at which predictions are compared.
        samples: draws of the posterior; as many of the truth's are used as there are.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(1, 1, bias=False), kasuri.MeanField(scale=0.5, noise=0.0))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> data = torch.ones(3, 1), torch.full((3, 1), 2.0)
        >>> with torch.no_grad():
        ...     _ = dict(kasuri.named_posteriors(bnn))["weight"].loc.fill_(1.5)
        >>> truth = conjugate(LogJoint(elbo, data))
        >>> found = distance(elbo, truth, data, torch.ones(1, 1))  # N(1.5, 0.5²) is the truth
        >>> abs(found.mean) < 0.2, abs(found.spread - 1) < 0.1, abs(found.kl) < 1e-3
        (True, True, True)
    """
    joint = LogJoint(elbo, data)
    if truth.weights.shape[1:] != (joint.size,):
        raise ValueError(
            f"distance: the truth has {truth.weights.shape[1]} weights and this network {joint.size}; "
            "compare posteriors of the same network"
        )
    with torch.no_grad(), seeded(0):
        draws = joint.draw(samples)
        mine, theirs = (
            torch.stack([joint.outputs(w, x).reshape(-1) for w in weights])
            for weights in (draws, truth.weights)
        )
    kl = None if truth.exact is None else _divergence(joint, truth.exact)
    return Distance(*_moments(draws, truth.weights), *_moments(mine, theirs), kl)


def _moments(mine: Tensor, theirs: Tensor) -> tuple[float, float]:
    """(rms of the difference of means in units of the truth, geometric mean ratio of spreads)."""
    mine, theirs = mine.double(), theirs.double()
    spread = theirs.std(0).clamp(min=torch.finfo(torch.float64).tiny)
    difference = ((mine.mean(0) - theirs.mean(0)) / spread).square().mean().sqrt()
    ratio = (mine.std(0).clamp(min=torch.finfo(torch.float64).tiny) / spread).log().mean().exp()
    return float(difference), float(ratio)


@torch.no_grad()
def _divergence(joint: LogJoint, exact: td.MultivariateNormal) -> float | None:
    """KL(q ‖ π), if every part of q is a normal distribution whose entropy is exact."""
    factors = []
    for q in joint.posteriors.values():
        if not isinstance(q, Located) or q.numel() < q.mean.numel():  # not normal, or masked
            return None
        directions = torch.eye(q.numel(), dtype=q.mean.dtype, device=q.mean.device)
        factors.append(q.pull(directions.reshape(-1, *q.shape)).double())
        own = td.MultivariateNormal(factors[-1].new_zeros(q.numel()), _product(factors[-1]))
        if not torch.allclose(own.entropy(), q.entropy().double(), rtol=1e-4):
            return None
    covariance = torch.block_diag(*map(_product, factors))
    q_of_all = td.MultivariateNormal(joint.mean().double(), covariance)
    return float(td.kl_divergence(q_of_all, exact))


def _product(factor: Tensor) -> Tensor:
    return factor @ factor.mT

"""The exact posterior of a network that is linear in its random weights, with normal noise and prior."""

import math

import torch
from torch import Tensor
from torch import distributions as td
from torch.func import jacrev

from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.likelihoods import Gaussian
from kasuri.priors.normal import normal_precisions


def conjugate(joint: LogJoint, samples: int = 1000, seed: int = 0) -> Truth:
    """The exact (tempered) posterior N(μ, Λ⁻¹), Λ = JᵀJ/(ησ²) + S⁻¹, μ = Λ⁻¹ Jᵀ(y - f₀)/(ησ²).

    J is the derivative of the outputs by the weights and f₀ the outputs at weights 0. It need not be a
    linear model of the inputs: a network whose last layer alone is random is one.

    Args:
        joint: of an objective with kasuri.Gaussian noise and a normal prior.
        samples: draws of the result.
        seed: of the draws.

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
            f"conjugate: the noise is {type(noise).__name__}, and only normal noise of one size has an "
            "exact posterior; write kasuri.Gaussian(0.1), or sample with kasuri.reference.nuts"
        )
    like = joint.mean()
    origin = torch.zeros_like(like)
    with torch.no_grad():
        slopes = jacrev(lambda w: joint.outputs(w, joint.x).reshape(-1))(origin).double()
        start = joint.outputs(origin, joint.x).reshape(-1).double()
        _refuse_curved(joint, slopes, start, torch.randn_like(like))
        variance = float(noise.scale) ** 2 * joint.temperature
        precision = slopes.T @ slopes / variance + torch.diag(_prior_precisions(joint))
        pull = slopes.T @ (joint.y.reshape(-1).double() - start) / variance
        exact = td.MultivariateNormal(
            torch.linalg.solve(precision, pull), precision_matrix=precision
        )
        generator = torch.Generator().manual_seed(seed)
        noises = torch.randn(samples, len(like), generator=generator, dtype=torch.float64)
        draws = exact.mean + noises @ exact.scale_tril.T
    return Truth(draws.to(like), exact)


def _refuse_curved(joint: LogJoint, slopes: Tensor, start: Tensor, weights: Tensor) -> None:
    there = joint.outputs(weights, joint.x).reshape(-1).double()
    straight = start + slopes @ weights.double()
    if not torch.allclose(there, straight, rtol=1e-3, atol=1e-3 * float(there.abs().max() + 1)):
        raise ValueError(
            "conjugate: the network's output is not linear in its random weights, so its posterior is "
            "not normal; make the last layer alone random (where=kasuri.last_layer(net)), or sample "
            "with kasuri.reference.nuts"
        )


def _prior_precisions(joint: LogJoint) -> Tensor:
    """1/s² of every weight, as a vector."""
    found = []
    for name, prior in joint.priors.items():
        precisions = normal_precisions(prior, joint.posteriors[name].shape)
        if precisions is None:
            raise ValueError(f"conjugate: {type(prior).__name__} is not a normal prior around 0")
        found.append(precisions.reshape(-1))
    return torch.cat(found)


def log_evidence(joint: LogJoint, truth: Truth) -> float:
    """Log ∫ p(y | w)^(1/η) p(w) dw of an exact truth: log-joint minus log-posterior, at any weights."""
    if truth.exact is None:
        raise ValueError("log_evidence: this truth is made of draws; only an exact one tells it")
    at = truth.exact.mean
    value = float(joint(at.to(truth.weights)).detach() - truth.exact.log_prob(at))
    assert math.isfinite(value)
    return value

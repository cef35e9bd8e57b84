"""The true posterior of a small problem: exact if the network is linear in its weights, else by sampling."""

import math

import torch
from torch import Tensor
from torch import distributions as td
from torch.func import grad, jacrev

from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.likelihoods import Gaussian
from kasuri.priors.normal import normal_precisions
from kasuri.streams import globally_seeded, normal, normal_like, seeded


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
            "exact posterior; write kasuri.Gaussian(0.1), or sample with kasuri.diagnostics.reference.nuts"
        )
    origin = torch.zeros_like(joint.mean())
    with torch.no_grad(), seeded(seed):
        slopes = jacrev(lambda w: joint.outputs(w, joint.x).reshape(-1))(origin).double()
        start = joint.outputs(origin, joint.x).reshape(-1).double()
        variance = float(noise.scale) ** 2 * joint.temperature
        precision = slopes.T @ slopes / variance + torch.diag(_prior_precisions(joint))
        pull = slopes.T @ (joint.y.reshape(-1).double() - start) / variance
        exact = td.MultivariateNormal(
            torch.linalg.solve(precision, pull), precision_matrix=precision
        )
        draws = normal((samples, len(origin)), dtype=torch.float64) @ exact.scale_tril.T
        _refuse_curved(joint, slopes, start, normal_like(origin))
    return Truth((exact.mean + draws).to(origin), exact)


def _refuse_curved(joint: LogJoint, slopes: Tensor, start: Tensor, weights: Tensor) -> None:
    there = joint.outputs(weights, joint.x).reshape(-1).double()
    straight = start + slopes @ weights.double()
    if not torch.allclose(there, straight, rtol=1e-3, atol=1e-3 * float(there.abs().max() + 1)):
        raise ValueError(
            "conjugate: the network's output is not linear in its random weights, so its posterior is "
            "not normal; make the last layer alone random (where=kasuri.last_layer(net)), or sample "
            "with kasuri.diagnostics.reference.nuts"
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


def nuts(
    joint: LogJoint,
    samples: int = 500,
    warmup: int = 500,
    seed: int = 0,
    max_tree_depth: int = 8,
) -> Truth:
    """Draws by Hamiltonian Monte Carlo with adapted step and path length, of Pyro (extra `reference`).

    One chain, from the mean of the objective's posterior; all training data at every step, so it is for
    small networks. `notes` tells the smallest effective number of draws and the largest r-hat (of
    the halves of the chain, 1 if they agree) over the weights. A network has many equivalent posteriors
    (its hidden units can change places), of which a chain usually sees one: compare
    predictions rather than weights then.

    Args:
        joint: the density to sample.
        samples: draws kept.
        warmup: draws that adapt the step and are thrown away.
        seed: of the chain.
        max_tree_depth: at most 2 to this power gradients per draw.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(1, 1, bias=False), kasuri.MeanField())
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> joint = LogJoint(elbo, (torch.ones(3, 1), torch.full((3, 1), 2.0)))
        >>> truth = nuts(joint, samples=200, warmup=100)
        >>> abs(float(truth.weights.mean()) - 1.5) < 0.2
        True
    """
    try:
        from pyro.infer import MCMC, NUTS
    except ImportError:
        raise ImportError(
            "kasuri.diagnostics.reference.nuts needs pyro: pip install kasuri[reference]"
        ) from None
    start = joint.mean()
    kernel = NUTS(potential_fn=lambda at: -joint(at["weights"]), max_tree_depth=max_tree_depth)
    chain = MCMC(
        kernel,
        num_samples=samples,
        warmup_steps=warmup,
        initial_params={"weights": start},
        disable_progbar=True,
    )
    with globally_seeded(seed, start.device):
        chain.run()
    quality = chain.diagnostics()["weights"]
    notes = {
        "smallest_n_eff": float(torch.as_tensor(quality["n_eff"]).min()),
        "largest_r_hat": float(torch.as_tensor(quality["r_hat"]).max()),
    }
    return Truth(chain.get_samples()["weights"].detach(), notes=notes)


def langevin(
    joint: LogJoint,
    step: float,
    samples: int = 1000,
    warmup: int = 1000,
    thin: int = 10,
    seed: int = 0,
) -> Truth:
    """Draws of w ← w + γ ∇ log π(w) + √(2γ) ε, from the mean of the objective's posterior.

    Without a correction the chain settles on a law that is off by order γ: for a normal direction of
    precision a its variance is (1/a) / (1 - γa/2) instead of 1/a, and it explodes if γ > 2/a.

    Args:
        joint: the density to sample.
        step: γ; a tenth of the smallest posterior variance is a start.
        samples: draws kept.
        warmup: steps before the first.
        thin: steps between two draws that are kept.
        seed: of the noise.
    """
    if not step > 0 or min(samples, thin) < 1 or warmup < 0:
        raise ValueError(
            "langevin: step must be above 0, samples and thin at least 1, warmup at least 0, got "
            f"step={step}, samples={samples}, thin={thin}, warmup={warmup}"
        )
    slope, weights = grad(joint), joint.mean()
    kept = []
    with torch.no_grad(), seeded(seed):
        for number in range(warmup + samples * thin):
            noise = normal_like(weights)
            weights = weights + step * slope(weights) + math.sqrt(2 * step) * noise
            if number >= warmup and (number - warmup) % thin == thin - 1:
                kept.append(weights)
    draws = torch.stack(kept)
    if not bool(draws.isfinite().all()):
        raise ValueError(
            f"langevin(step={step}): the chain exploded, the step is larger than 2 / (the largest "
            f"curvature); write step={step / 10:g}"
        )
    return Truth(draws)

"""Langevin Monte Carlo, unadjusted: the simplest sampler."""

import math

import torch
from torch.func import grad

from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.streams import normal_like, seeded


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

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(1, 1, bias=False), kasuri.MeanField())
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> joint = LogJoint(elbo, (torch.ones(3, 1), torch.full((3, 1), 2.0)))
        >>> draws = langevin(joint, step=0.1, samples=300, warmup=50, thin=5).weights
        >>> abs(float(draws.mean()) - 1.5) < 0.15
        True
    """
    if not step > 0 or min(samples, thin) < 1 or warmup < 0:
        raise ValueError(
            f"langevin(step={step}, samples={samples}, warmup={warmup}, thin={thin}): step above 0, "
            "samples and thin at least 1, warmup at least 0"
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

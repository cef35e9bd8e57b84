"""How well a posterior could serve as a proposal for the truth: the tail of its importance weights.

The largest of the ratios π(w)/q(w) over draws of q follow a generalised Pareto law
F(x) = 1 - (1 + k x / σ)^(-1/k). Its shape k tells how many moments the ratios have: below ½ the variance is
finite, up to 0.7 averages over reweighted draws can be trusted, above 1 the ratios have not even a mean.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kasuri.diagnostics.reference.joint import LogJoint

GOOD = 0.7
_PRIOR_WEIGHT, _PRIOR_SHAPE = 10, 0.5  # a weak pull to ½, which steadies short tails


class Pareto(NamedTuple):
    """A generalised Pareto law: shape k and scale σ."""

    shape: float
    scale: float


def fit_pareto(exceedances: Tensor) -> Pareto:
    """The generalised Pareto law of positive numbers, by the estimator of Zhang and Stephens (2009).

    The likelihood is profiled over b = -k/σ, for which k(b) = mean log(1 - b x). The estimate of b is its
    mean under the profile likelihood and a weak data-based prior, on a grid of quantiles of that prior.
    It has no trouble with shapes above ½ and needs no iteration.

    Args:
        exceedances: (n,) numbers above 0, at least 5.

    Examples:
        >>> x = torch.distributions.Exponential(2.0).sample((4000,))  # k = 0, σ = ½
        >>> shape, scale = fit_pareto(x)
        >>> abs(shape) < 0.1, abs(scale - 0.5) < 0.05
        (True, True)
    """
    if exceedances.dim() != 1 or len(exceedances) < 5 or not bool((exceedances > 0).all()):
        raise ValueError("fit_pareto: a vector of at least five numbers, all above 0")
    x = exceedances.double().sort().values
    n = len(x)
    size = 30 + math.isqrt(n)
    quantile = x[max(0, math.floor(n / 4 + 0.5) - 1)]
    places = torch.arange(1, size + 1, dtype=torch.float64) - 0.5
    grid = 1 / x[-1] + (1 - (size / places).sqrt()) / (3 * quantile)
    shapes = torch.log1p(-grid[:, None] * x).mean(1)
    profile = n * ((-grid / shapes).log() - shapes - 1)
    b = (grid * profile.softmax(0)).sum()
    shape = torch.log1p(-b * x).mean()
    return Pareto(float(shape), float(-shape / b))


def k_hat(log_weights: Tensor) -> float:
    """Shape of the tail of importance weights, from their logarithms.

    The tail is the largest min(n/5, 3√n) weights above the next one. Infinite if weights are so
    far apart that a few of them are all that counts.

    Args:
        log_weights: (n,) log π(w) - log q(w) at draws w of q, up to a constant; at least 25.

    Examples:
        >>> k_hat(torch.zeros(100))  # all alike: q is the truth
        -inf
    """
    if log_weights.dim() != 1 or len(log_weights) < 25:
        raise ValueError(
            f"k_hat of log-weights of shape {tuple(log_weights.shape)}: a vector of at least 25"
        )
    if not bool(log_weights.isfinite().all()):
        return math.inf
    n = len(log_weights)
    count = math.ceil(min(n / 5, 3 * math.sqrt(n)))
    top = log_weights.double().sort().values[-count - 1 :]
    if float(top[-1] - top[0]) < 1e-9:
        return -math.inf
    weights = (top - top[-1]).exp()
    tail = weights[1:] - weights[0]
    tail = tail[tail > 0]
    if len(tail) < 5 or float(tail[len(tail) // 4]) < 1e-280:
        return math.inf
    shape = fit_pareto(tail).shape
    return (len(tail) * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (len(tail) + _PRIOR_WEIGHT)


def posterior_k_hat(joint: LogJoint, samples: int = 1000) -> float | None:
    """k-hat of an objective's posterior against the tempered posterior it approximates.

    None if a family has no density that can be evaluated (kasuri.Radial, matrix normals with a diagonal). In
    thousands of dimensions it is large for every approximation, good or bad.

    Args:
        joint: of the objective and all training data.
        samples: draws; each runs all the data through the network once.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(torch.nn.Linear(1, 1, bias=False), kasuri.MeanField(scale=0.05))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> joint = LogJoint(elbo, (torch.ones(3, 1), torch.full((3, 1), 2.0)))
        >>> posterior_k_hat(joint) > GOOD  # 0.05 is far narrower than the true 0.5
        True
    """
    weights = joint.draw(samples)
    density = joint.log_posterior(weights)
    if density is None:
        return None
    with torch.no_grad():
        target = torch.stack([joint(vector).double() for vector in weights])
    return k_hat(target - density)

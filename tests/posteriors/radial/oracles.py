"""Distributions of scipy and integrals by quadrature, to compare with."""

import math
from itertools import pairwise

import numpy as np
import torch
from scipy import integrate, stats

from kasuri.posteriors.radial.radii import LogNormal


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).squeeze()


LAWS = {
    "log-normal": LogNormal(tensor(0.4), tensor(-0.7)),
    "wide log-normal": LogNormal(tensor(-1.1), tensor(0.9)),
}


def frozen(law: LogNormal):
    """The same distribution in scipy."""
    return stats.lognorm(math.exp(law.log_variance / 2), scale=math.exp(law.loc))


def expectation(q, function) -> float:
    """E f(z) under a scipy distribution, by quadrature over log z."""

    def integrand(u: float) -> float:
        z = math.exp(u)
        density = q.pdf(z) * z
        return density * function(z) if density > 0 else 0.0

    centre = math.log(q.median())
    edges = [centre + step for step in (-40, -12, -5, -2, 0, 1, 2, 3, 5, 8, 12, 20)]
    parts = [integrate.quad(integrand, a, b, limit=400)[0] for a, b in pairwise(edges)]
    return float(np.sum(parts))


def kl(q, p) -> float:
    """KL(q ‖ p) of two scipy distributions, by quadrature."""
    return expectation(q, lambda z: q.logpdf(z) - p.logpdf(z))

"""A wide network that can be solved: f = (1/N) Σ w_j, unit noise, prior N(0, 1) on every weight."""

import math
from typing import NamedTuple


class WideOptimum(NamedTuple):
    """The best independent posterior: every weight N(mean, variance), KL in nats over all of them."""

    mean: float
    variance: float
    kl: float


def wide_optimum(
    num_data: int, target_mean: float, neurons: int, temperature: float
) -> WideOptimum:
    """The optimum of the tempered ELBO: m = pȳ/(p + ηN), σ² = 1/(1 + p/(ηN²)).

    At η = 1 mean and KL go to 0 as N grows: the network ignores its data. At η = τp/N the mean stays
    at ȳ/(1 + τ) and the KL per weight has a limit.

    Args:
        num_data: p, number of targets.
        target_mean: ȳ, their mean.
        neurons: N.
        temperature: η.

    Examples:
        >>> [round(wide_optimum(30, 1.5, n, 1.0).kl, 2) for n in (1, 10, 100, 1000, 10_000)]
        [2.29, 6.49, 5.99, 0.95, 0.1]
        >>> [round(wide_optimum(30, 1.5, n, 0.1 * 30 / n).mean, 3) for n in (1, 10_000)]
        [1.364, 1.364]
    """
    mean = num_data * target_mean / (num_data + temperature * neurons)
    variance = 1 / (1 + num_data / (temperature * neurons**2))
    # expm1 and log1p: at large N the variance is 1 - tiny, and its logarithm all that is left
    log_variance = -math.log1p(num_data / (temperature * neurons**2))
    kl = neurons / 2 * (mean**2 + math.expm1(log_variance) - log_variance)
    return WideOptimum(mean, variance, kl)

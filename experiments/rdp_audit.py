"""The radial-directional paper's test log-likelihoods: the estimator of its public code, and the honest one.

Both are functions of the residuals of S draws on N test points. The public code differs in two places:

1. It takes the log-sum-exp over test points instead of draws, and subtracts log S: that adds about log(N/S).
2. It takes the precision of standardised targets with residuals in the target's own unit.

So what it prints is no log-likelihood: it grows with the size of the test set and changes with the
unit of the target in the wrong way. `as_published` is here to show that a network scored with it gives the
published values; it is not for scoring anything else.
"""

import math

import torch
from torch import Tensor

from kasuri.prediction.metrics import nll_of_draws


def expected_log_probs(residuals: Tensor, concentration: float, rate: float) -> Tensor:
    """E_τ log N(r; 0, 1/τ) for τ ~ Gamma(concentration, rate), elementwise: what both scores plug in.

    Args:
        residuals: (S, N), one row per draw.
        concentration: a of the posterior of the precision.
        rate: its b.

    Examples:
        >>> expected_log_probs(torch.zeros(1, 1), 1e6, 1e6)
        tensor([[-0.9189]], dtype=torch.float64)
    """
    mean = concentration / rate
    mean_log = float(torch.digamma(torch.tensor(concentration, dtype=torch.float64))) - math.log(
        rate
    )
    return 0.5 * (mean_log - math.log(2 * math.pi) - mean * residuals.double().square())


def over_points(log_probs: Tensor) -> float:
    """Log Σ_n p_sn - log S, averaged over draws s: the sum is over the wrong index.

    Args:
        log_probs: (S, N) log-densities of N test points under S draws.

    Examples:
        >>> math.isclose(over_points(torch.zeros(100, 957)), math.log(957 / 100))
        True
    """
    return float((log_probs.double().logsumexp(1) - math.log(len(log_probs))).mean())


def as_published(
    residuals: Tensor, concentration: float, rate: float, target_scale: float
) -> float:
    """The "test log-likelihood" that the public code prints.

    Args:
        residuals: (S, N), of standardised targets.
        concentration: a of the posterior of their precision.
        rate: its b.
        target_scale: what a standardised target is to be multiplied with.

    Examples:
        >>> r = 0.25 * torch.randn(100, 1000)
        >>> as_published(r, 500.0, 500.0 * 0.25**2, target_scale=17.0) > 0  # of power: -2.8 is usual
        False
    """
    return over_points(expected_log_probs(residuals * target_scale, concentration, rate))


def honest(residuals: Tensor, concentration: float, rate: float, target_scale: float) -> float:
    """Mean over test points of log (1/S) Σ_s exp E log p, in the target's own unit.

    With the same plug-in density as `as_published`, a lower bound on that of the Student-t; what
    `kasuri.evaluate` gives is the latter.

    Args:
        residuals: (S, N), of standardised targets.
        concentration: a of the posterior of their precision.
        rate: its b.
        target_scale: what a standardised target is to be multiplied with.

    Examples:
        >>> round(honest(torch.zeros(3, 5), 1e6, 1e6, target_scale=math.e), 4)  # log N(0; 0, 1) - 1
        -1.9189
    """
    log_probs = expected_log_probs(residuals, concentration, rate)
    return -float(nll_of_draws(log_probs).predictive.mean()) - math.log(target_scale)

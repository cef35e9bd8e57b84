"""The wide network that can be solved: closed form and numerical optimum agree."""

import math

import pytest
import torch
from scipy.optimize import minimize
from torch import distributions as td

from experiments.wide import wide_optimum

TARGETS = torch.tensor([2.1, 0.4, 1.9, 1.6, 2.5, 0.5]).double()
CASES = [(n, eta) for n in (1, 5, 40) for eta in (1.0, 0.3 * 6 / n)]


def negative_elbo(mean, log_scale, neurons, eta):
    """-ELBO of N equal weights: f ~ N(m, σ²/N), so E (y - f)² is known."""
    variance = math.exp(2 * log_scale)
    error = (TARGETS - mean).square().sum() + len(TARGETS) * variance / neurons
    q = td.Normal(torch.tensor(mean).double(), math.exp(log_scale))
    return float(0.5 * error + eta * neurons * td.kl_divergence(q, td.Normal(0.0, 1.0)))


@pytest.mark.parametrize(("neurons", "eta"), CASES)
def test_the_closed_form_is_the_optimum(neurons, eta):
    found = minimize(
        lambda v: negative_elbo(v[0], v[1], neurons, eta), [0.5, -0.5], method="BFGS", tol=1e-10
    )
    mean, variance, kl = wide_optimum(6, float(TARGETS.mean()), neurons, eta)
    assert mean == pytest.approx(found.x[0], abs=1e-4)
    assert variance == pytest.approx(math.exp(2 * found.x[1]), rel=1e-3)
    q = td.Normal(torch.tensor(mean).double(), math.sqrt(variance))
    assert kl == pytest.approx(neurons * float(td.kl_divergence(q, td.Normal(0.0, 1.0))), rel=1e-6)

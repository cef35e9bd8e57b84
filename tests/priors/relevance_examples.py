"""A correlated posterior made by hand, dense oracles, and data with inputs that do not matter."""

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.posteriors.base import Located
from kasuri.testing import randomised


class Dense(Located):
    """N(loc, L Lᵀ) over all weights of a matrix: the dense normal that nothing structured is needed for."""

    def __init__(self, loc, lower):
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.lower = nn.Parameter(lower)

    @property
    def factor(self):
        return self.lower.tril(-1) + torch.diag(self.lower.diagonal().exp())

    @property
    def variance(self):
        return self.factor.square().sum(1).reshape(self.shape)

    def rsample(self):
        return self.loc + (self.factor @ torch.randn_like(self.lower[0])).reshape(self.shape)

    def entropy(self):
        n = self.loc.numel()
        return self.lower.diagonal().sum() + 0.5 * n * (1 + kasuri.posteriors.base.LOG_TWO_PI)


def dense(*shape, spread=0.5):
    """A random correlated posterior in double precision."""
    loc = torch.randn(shape, dtype=torch.float64)
    n = loc.numel()
    return Dense(loc, spread * torch.randn(n, n, dtype=torch.float64))


def _builders(shape):
    return {
        f"mean-field {shape}": lambda: randomised(kasuri.MeanField(), shape),
        f"2-tied {shape}": lambda: randomised(kasuri.KTied(rank=2), shape),
        f"bounded {shape}": lambda: randomised(kasuri.MeanField(max_scale=2.0), shape),
        f"dense {shape}": lambda: dense(*shape),
    }


POSTERIORS = _builders((3, 5)) | _builders((2, 3, 5))
every_posterior = pytest.mark.parametrize("build", POSTERIORS.values(), ids=POSTERIORS)


def normal_of(q):
    """The posterior as torch's dense normal over W.reshape(-1)."""
    if isinstance(q, Dense):
        return td.MultivariateNormal(q.mean.reshape(-1), scale_tril=q.factor)
    return td.MultivariateNormal(q.mean.reshape(-1), torch.diag(q.variance.reshape(-1)))


def dense_kl(q, precisions):
    """KL(q ‖ N(0, 1/precisions)) by torch.distributions."""
    covariance = torch.diag(precisions.reshape(-1).reciprocal())
    return td.kl_divergence(
        normal_of(q), td.MultivariateNormal(torch.zeros_like(q.mean.reshape(-1)), covariance)
    )


def some_inputs_matter(count=400, inputs=10, seed=0):
    """Targets that are linear in the first two of ten inputs, with noise of size 0.1.

    Inputs and noise are uncorrelated in the sample as well, so that no other input ever helps.
    """
    g = torch.Generator().manual_seed(seed)
    every = torch.randn(count, inputs + 1, generator=g, dtype=torch.float64)
    basis = torch.linalg.qr(every).Q * count**0.5
    x, noise = basis[:, :inputs].float(), basis[:, inputs:].float()
    return x, x[:, :1] - 0.7 * x[:, 1:2] + 0.1 * noise


def line():
    return nn.Linear(10, 1)


def network():
    return nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))


def trained(prior, make=network, family=None, steps=500, rate=0.03):
    """An ELBO on `some_inputs_matter`, minimised with Adam."""
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(make(), family or kasuri.MeanField(scale=0.05), estimator="local")
    x, y = some_inputs_matter()
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.1), prior, num_data=len(x))
    opt = torch.optim.Adam(elbo.parameters(), rate)
    for step in range(steps):
        opt.param_groups[0]["lr"] = rate * (1 - step / steps)
        opt.zero_grad()
        elbo(x, y).loss.backward()
        opt.step()
    return elbo

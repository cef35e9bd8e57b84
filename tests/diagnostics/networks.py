"""Networks of every kind of layer with randomised posteriors, and a family that kasuri has not."""

from dataclasses import dataclass

import torch
from torch import nn

import kasuri


class Recurrent(nn.Module):
    """Embedding with padding, LSTM, linear head on the last state."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


def dense():
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 2, groups=2), nn.Flatten(), nn.Linear(4, 3)
    )


INPUTS = {
    dense: lambda: torch.randn(8, 7),
    convolutional: lambda: torch.randn(8, 2, 4, 4),
    Recurrent: lambda: torch.randint(11, (8, 4)),
}


def randomised(net, family, *, spread=0.5, **options):
    """The converted network with every posterior parameter moved by noise."""
    bnn = kasuri.bayesianize(net, family, **options)
    with torch.no_grad():
        for p in bnn.parameters():
            p.add_(torch.randn_like(p), alpha=spread)
    return bnn


def set_scale(q, scale):
    """Give a mean-field posterior these standard deviations."""
    with torch.no_grad():
        q.log_scale.copy_(scale.log())


def mean_field_with(scale):
    """A linear layer in double precision whose posterior has these standard deviations."""
    out, inputs = scale.shape
    bnn = kasuri.bayesianize(nn.Linear(inputs, out).double(), kasuri.MeanField())
    set_scale(bnn.posteriors.weight, scale)
    return bnn


def low_rank(rank, out, inputs, *, spread=1.0, noise=0.0, size=0.01):
    """Standard deviations of a known rank, with independent relative noise on top."""
    factors = [(spread * torch.randn(rank, n, dtype=torch.float64)).exp() for n in (out, inputs)]
    exact = size * factors[0].T @ factors[1]
    return exact * (noise * torch.randn(out, inputs, dtype=torch.float64)).exp()


@dataclass(frozen=True, kw_only=True)
class Plain(kasuri.Family):
    """Independent weights whose scales are the softplus of parameters."""

    def __call__(self, weight):
        return PlainPosterior(weight, self.scale)


class PlainPosterior(kasuri.posteriors.Elementwise):
    def __init__(self, weight, scale):
        super().__init__()
        self.loc = nn.Parameter(weight.detach().clone())
        self.raw = nn.Parameter((scale * (1 + torch.rand_like(weight.detach()))).expm1().log())

    @property
    def scale(self):
        return nn.functional.softplus(self.raw)


class Laplace(kasuri.Prior):
    def log_prob(self, weight):
        return -weight.abs()

    def expected_log_prob(self, *posteriors):
        raise AssertionError("the density alone tells whether a prior is normal")

"""Small auto-encoders, and a linear-Gaussian one whose evidence is known."""

import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri import vae
from kasuri.numerics import triangular

FAMILIES = [
    vae.DiagonalLatent(6),
    vae.MatrixNormalLatent(3, 2),
    vae.MatrixNormalLatent(2, 3),
    vae.MatrixNormalLatent(6, 1),
    vae.MatrixNormalLatent(1, 6),
    vae.FullLatent(6),
    vae.FullLatent(1),
    vae.KTiedLatent(3, 2, rank=1),
    vae.KTiedLatent(2, 3, rank=2),
]


def covariance(latent, numbers):
    """The dense covariance of one row of numbers, by loops and Kronecker products."""

    def triangle(logs, below):
        matrix = triangular.unfold(below.reshape(triangular.folded_shape(len(logs))))
        return matrix @ torch.diag(logs.exp())

    _, *parts = numbers.split(latent.widths)
    if isinstance(latent, vae.DiagonalLatent):
        factor = torch.diag(parts[0].exp())
    elif isinstance(latent, vae.FullLatent):
        factor = triangle(*parts)
    elif isinstance(latent, vae.MatrixNormalLatent):
        factor = torch.kron(triangle(*parts[:2]), triangle(*parts[2:]))
    else:
        rows, columns = (part.reshape(latent.rank, -1).exp() for part in parts)
        factor = torch.diag((rows.T @ columns).flatten() / latent.rank)
    return factor @ factor.T


def dense(latent, numbers):
    """The distributions of a batch of numbers, as torch knows them."""
    sigma = torch.stack([covariance(latent, row) for row in numbers])
    return td.MultivariateNormal(numbers[:, : latent.dimensions], sigma)


def small(latent=None, inputs=12, hidden=10, seed=0, **options):
    """An auto-encoder of binary vectors."""
    latent = vae.MatrixNormalLatent(2, 2) if latent is None else latent
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.ELU(), nn.Linear(hidden, latent.size))
    decoder = nn.Sequential(
        nn.Linear(latent.dimensions, hidden), nn.ELU(), nn.Linear(hidden, inputs)
    )
    return vae.VAE(encoder, decoder, latent, **options)


def patterns(count=120, inputs=12, seed=0):
    """Binary vectors with two hidden causes, and labels."""
    g = torch.Generator().manual_seed(seed)
    causes = torch.randn(count, 2, generator=g)
    basis = torch.randn(2, inputs, generator=torch.Generator().manual_seed(99))
    x = (torch.rand(count, inputs, generator=g) < torch.sigmoid(3 * causes @ basis)).float()
    return x, (causes[:, 0] > 0).long()


class Linear:
    """x = W z + b + noise: posterior, evidence and the encoders that are exact or best."""

    def __init__(self, inputs=5, n=4, noise=1.0, seed=0):
        g = torch.Generator().manual_seed(seed)
        kind = {"generator": g, "dtype": torch.float64}
        self.weight, self.bias = torch.randn(inputs, n, **kind), torch.randn(inputs, **kind)
        self.noise, self.n, self.inputs = noise, n, inputs
        self.precision = torch.eye(n, dtype=torch.float64) + self.weight.T @ self.weight / noise**2
        self.gain = torch.linalg.solve(self.precision, self.weight.T / noise**2)  # E[z | x]
        spread = self.weight @ self.weight.T + noise**2 * torch.eye(inputs, dtype=torch.float64)
        self.evidence = td.MultivariateNormal(self.bias, spread)

    def vae(self, latent, logs_and_lower):
        """An auto-encoder with the true decoder and means, and these other numbers for every x."""
        encoder, decoder = nn.Linear(self.inputs, latent.size), nn.Linear(self.n, self.inputs)
        model = vae.VAE(encoder, decoder, latent, kasuri.Gaussian(self.noise)).double()
        with torch.no_grad():
            encoder.weight.zero_()[: self.n] = self.gain
            encoder.bias[: self.n] = -self.gain @ self.bias
            encoder.bias[self.n :] = logs_and_lower
            decoder.weight.copy_(self.weight)
            decoder.bias.copy_(self.bias)
        return model

    def exact(self):
        """With the true posterior."""
        factor = torch.linalg.cholesky(torch.linalg.inv(self.precision))
        diagonal = factor.diagonal()
        lower = triangular.fold(factor / diagonal).flatten()
        return self.vae(vae.FullLatent(self.n), torch.cat([diagonal.log(), lower]))

    def best_independent(self):
        """With the independent posterior of the largest ELBO: variances 1 / precision_ii."""
        return self.vae(vae.DiagonalLatent(self.n), -0.5 * self.precision.diagonal().log())

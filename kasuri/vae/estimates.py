"""ELBO and importance-weighted log-likelihood of every example, in memory that neither K nor N moves.

K draws for N examples are K · N passes through the decoder: for K = 5,000, N = 10,000 and three layers of
300, 50 million passes or 43 TFLOP, about eight minutes on one core of 100 GFLOP/s in float32. Rows
go through in chunks that stay in the cache, and sums of weights are kept as logarithms in float64.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kasuri.network.contexts import evaluating, using
from kasuri.network.estimators import shared
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.streams import mix, seeded
from kasuri.vae.normals import LatentNormal
from kasuri.vae.objective import VAE

CHUNK = 512  # rows of the decoder at once: its widest layers then fit a second-level cache
EXAMPLES = 16  # of them different examples; the other factor is draws, which share an encoding


def elbo(vae: VAE, x: Tensor, *, samples: int = 10, chunk: int = CHUNK, seed: int = 0) -> Tensor:
    """The ELBO of each example, the KL whole, (N,) in float64.

    With random weights it has their KL / num_data in it, at temperature 1.

    Args:
        vae: trained or not; it is left as it was.
        x: inputs (N, ...).
        samples: draws of z per example, averaged.
        chunk: examples at once.
        seed: of the draws.

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.Diagonal(2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(2, 6), latent)
        >>> elbo(vae, torch.ones(3, 6)).shape
        torch.Size([3])
    """
    _at_least_one("elbo", samples=samples, chunk=chunk)
    found = []
    with drawing(vae) as (vae, device):
        weights = vae.kl_per_example(1.0)
        constant = 0.0 if weights is None else float(weights)
        for number, block in enumerate(x.split(chunk)):
            block = block.to(device)
            total = torch.zeros(len(block), dtype=torch.float64, device=device)
            with seeded(mix(seed, number)):
                q = vae.posterior(block)
                for _ in range(samples):
                    total += vae.likelihood.expected_log_prob(vae.decode(q.rsample()), block)
            found.append((total / samples - q.kl() - constant).cpu())
    return torch.cat(found)


def log_likelihood(
    vae: VAE, x: Tensor, *, samples: int = 5000, chunk: int = CHUNK, seed: int = 0
) -> Tensor:
    """Log (1/K) Σ_k p(x | z_k) p(z_k) / q(z_k | x) of each example, z_k ~ q(z | x), (N,) in float64.

    Below log p(x) on average, and the closer the larger K (Burda et al., Importance weighted
    auto-encoders); at K = 1 it is the ELBO. With random weights, of which every chunk takes a draw, it is
    about the density that they predict on average.

    Args:
        vae: trained or not; it is left as it was.
        x: inputs (N, ...).
        samples: K.
        chunk: rows of the decoder at once, draws and examples together.
        seed: of the draws.

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.Diagonal(2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(2, 6), latent)
        >>> log_likelihood(vae, torch.ones(3, 6), samples=100).shape
        torch.Size([3])
    """
    _at_least_one("log_likelihood", samples=samples, chunk=chunk)
    examples = min(EXAMPLES, chunk)
    draws = min(chunk // examples, samples)
    found = []
    with drawing(vae) as (vae, device):
        for number, block in enumerate(x.split(examples)):
            block = block.to(device)
            targets = block.expand(draws, *block.shape).flatten(0, 1)  # a copy, made once per block
            total = torch.full((len(block),), -math.inf, dtype=torch.float64, device=device)
            with seeded(mix(seed, number)):
                q = vae.posterior(block)
                for begin in range(0, samples, draws):
                    logs = _log_weights(vae, q, targets, min(draws, samples - begin))
                    total = torch.logaddexp(total, logs.double().logsumexp(0))
            found.append((total - math.log(samples)).cpu())
    return torch.cat(found)


def _log_weights(vae: VAE, q: LatentNormal, targets: Tensor, draws: int) -> Tensor:
    """Log p(x, z) - log q(z | x) of so many draws, (draws, batch)."""
    z, log_q = q.draw(draws)
    log_p = -0.5 * (z.square().sum(-1) + z.shape[-1] * LOG_TWO_PI)
    flat = z.flatten(0, 1)
    likelihoods = vae.likelihood.log_prob(vae.decode(flat), targets[: len(flat)])
    return likelihoods.view_as(log_q) + log_p - log_q


@contextmanager
def drawing(vae: VAE) -> Iterator[tuple[VAE, torch.device]]:
    """The auto-encoder in evaluation mode, without gradients, weights drawn whole; and its device."""
    with torch.no_grad(), evaluating(vae) as still, using(still.net, shared):
        yield still, next(vae.parameters()).device


def _at_least_one(name: str, **counts: int) -> None:
    for what, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}({what}={count}): at least 1")

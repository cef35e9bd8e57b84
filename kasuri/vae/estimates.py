"""What an auto-encoder is worth: ELBO and importance-weighted log-likelihood of every example, and scores.

K draws for N examples are K · N passes through the decoder. Rows go through in chunks that stay in the cache,
and sums of weights are kept as logarithms in float64, so that neither K nor N moves the memory.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from kasuri.checks import at_least_one
from kasuri.network.contexts import evaluating, using
from kasuri.network.estimators import shared
from kasuri.objectives.trained import Trained, objective_of
from kasuri.posteriors.base import LOG_TWO_PI
from kasuri.prediction.metrics import mean_sem
from kasuri.streams import mix, seeded
from kasuri.vae.latents import LatentNormal
from kasuri.vae.objective import VAE

CHUNK = 512  # rows of the decoder at once: its widest layers then fit a second-level cache
EXAMPLES = 16  # of them different examples; the other factor is draws, which share an encoding
ACTIVE = 0.01  # variance of E[z | x] over the data, the threshold of Burda et al.

Model = VAE | Trained
Result = TypeVar("Result")


@contextmanager
def drawing(model: Model) -> Iterator[tuple[VAE, torch.device]]:
    """The auto-encoder in evaluation mode, without gradients, weights drawn whole; and its device."""
    vae = objective_of(model)
    if not isinstance(vae, VAE):
        raise TypeError(
            f"{type(vae).__name__} is no kasuri.vae.VAE, nor what kasuri.fit made of one"
        )
    with torch.no_grad(), evaluating(vae) as evaluated, using(evaluated.net, shared):
        yield evaluated, next(vae.parameters()).device


def _of_blocks(
    vae: Model, x: Tensor, size: int, seed: int, function: Callable[[VAE, Tensor], Result]
) -> list[Result]:
    """What a function of the auto-encoder gives for so many examples at once; noise is that of the seed."""
    results = []
    with drawing(vae) as (model, device):
        for number, block in enumerate(x.split(size)):
            with seeded(mix(seed, number)):
                results.append(function(model, block.to(device)))
    return results


def elbo(vae: Model, x: Tensor, *, samples: int = 10, seed: int = 0) -> Tensor:
    """The ELBO of each example, the KL whole, (N,) in float64.

    With random weights it has their KL / num_data in it, at temperature 1.

    Args:
        vae: the auto-encoder, or what `kasuri.fit` returned; it is left as it was.
        x: inputs (N, ...).
        samples: draws of z per example, averaged.
        seed: of the draws.

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.DiagonalLatent(2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(2, 6), latent)
        >>> elbo(vae, torch.ones(3, 6)).shape
        torch.Size([3])
    """
    at_least_one(samples=samples)
    losses = _of_blocks(vae, x, CHUNK, seed, lambda model, block: model.minus_elbo(block, samples))
    return -torch.cat(losses).double().cpu()


def log_likelihood(vae: Model, x: Tensor, *, samples: int = 5000, seed: int = 0) -> Tensor:
    """Log (1/K) Σ_k p(x | z_k) p(z_k) / q(z_k | x) of each example, z_k ~ q(z | x), (N,) in float64.

    Below log p(x) on average, and the closer the larger K (Burda et al., Importance weighted
    auto-encoders); at K = 1 it is the ELBO. With random weights, of which every chunk takes a draw, it is
    about the density that they predict on average.

    Args:
        vae: the auto-encoder, or what `kasuri.fit` returned; it is left as it was.
        x: inputs (N, ...).
        samples: K.
        seed: of the draws.
    """
    at_least_one(samples=samples)
    draws = min(CHUNK // EXAMPLES, samples)

    def of_block(model: VAE, block: Tensor) -> Tensor:
        targets = block.expand(draws, *block.shape).flatten(0, 1)  # a copy, made once per block
        q = model.posterior(block)
        parts = [
            _log_weights(model, q, targets, min(draws, samples - begin)).double().logsumexp(0)
            for begin in range(0, samples, draws)
        ]
        return torch.stack(parts).logsumexp(0) - math.log(samples)

    return torch.cat(_of_blocks(vae, x, EXAMPLES, seed, of_block)).cpu()


def _log_weights(vae: VAE, q: LatentNormal, targets: Tensor, draws: int) -> Tensor:
    """Log p(x, z) - log q(z | x) of so many draws, (draws, batch)."""
    z, log_q = q.draw(draws)
    log_p = -0.5 * (z.square().sum(-1) + z.shape[-1] * LOG_TWO_PI)
    flat = z.flatten(0, 1)
    likelihoods = vae.likelihood.log_prob(vae.decode(flat), targets[: len(flat)])
    return likelihoods.view_as(log_q) + log_p - log_q


def evaluate(
    vae: Model, data: Any, *, samples: int = 5000, images: int | None = None, seed: int = 0
) -> dict[str, float]:
    """Every score of an auto-encoder on a data set, as plain floats.

    `log_likelihood` (importance-weighted, with `samples` draws, of `images` examples), `elbo`, its parts
    `reconstruction` = E log p(x | z) and `kl`, `active_units`. As in `kasuri.evaluate`, `count` is the
    number of examples and `*_sem` a standard error over them.

    Args:
        vae: the auto-encoder, or what `kasuri.fit` returned.
        data: inputs (N, ...), a pair (x, y), or anything with attribute x.
        samples: draws per example of the log-likelihood; 0 leaves it out.
        images: the log-likelihood is that of the first so many examples; of all by default. The ELBO is
            that of all, with ten draws each.
        seed: of the draws. Global generators are left as they were.

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.FullLatent(2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(2, 6), latent)
        >>> scores = evaluate(vae, (torch.rand(20, 6) > 0.5).float(), samples=100)
        >>> scores["elbo"] < scores["log_likelihood"]
        True
    """
    x = _inputs(data)
    scores: dict[str, float] = {"count": len(x)}
    if samples:
        part = x[:images]
        logs = log_likelihood(vae, part, samples=samples, seed=seed)
        scores |= _mean("log_likelihood", logs) | {"images": len(part), "draws": samples}
    elbos = elbo(vae, x, seed=seed + 1)
    kls, spread = divergences(vae, x)
    with drawing(vae) as (model, _):
        weights = {"weight_kl": float(model.kl_per_example(1.0))} if model.is_bayesian else {}
    scores |= _mean("elbo", elbos) | {"kl": float(kls.mean())} | weights
    scores["reconstruction"] = scores["elbo"] + scores["kl"] + sum(weights.values())
    return scores | {"active_units": float((spread > ACTIVE).sum())}


def active_units(vae: Model, data: Any) -> Tensor:
    """Which latent variables vary with the input: variance of E[z | x] over x above 0.01.

    A latent variable that is not active has the same posterior for every input, the prior.

    Args:
        vae: the auto-encoder, or what `kasuri.fit` returned.
        data: as for `evaluate`.

    Returns:
        True or False for each, (n,).
    """
    return divergences(vae, _inputs(data))[1] > ACTIVE


def _inputs(data: Any) -> Tensor:
    """The inputs of a data set: a tensor, a pair, or an object with attribute x."""
    if isinstance(data, Tensor):
        return data
    x: Tensor = data[0] if isinstance(data, tuple | list) else data.x
    return x


def divergences(vae: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """KL of each example, and the variance of E[z | x] over all of them, in float64."""

    def of_block(model: VAE, block: Tensor) -> tuple[Tensor, Tensor]:
        q = model.posterior(block)
        return q.kl().double().cpu(), q.mean.double().cpu()

    kls, means = map(torch.cat, zip(*_of_blocks(vae, x, CHUNK, 0, of_block), strict=True))
    return kls, means.var(0, correction=min(1, len(x) - 1))


def _mean(name: str, values: Tensor) -> dict[str, float]:
    mean, sem = mean_sem(values)
    return {name: mean, f"{name}_sem": sem} if len(values) > 1 else {name: mean}

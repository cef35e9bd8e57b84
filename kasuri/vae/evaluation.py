"""What a variational auto-encoder is worth on a data set, in numbers."""

from typing import Any

import torch
from torch import Tensor

from kasuri.prediction.metrics import mean_sem
from kasuri.vae.estimates import CHUNK, drawing, elbo, log_likelihood
from kasuri.vae.objective import VAE

ACTIVE = 0.01  # the threshold of Burda et al.


def evaluate(
    vae: VAE,
    data: Any,
    *,
    samples: int = 5000,
    images: int | None = None,
    elbo_samples: int = 10,
    chunk: int = CHUNK,
    seed: int = 0,
) -> dict[str, float]:
    """Every score of an auto-encoder on a data set, as plain floats.

    `log_likelihood` (importance-weighted, with `samples` draws, of `images` examples), `elbo`, its parts
    `reconstruction` = E log p(x | z) and `kl`, `active_units`. `*_sem` is a standard error over examples.

    Args:
        vae: the auto-encoder.
        data: inputs (N, ...), a pair (x, y), or anything with attribute x.
        samples: draws per example of the log-likelihood; 0 leaves it out.
        images: the log-likelihood is that of the first so many examples; of all if not told.
        elbo_samples: draws per example of the ELBO, which is that of all examples.
        chunk: rows of the decoder at once.
        seed: of the draws. Global generators are left as they were.

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.FullNormal(2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(2, 6), latent)
        >>> found = evaluate(vae, (torch.rand(20, 6) > 0.5).float(), samples=100)
        >>> found["elbo"] < found["log_likelihood"]
        True
    """
    x = inputs(data)
    told: dict[str, float] = {"count": len(x)}
    if samples:
        part = x[:images]
        logs = log_likelihood(vae, part, samples=samples, chunk=chunk, seed=seed)
        told |= _mean("log_likelihood", logs) | {"images": len(part), "draws": samples}
    elbos = elbo(vae, x, samples=elbo_samples, chunk=chunk, seed=seed + 1)
    kls, means = _divergences(vae, x, chunk)
    told |= _mean("elbo", elbos) | {"kl": float(kls.mean())}
    told["reconstruction"] = told["elbo"] + told["kl"]
    with torch.no_grad():
        weights = vae.kl_per_example(1.0)
    if weights is not None:
        told["weight_kl"] = float(weights)
        told["reconstruction"] += float(weights)
    return told | {"active_units": float(_active(means))}


def active_units(vae: VAE, data: Any, *, threshold: float = ACTIVE, chunk: int = CHUNK) -> Tensor:
    """Which latent variables the decoder is told anything by: variance of E[z | x] over x > threshold.

    A latent variable that is not active has the same posterior for every input, the prior.

    Args:
        vae: the auto-encoder.
        data: as for `evaluate`.
        threshold: of the variance over the data.
        chunk: examples at once.

    Returns:
        True or False for each, (n,).

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.Diagonal(3)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(3, 6), latent)
        >>> _ = nn.init.zeros_(vae.net.encoder.weight[0])
        >>> active_units(vae, torch.randn(50, 6))[0]
        tensor(False)
    """
    return _divergences(vae, inputs(data), chunk)[1].var(0) > threshold


def inputs(data: Any) -> Tensor:
    """The inputs of a data set: a tensor, a pair, or an object with attribute x."""
    if isinstance(data, Tensor):
        return data
    x = data[0] if isinstance(data, tuple | list) else data.x
    if not isinstance(x, Tensor):
        raise TypeError(f"data of type {type(data).__name__}: give a tensor of inputs (N, ...)")
    return x


def _divergences(vae: VAE, x: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """(KL, E[z | x]) of each example, in float64."""
    kls, means = [], []
    with drawing(vae) as (vae, device):
        for block in x.split(chunk):
            q = vae.posterior(block.to(device))
            kls.append(q.kl().double().cpu())
            means.append(q.mean.double().cpu())
    return torch.cat(kls), torch.cat(means)


def _active(means: Tensor) -> int:
    return int((means.var(0) > ACTIVE).sum()) if len(means) > 1 else 0


def _mean(name: str, values: Tensor) -> dict[str, float]:
    mean, sem = mean_sem(values)
    return {name: mean, f"{name}_sem": sem} if len(values) > 1 else {name: mean}

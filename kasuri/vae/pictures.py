"""What an auto-encoder shows: reconstructions, draws from the prior, traversals; sheets of them."""

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.streams import normal, seeded
from kasuri.vae.estimates import Model, divergences, drawing
from kasuri.vae.objective import VAE

LEVELS = 16  # of grey in packed sheets: what the eye sees, at a third of the size


def reconstruct(vae: Model, x: Tensor) -> Tensor:
    """What the decoder makes of E[z | x]: means of the likelihood, shaped like x.

    Examples:
        >>> from torch import nn
        >>> import kasuri
        >>> latent = kasuri.vae.DiagonalLatent(2)
        >>> vae = kasuri.vae.VAE(nn.Linear(6, latent.size), nn.Linear(2, 6), latent)
        >>> reconstruct(vae, torch.ones(3, 6)).shape, sample(vae, 5).shape
        (torch.Size([3, 6]), torch.Size([5, 6]))
    """
    with drawing(vae) as (model, device):
        return _means(model, model.posterior(x.to(device)).mean)


def sample(vae: Model, count: int, *, seed: int = 0) -> Tensor:
    """What the decoder makes of draws from the prior: means of the likelihood, (count, ...)."""
    with drawing(vae) as (model, _), seeded(seed):
        parameter = next(model.parameters())
        return _means(model, normal((count, model.latent.dimensions)).to(parameter))


def traverse(
    vae: Model, x: Tensor, *, units: Sequence[int], span: float = 3.0, steps: int = 9
) -> Tensor:
    """What the decoder makes of one latent variable after the other from -span to span.

    Args:
        vae: the auto-encoder.
        x: one input (...); the other latent variables stay at E[z | x].
        units: latent variables, one row each.
        span: in standard deviations of the prior.
        steps: values of each.

    Returns:
        Means of the likelihood, (units, steps, ...).
    """
    with drawing(vae) as (model, device):
        z = model.posterior(x.unsqueeze(0).to(device)).mean.repeat(len(units), steps, 1)
        values = torch.linspace(-span, span, steps).to(z)
        for row, unit in enumerate(units):
            z[row, :, unit] = values
        return _means(model, z.flatten(0, 1)).unflatten(0, (len(units), steps))


def most_active(vae: Model, x: Tensor, count: int) -> list[int]:
    """The latent variables whose E[z | x] varies most over inputs x, in that order."""
    return [int(unit) for unit in divergences(vae, x)[1].argsort(descending=True)[:count]]


def sheet(pictures: Tensor, columns: int) -> Tensor:
    """Pictures (N, height, width) in rows of so many, one pixel apart, as one picture.

    Examples:
        >>> sheet(torch.ones(3, 2, 2), columns=2).shape
        torch.Size([5, 5])
    """
    count, height, width = pictures.shape
    rows = math.ceil(count / columns)
    tiles = F.pad(pictures, (0, 1, 0, 1, 0, rows * columns - count))
    page = tiles.unflatten(0, (rows, columns)).transpose(1, 2)
    return page.reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1]


def packed(page: Tensor) -> dict[str, Any]:
    """A picture (height, width) of values in [0, 1] for a result file: 16 levels of grey, compressed.

    Examples:
        >>> packed(torch.zeros(28, 28))["shape"]
        [28, 28]
    """
    grey = (page.double().clamp(0, 1) * (LEVELS - 1)).round() * (255 // (LEVELS - 1))
    content = bytes(grey.to(torch.uint8).flatten().tolist())
    text = base64.b64encode(zlib.compress(content, 9)).decode()
    return {"shape": list(page.shape), "pixels": text}


def _means(vae: VAE, z: Tensor) -> Tensor:
    return vae.likelihood.moments(vae.decode(z))[0]

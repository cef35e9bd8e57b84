"""What an auto-encoder shows: reconstructions, draws from the prior, traversals; sheets of them."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.streams import normal, seeded
from kasuri.vae.estimates import Model, drawing
from kasuri.vae.objective import VAE


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


def _means(vae: VAE, z: Tensor) -> Tensor:
    return vae.likelihood.moments(vae.decode(z))[0]

"""Variational auto-encoders whose latent variables have structured posteriors.

`VAE(encoder, decoder, latent)` is an objective that `kasuri.fit` trains. `DiagonalLatent`, `KTiedLatent`,
`MatrixNormalLatent` and `FullLatent` say what the encoder's output means; families without "Latent" in their
name, such as `kasuri.FullNormal`, are about weights. `evaluate`, `elbo` and `log_likelihood` score;
`reconstruct`, `sample` and `traverse` show.
"""

from kasuri.vae.estimates import active_units, elbo, evaluate, log_likelihood
from kasuri.vae.latents import (
    DiagonalLatent,
    FullLatent,
    KTiedLatent,
    Latent,
    MatrixNormalLatent,
)
from kasuri.vae.normals import LatentNormal
from kasuri.vae.objective import VAE
from kasuri.vae.pictures import reconstruct, sample, sheet, traverse

__all__ = [
    "VAE",
    "DiagonalLatent",
    "FullLatent",
    "KTiedLatent",
    "Latent",
    "LatentNormal",
    "MatrixNormalLatent",
    "active_units",
    "elbo",
    "evaluate",
    "log_likelihood",
    "reconstruct",
    "sample",
    "sheet",
    "traverse",
]

"""Variational auto-encoders whose latent variables have structured posteriors.

`VAE(encoder, decoder, latent)` is an objective that `kasuri.fit` trains. `Diagonal`, `MatrixNormalLatent`,
`FullNormal` and `KTiedLatent` say what the encoder's output means; they are families of *latent*
variables, in a namespace of their own: `kasuri.FullNormal` is a family of posteriors of weights.
`evaluate`, `elbo` and `log_likelihood` score, `reconstruct`, `sample` and `traverse` show.
"""

from kasuri.vae.estimates import elbo, log_likelihood
from kasuri.vae.evaluation import active_units, evaluate
from kasuri.vae.latents import Diagonal, FullNormal, KTiedLatent, Latent, MatrixNormalLatent
from kasuri.vae.normals import LatentNormal
from kasuri.vae.objective import VAE
from kasuri.vae.pictures import reconstruct, sample, sheet, traverse

__all__ = [
    "VAE",
    "Diagonal",
    "FullNormal",
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

"""Variational auto-encoders whose latent variables have structured posteriors.

`VAE(encoder, decoder, latent)` is an objective that `weft.fit` trains. `Diagonal`, `MatrixNormalLatent`,
`FullNormal` and `KTiedLatent` say what the encoder's output means; they are families of *latent*
variables, in a namespace of their own: `weft.FullNormal` is a family of posteriors of weights.
`evaluate`, `elbo` and `log_likelihood` score, `reconstruct`, `sample` and `traverse` show.
"""

from weft.vae.estimates import elbo, log_likelihood
from weft.vae.evaluation import active_units, evaluate
from weft.vae.latents import Diagonal, FullNormal, KTiedLatent, Latent, MatrixNormalLatent
from weft.vae.normals import LatentNormal
from weft.vae.objective import VAE
from weft.vae.pictures import reconstruct, sample, sheet, traverse

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

"""Variational auto-encoders whose latent variables have structured posteriors.

`VAE(encoder, decoder, latent)` is an objective that `kasuri.fit` trains. `DiagonalLatent`, `KTiedLatent`,
`MatrixNormalLatent` and `FullLatent` say what the encoder's output means; families without "Latent" in their
name, such as `kasuri.FullNormal`, are about weights. `evaluate`, `elbo` and `log_likelihood` score;
`reconstruct`, `sample` and `traverse` show.
"""

from kasuri.vae.estimates import active_units as active_units
from kasuri.vae.estimates import elbo as elbo
from kasuri.vae.estimates import evaluate as evaluate
from kasuri.vae.estimates import log_likelihood as log_likelihood
from kasuri.vae.latents import DiagonalLatent as DiagonalLatent
from kasuri.vae.latents import FullLatent as FullLatent
from kasuri.vae.latents import KTiedLatent as KTiedLatent
from kasuri.vae.latents import Latent as Latent
from kasuri.vae.latents import LatentNormal as LatentNormal
from kasuri.vae.latents import MatrixNormalLatent as MatrixNormalLatent
from kasuri.vae.objective import VAE as VAE
from kasuri.vae.pictures import reconstruct as reconstruct
from kasuri.vae.pictures import sample as sample
from kasuri.vae.pictures import sheet as sheet
from kasuri.vae.pictures import traverse as traverse

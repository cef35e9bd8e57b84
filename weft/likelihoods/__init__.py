"""Likelihoods: how a network's output f becomes a distribution over targets y, one kind per file."""

from weft.likelihoods.base import Likelihood as Likelihood
from weft.likelihoods.classes import Bernoulli as Bernoulli
from weft.likelihoods.classes import Categorical as Categorical
from weft.likelihoods.gamma_gaussian import GammaGaussian as GammaGaussian
from weft.likelihoods.gaussian import Gaussian as Gaussian
from weft.likelihoods.heteroscedastic import HeteroscedasticGaussian as HeteroscedasticGaussian

LIKELIHOODS: tuple[type[Likelihood], ...] = (
    Categorical,
    Bernoulli,
    Gaussian,
    GammaGaussian,
    HeteroscedasticGaussian,
)
"""Those that can be written to a file and read again."""

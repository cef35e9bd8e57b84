"""Likelihoods: how a network's output f becomes a distribution over targets y, one kind per file."""

from kasuri.likelihoods.base import Likelihood as Likelihood
from kasuri.likelihoods.classes import Bernoulli as Bernoulli
from kasuri.likelihoods.classes import Categorical as Categorical
from kasuri.likelihoods.gamma_gaussian import GammaGaussian as GammaGaussian
from kasuri.likelihoods.gaussian import Gaussian as Gaussian
from kasuri.likelihoods.gaussian import HeteroscedasticGaussian as HeteroscedasticGaussian

"""weft: Bayesian neural networks with structured variational posteriors."""

from weft import schedules as schedules
from weft.bayesian import Bayesian as Bayesian
from weft.contexts import frozen as frozen
from weft.contexts import named_posteriors as named_posteriors
from weft.contexts import using as using
from weft.convert import bayesianize as bayesianize
from weft.convert import collapse as collapse
from weft.estimators import flipout as flipout
from weft.estimators import local as local
from weft.estimators import mean as mean
from weft.estimators import shared as shared
from weft.likelihoods import Bernoulli as Bernoulli
from weft.likelihoods import Categorical as Categorical
from weft.likelihoods import Gaussian as Gaussian
from weft.likelihoods import Likelihood as Likelihood
from weft.objectives import ELBO as ELBO
from weft.posteriors.base import Elementwise as Elementwise
from weft.posteriors.base import Family as Family
from weft.posteriors.base import Posterior as Posterior
from weft.posteriors.k_tied import KTied as KTied
from weft.posteriors.mean_field import MeanField as MeanField
from weft.posteriors.point import Point as Point
from weft.predict import predict as predict
from weft.predictions import Prediction as Prediction
from weft.priors import HeNormal as HeNormal
from weft.priors import Normal as Normal
from weft.priors import Prior as Prior
from weft.saving import FileError as FileError
from weft.saving import load as load
from weft.saving import load_objective as load_objective
from weft.saving import save as save
from weft.select import last_layer as last_layer
from weft.summary import summary as summary

__version__ = "0.1.0"
__all__ = [
    "ELBO",
    "Bayesian",
    "Bernoulli",
    "Categorical",
    "Elementwise",
    "Family",
    "FileError",
    "Gaussian",
    "HeNormal",
    "KTied",
    "Likelihood",
    "MeanField",
    "Normal",
    "Point",
    "Posterior",
    "Prediction",
    "Prior",
    "bayesianize",
    "collapse",
    "flipout",
    "frozen",
    "last_layer",
    "load",
    "load_objective",
    "local",
    "mean",
    "named_posteriors",
    "predict",
    "save",
    "schedules",
    "shared",
    "summary",
    "using",
]

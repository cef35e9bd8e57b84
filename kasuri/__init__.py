"""kasuri: Bayesian neural networks with structured variational posteriors."""

from kasuri import diagnostics as diagnostics
from kasuri import vae as vae
from kasuri.compression.compress import compress as compress
from kasuri.compression.kept_posterior import Slim as Slim
from kasuri.compression.quantise import quantise as quantise
from kasuri.compression.report import CompressionReport as CompressionReport
from kasuri.compression.search import Gap as Gap
from kasuri.compression.search import Loss as Loss
from kasuri.compression.search import PerLayer as PerLayer
from kasuri.diagnostics import reference as reference
from kasuri.diagnostics.findings import diagnose as diagnose
from kasuri.export.export import Exported as Exported
from kasuri.export.export import export as export
from kasuri.export.programs import ExportError as ExportError
from kasuri.likelihoods import Bernoulli as Bernoulli
from kasuri.likelihoods import Categorical as Categorical
from kasuri.likelihoods import GammaGaussian as GammaGaussian
from kasuri.likelihoods import Gaussian as Gaussian
from kasuri.likelihoods import HeteroscedasticGaussian as HeteroscedasticGaussian
from kasuri.likelihoods import Likelihood as Likelihood
from kasuri.likelihoods.predictions import Prediction as Prediction
from kasuri.network.contexts import frozen as frozen
from kasuri.network.contexts import using as using
from kasuri.network.convert import bayesianize as bayesianize
from kasuri.network.convert import collapse as collapse
from kasuri.network.estimators import auto as auto
from kasuri.network.estimators import flipout as flipout
from kasuri.network.estimators import local as local
from kasuri.network.estimators import mean as mean
from kasuri.network.estimators import shared as shared
from kasuri.network.random import named_posteriors as named_posteriors
from kasuri.network.saving import FileError as FileError
from kasuri.network.saving import load as load
from kasuri.network.saving import save as save
from kasuri.network.select import last_layer as last_layer
from kasuri.network.summary import summary as summary
from kasuri.objectives import schedules as schedules
from kasuri.objectives.elbo import ELBO as ELBO
from kasuri.objectives.elbo import MaximumLikelihood as MaximumLikelihood
from kasuri.objectives.elbo import load_objective as load_objective
from kasuri.objectives.temperature import Balanced as Balanced
from kasuri.posteriors.base import Elementwise as Elementwise
from kasuri.posteriors.base import Family as Family
from kasuri.posteriors.base import Posterior as Posterior
from kasuri.posteriors.full_normal import FullNormal as FullNormal
from kasuri.posteriors.k_tied import KTied as KTied
from kasuri.posteriors.matrix_normal import MatrixNormal as MatrixNormal
from kasuri.posteriors.matrix_normal import MatrixNormalDiagonal as MatrixNormalDiagonal
from kasuri.posteriors.matrix_normal import ScaledMatrixNormal as ScaledMatrixNormal
from kasuri.posteriors.mean_field import MeanField as MeanField
from kasuri.posteriors.point import Point as Point
from kasuri.posteriors.radial import distributions as distributions
from kasuri.posteriors.radial.family import Radial as Radial
from kasuri.posteriors.radial.prior import RadialPrior as RadialPrior
from kasuri.prediction import metrics as metrics
from kasuri.prediction.baselines import ensemble as ensemble
from kasuri.prediction.baselines import mc_dropout as mc_dropout
from kasuri.prediction.evaluate import Evaluation as Evaluation
from kasuri.prediction.evaluate import evaluate as evaluate
from kasuri.prediction.moments.predict_moments import predict_moments as predict_moments
from kasuri.prediction.predict import predict as predict
from kasuri.priors.base import Prior as Prior
from kasuri.priors.normal import HeNormal as HeNormal
from kasuri.priors.normal import Normal as Normal
from kasuri.priors.relevance import ARD as ARD
from kasuri.priors.relevance import GroupARD as GroupARD
from kasuri.training.callbacks import Callback as Callback
from kasuri.training.checkpoint import CheckpointError as CheckpointError
from kasuri.training.fit import fit as fit
from kasuri.training.fitted import Fitted as Fitted
from kasuri.training.interrupts import Interrupted as Interrupted
from kasuri.training.many import fit_many as fit_many
from kasuri.training.nonfinite import NonFiniteLoss as NonFiniteLoss

__version__ = "0.3.0"

__all__ = [
    "ARD",
    "ELBO",
    "Balanced",
    "Bernoulli",
    "Callback",
    "Categorical",
    "CheckpointError",
    "CompressionReport",
    "Elementwise",
    "Evaluation",
    "ExportError",
    "Exported",
    "Family",
    "FileError",
    "Fitted",
    "FullNormal",
    "GammaGaussian",
    "Gap",
    "Gaussian",
    "GroupARD",
    "HeNormal",
    "HeteroscedasticGaussian",
    "Interrupted",
    "KTied",
    "Likelihood",
    "Loss",
    "MatrixNormal",
    "MatrixNormalDiagonal",
    "MaximumLikelihood",
    "MeanField",
    "NonFiniteLoss",
    "Normal",
    "PerLayer",
    "Point",
    "Posterior",
    "Prediction",
    "Prior",
    "Radial",
    "RadialPrior",
    "ScaledMatrixNormal",
    "Slim",
    "assess",
    "auto",
    "bayesianize",
    "collapse",
    "compress",
    "diagnose",
    "diagnostics",
    "distributions",
    "ensemble",
    "evaluate",
    "export",
    "fit",
    "fit_many",
    "flipout",
    "frozen",
    "last_layer",
    "load",
    "load_objective",
    "local",
    "mc_dropout",
    "mean",
    "metrics",
    "named_posteriors",
    "predict",
    "predict_moments",
    "quantise",
    "reference",
    "save",
    "schedules",
    "shared",
    "summary",
    "using",
    "vae",
]

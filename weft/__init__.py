"""weft: Bayesian neural networks with structured variational posteriors."""

from weft import data as data
from weft import diagnostics as diagnostics
from weft import distributions as distributions
from weft import metrics as metrics
from weft import reference as reference
from weft import schedules as schedules
from weft import vae as vae
from weft.ard import ARD as ARD
from weft.ard import GroupARD as GroupARD
from weft.balanced import Balanced as Balanced
from weft.baselines import ensemble as ensemble
from weft.baselines import mc_dropout as mc_dropout
from weft.bayesian import Bayesian as Bayesian
from weft.compression.compress import compress as compress
from weft.compression.quantising import quantise as quantise
from weft.compression.report import CompressionReport as CompressionReport
from weft.contexts import frozen as frozen
from weft.contexts import named_posteriors as named_posteriors
from weft.contexts import using as using
from weft.convert import bayesianize as bayesianize
from weft.convert import collapse as collapse
from weft.diagnostics.findings import diagnose as diagnose
from weft.estimators import auto as auto
from weft.estimators import flipout as flipout
from weft.estimators import local as local
from weft.estimators import mean as mean
from weft.estimators import shared as shared
from weft.evaluation import Evaluation as Evaluation
from weft.evaluation import assess as assess
from weft.evaluation import evaluate as evaluate
from weft.exporting.export import Exported as Exported
from weft.exporting.export import export as export
from weft.exporting.programs import ExportError as ExportError
from weft.likelihoods import Bernoulli as Bernoulli
from weft.likelihoods import Categorical as Categorical
from weft.likelihoods import GammaGaussian as GammaGaussian
from weft.likelihoods import Gaussian as Gaussian
from weft.likelihoods import HeteroscedasticGaussian as HeteroscedasticGaussian
from weft.likelihoods import Likelihood as Likelihood
from weft.moments.predict import predict_moments as predict_moments
from weft.objectives import ELBO as ELBO
from weft.objectives import MaximumLikelihood as MaximumLikelihood
from weft.posteriors.base import Elementwise as Elementwise
from weft.posteriors.base import Family as Family
from weft.posteriors.base import Posterior as Posterior
from weft.posteriors.full_normal import FullNormal as FullNormal
from weft.posteriors.k_tied import KTied as KTied
from weft.posteriors.matrix_normal import MatrixNormal as MatrixNormal
from weft.posteriors.matrix_normal_diagonal import MatrixNormalDiagonal as MatrixNormalDiagonal
from weft.posteriors.mean_field import MeanField as MeanField
from weft.posteriors.point import Point as Point
from weft.posteriors.radial import Radial as Radial
from weft.posteriors.scaled_matrix_normal import ScaledMatrixNormal as ScaledMatrixNormal
from weft.predict import predict as predict
from weft.predictions import Prediction as Prediction
from weft.priors import HeNormal as HeNormal
from weft.priors import Normal as Normal
from weft.priors import Prior as Prior
from weft.radial_prior import RadialPrior as RadialPrior
from weft.relevance import Relevance as Relevance
from weft.relevance import relevance as relevance
from weft.saving import FileError as FileError
from weft.saving import load as load
from weft.saving import load_objective as load_objective
from weft.saving import save as save
from weft.select import last_layer as last_layer
from weft.sparsity import LayerSparsity as LayerSparsity
from weft.sparsity import SparsityReport as SparsityReport
from weft.sparsity import sparsify as sparsify
from weft.sparsity import sparsity as sparsity
from weft.summary import summary as summary
from weft.training.callbacks import Callback as Callback
from weft.training.checkpoint import CheckpointError as CheckpointError
from weft.training.diagnose import NonFiniteLoss as NonFiniteLoss
from weft.training.fit import fit as fit
from weft.training.fitted import Fitted as Fitted
from weft.training.halving import fit_halving as fit_halving
from weft.training.interrupts import Interrupted as Interrupted
from weft.training.together import fit_many as fit_many
from weft.version import __version__ as __version__

__all__ = [
    "ARD",
    "ELBO",
    "Balanced",
    "Bayesian",
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
    "Gaussian",
    "GroupARD",
    "HeNormal",
    "HeteroscedasticGaussian",
    "Interrupted",
    "KTied",
    "LayerSparsity",
    "Likelihood",
    "MatrixNormal",
    "MatrixNormalDiagonal",
    "MaximumLikelihood",
    "MeanField",
    "NonFiniteLoss",
    "Normal",
    "Point",
    "Posterior",
    "Prediction",
    "Prior",
    "Radial",
    "RadialPrior",
    "Relevance",
    "ScaledMatrixNormal",
    "SparsityReport",
    "assess",
    "auto",
    "bayesianize",
    "collapse",
    "compress",
    "data",
    "diagnose",
    "diagnostics",
    "distributions",
    "ensemble",
    "evaluate",
    "export",
    "fit",
    "fit_halving",
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
    "relevance",
    "save",
    "schedules",
    "shared",
    "sparsify",
    "sparsity",
    "summary",
    "using",
    "vae",
]

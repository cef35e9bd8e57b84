"""kasuri: Bayesian neural networks with structured variational posteriors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from kasuri.posteriors.base import Family as Family
from kasuri.posteriors.base import Posterior as Posterior
from kasuri.posteriors.full_normal import FullNormal as FullNormal
from kasuri.posteriors.k_tied import KTied as KTied
from kasuri.posteriors.matrix_normal import MatrixNormal as MatrixNormal
from kasuri.posteriors.matrix_normal import MatrixNormalDiagonal as MatrixNormalDiagonal
from kasuri.posteriors.matrix_normal import ScaledMatrixNormal as ScaledMatrixNormal
from kasuri.posteriors.mean_field import MeanField as MeanField
from kasuri.posteriors.point import Point as Point
from kasuri.posteriors.radial.family import Radial as Radial
from kasuri.posteriors.radial.prior import RadialPrior as RadialPrior
from kasuri.prediction.predict import predict as predict
from kasuri.priors.base import Prior as Prior
from kasuri.priors.normal import HeNormal as HeNormal
from kasuri.priors.normal import Normal as Normal
from kasuri.priors.relevance import ARD as ARD
from kasuri.priors.relevance import GroupARD as GroupARD

if TYPE_CHECKING:
    from kasuri import compression as compression
    from kasuri import diagnostics as diagnostics
    from kasuri import exporting as exporting
    from kasuri import prediction as prediction
    from kasuri import testing as testing
    from kasuri import training as training
    from kasuri import vae as vae
    from kasuri.compression.compress import compress as compress
    from kasuri.diagnostics.findings import diagnose as diagnose
    from kasuri.exporting.export import export as export
    from kasuri.prediction import metrics as metrics
    from kasuri.prediction.evaluate import evaluate as evaluate
    from kasuri.prediction.moments.predict_moments import predict_moments as predict_moments
    from kasuri.training.fit import Fitted as Fitted
    from kasuri.training.fit import fit as fit
    from kasuri.training.natural import Natural as Natural

__version__ = "0.3.0"

# What is imported when it is first asked for, so that `import kasuri` is quick: its module, and its name
# there if it is not the module itself.
_LATER = {
    "Fitted": "kasuri.training.fit:Fitted",
    "Natural": "kasuri.training.natural:Natural",
    "compress": "kasuri.compression.compress:compress",
    "compression": "kasuri.compression",
    "diagnose": "kasuri.diagnostics.findings:diagnose",
    "diagnostics": "kasuri.diagnostics",
    "evaluate": "kasuri.prediction.evaluate:evaluate",
    "export": "kasuri.exporting.export:export",
    "exporting": "kasuri.exporting",
    "fit": "kasuri.training.fit:fit",
    "metrics": "kasuri.prediction.metrics",
    "prediction": "kasuri.prediction",
    "predict_moments": "kasuri.prediction.moments.predict_moments:predict_moments",
    "testing": "kasuri.testing",
    "training": "kasuri.training",
    "vae": "kasuri.vae",
}

__all__ = [
    "ARD",
    "ELBO",
    "Balanced",
    "Bernoulli",
    "Categorical",
    "Family",
    "FileError",
    "Fitted",
    "FullNormal",
    "GammaGaussian",
    "Gaussian",
    "GroupARD",
    "HeNormal",
    "HeteroscedasticGaussian",
    "KTied",
    "Likelihood",
    "MatrixNormal",
    "MatrixNormalDiagonal",
    "MaximumLikelihood",
    "MeanField",
    "Natural",
    "Normal",
    "Point",
    "Posterior",
    "Prediction",
    "Prior",
    "Radial",
    "RadialPrior",
    "ScaledMatrixNormal",
    "bayesianize",
    "collapse",
    "compress",
    "diagnose",
    "diagnostics",
    "evaluate",
    "export",
    "fit",
    "frozen",
    "last_layer",
    "load",
    "load_objective",
    "metrics",
    "named_posteriors",
    "predict",
    "predict_moments",
    "save",
    "schedules",
    "summary",
    "training",
    "using",
    "vae",
]


def __getattr__(name: str) -> Any:
    """A public name of a room that has not been needed so far."""
    if name not in _LATER:
        raise AttributeError(f"module 'kasuri' has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    room = import_module(module)
    value = getattr(room, attribute) if attribute else room
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATER, *(name for name in globals() if name.startswith("__"))})

"""What regressor and classifier share: parameters, training, prediction in bounded memory, files."""

import copy
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from kasuri.exporting.export import Exported, Kind, export
from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Prediction
from kasuri.network.convert import bayesianize
from kasuri.network.saving import load
from kasuri.objectives.elbo import ELBO, load_objective
from kasuri.objectives.temperature import Balanced
from kasuri.posteriors.base import Family
from kasuri.prediction.evaluate import evaluate
from kasuri.prediction.predict import predict
from kasuri.priors.base import Prior
from kasuri.sklearn import files, settings
from kasuri.sklearn.choosing import Rows, choose, split
from kasuri.sklearn.scaling import Scaling
from kasuri.streams import Stream, globally_seeded, mix
from kasuri.training.fit import fit
from kasuri.training.validation import Validation

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 2048  # rows of a prediction that are run at once
_STORED = ("n_features_in_", "history_", "best_epoch_", "temperature_", "seed_")
_BUILT = ("widths", "activation", "outputs")
# torch has one generator per process: threads that train, or use it in other ways, take turns
GENERATOR = threading.RLock()


@dataclass(kw_only=True, eq=False, repr=False)
class BayesianEstimator(BaseEstimator, ABC):
    """A dense network with a posterior over its weights, behind scikit-learn's interface."""

    hidden_layer_sizes: int | Sequence[int] = field(default=(50,), kw_only=False)
    activation: str = "relu"
    posterior: str | Family = "k-tied"
    prior: str | float | Prior = "he"
    temperature: float | Balanced | str = "auto"
    learning_rate: float | str = "auto"
    batch_size: int | str = "auto"
    max_epochs: int | str = "auto"
    patience: int | None = None
    validation_fraction: float = 0.1
    n_samples: int = 100
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = settings.CONSTRAINTS
    _temperatures: ClassVar[Sequence[float]]  # what temperature="auto" chooses from

    @abstractmethod
    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Every metric of `kasuri.evaluate`."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What fitting found about the targets, ready for JSON; `_set_state` takes it over."""

    @abstractmethod
    def _set_state(self, state: dict[str, Any]) -> None: ...

    def log_likelihood(self, X: Any, y: Any) -> float:
        """Mean log-density, or log-probability, of the targets of unseen rows, in their own unit."""
        return -self.evaluate(X, y)["nll"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and fitted state to a file without code; `load` reads it.

        An existing file is replaced, or left untouched if anything fails.
        """
        check_is_fitted(self, "objective_")
        state = {name: getattr(self, name) for name in _STORED} | self._built | self._state()
        state["temperatures_"] = list(self.temperatures_.items())
        state["inputs_"] = self.inputs_.options()
        if (columns := getattr(self, "feature_names_in_", None)) is not None:
            state["feature_names_in_"] = columns.tolist()
        params = self.get_params(deep=False)
        files.write(Path(path), type(self).__name__, params, state, self.objective_)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The fitted estimator of a file from `save`."""
        with files.opened(Path(path), cls.__name__) as (params, state, weights):
            new = cls(**params)
            new._built = {key: state[key] for key in _BUILT}
            for name in _STORED:
                setattr(new, name, state[name])
            with GENERATOR, globally_seeded(0, torch.device("cpu")):  # its values are overwritten
                net = new._network().double()
                objective = load_objective(weights, load(weights, net))
        if "feature_names_in_" in state:
            new.feature_names_in_ = np.array(state["feature_names_in_"], dtype=object)
        new.temperatures_ = dict(state["temperatures_"])
        new.inputs_ = Scaling.from_options(state["inputs_"])
        new._set_state(state)
        new._adopt(objective)
        return new

    def export(
        self, path: str | os.PathLike[str] | None = None, kind: Kind = "ensemble", **options: Any
    ) -> Exported:
        """Write the model to a file that needs neither kasuri nor scikit-learn, see `kasuri.export`.

        Its input are raw rows in float64, its outputs in the target's own unit; scaling is inside. An
        ensemble has the functions of `predict`, unless other `members` or another `seed` are asked for.
        """
        check_is_fitted(self, "objective_")
        ours: dict[str, Any] = {
            "members": self.n_samples,
            "seed": mix(self.seed_, Stream.DRAWS),
            "input_scaling": (self.inputs_.zero, self.inputs_.unit),
            **self._units(),
        }
        rows = self.inputs_.zero + self.inputs_.unit * torch.linspace(-1, 1, 5).unsqueeze(1)
        return export(self.objective_, rows, path, kind, **(ours | options))

    def _units(self) -> dict[str, Any]:
        """Mean and scale of the targets, as `kasuri.export` wants them."""
        return {}

    def _split(self, count: int, classes: Tensor | None = None) -> tuple[Rows, list[Rows]]:
        """What the rows are for, from a fresh seed; parameters are checked first."""
        self._validate_params()
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        is_chosen = isinstance(self.temperature, str)
        share, has_patience = float(self.validation_fraction), self.patience is not None
        return split(count, self.seed_, share, is_chosen, has_patience, classes)

    def _train(
        self,
        x: Tensor,
        y: Tensor,
        rows: Rows,
        folds: list[Rows],
        likelihood: Likelihood,
        outputs: int,
    ) -> None:
        """Train on raw inputs and scaled targets."""
        self.inputs_ = Scaling.of(x[rows.rest], everything=x)
        widths = settings.widths(self.hidden_layer_sizes)
        # of the network that is fitted, whatever set_params says later
        self._built: dict[str, Any] = dict(
            zip(_BUILT, (widths, self.activation, outputs), strict=True)
        )
        family = settings.made("posterior", self.posterior, Family)
        options = settings.of_fit(self, len(rows.rest)) | {"seed": self.seed_}
        options |= {"likelihood": likelihood, "prior": settings.prior(self.prior)}

        def net() -> nn.Module:
            return bayesianize(self._network(), family, estimator="auto")

        x = self.inputs_(x).float()
        temperature: Any = self.temperature
        scores: dict[float, float] = {}
        fitted = None
        with GENERATOR, globally_seeded(mix(self.seed_, Stream.WEIGHTS), torch.device("cpu")):
            if folds:
                temperature, scores, fitted = choose(net, x, y, folds, self._temperatures, options)
            if fitted is None or self.patience is not None:
                valid = Validation((x[rows.held], y[rows.held]), patience=self.patience)
                own = copy.deepcopy(options)  # the user's likelihood and prior are not trained
                train = x[rows.rest], y[rows.rest]
                fitted = fit(net(), train, valid, temperature=temperature, **own)
        self.history_, self.best_epoch_ = fitted.history, fitted.best_epoch
        self.temperature_, self.temperatures_ = fitted.temperature, scores
        self._adopt(fitted.objective)

    def _network(self) -> nn.Module:
        return settings.network(self.n_features_in_, **self._built)

    def _adopt(self, objective: Any) -> None:
        # in float64 the prediction of a row depends on the other rows by a few 1e-16 only
        self.objective_: ELBO = objective.double()
        self.model_ = self.objective_.net
        self.n_iter_ = len(self.history_)

    def _inputs(self, X: Any) -> Tensor:
        """Scaled rows, checked against those of `fit`."""
        check_is_fitted(self, "objective_")
        return self.inputs_(torch.tensor(validate_data(self, X, dtype=np.float64, reset=False)))

    def _draws(self) -> dict[str, Any]:
        """Number and seed of draws: the same functions at every call, whatever the rows."""
        seed = mix(self.seed_, Stream.DRAWS)
        return {"samples": self.n_samples, "seed": seed, "chunk": CHUNK}

    def _predicted(self, X: Any) -> Prediction:
        """Mean and spread of all rows; the draws are not kept."""
        x = self._inputs(X)
        return predict(self.objective_, x, keep_draws=False, **self._draws())

    def _evaluated(self, x: Array, y: Tensor, unit: float | Tensor) -> dict[str, float]:
        """Metrics on checked rows and targets as the network sees them."""
        data = self.inputs_(torch.tensor(x)), y
        return evaluate(self.objective_, data, target_scale=unit, **self._draws())

"""BayesianRegressor: real targets with predictive intervals."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from kasuri.likelihoods import HeteroscedasticGaussian, Likelihood
from kasuri.prediction.predict import predict
from kasuri.sklearn import choosing, settings
from kasuri.sklearn.estimator import CHUNK, GENERATOR, Array, BayesianEstimator
from kasuri.sklearn.scaling import Scaling
from kasuri.streams import Stream, globally_seeded, mix


@dataclass(kw_only=True, eq=False, repr=False)
class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Regression by a Bayesian neural network.

    Inputs and targets are standardised inside; everything it returns is in the target's own unit.
    Predictions use the same draws of the posterior for all rows at every call.

    Args:
        hidden_layer_sizes: widths of the hidden layers; () is a linear model.
        activation: "relu", "elu", "gelu", "silu" or "tanh".
        posterior: "k-tied", "mean-field", "matrix-normal", "matrix-normal-diagonal",
            "scaled-matrix-normal", "full-normal" (small networks), "radial", "point" (the weights of highest
            posterior density), or the name of a family of your own; or a family, e.g. kasuri.KTied(1).
        prior: "he", "normal", "ard", "group-ard" or "radial"; a standard deviation; or a prior, e.g.
            kasuri.Normal(0.5).
        likelihood: "gaussian", normal noise of one learned size for all rows; "gamma", the same with a
            posterior over the size (one for each target), which has wider tails; "heteroscedastic",
            noise whose size depends on the row; or a likelihood, e.g. kasuri.Gaussian(0.1), in units
            of the standardised target.
        temperature: weight of the KL, 1 for Bayes; kasuri.Balanced(0.1) for that times rows / weights; "auto"
            tries 1, 0.55, 0.3 and 0.1 by cross-validation in five folds, together, and trains on all rows
            with the best; from 5,000 rows on the best on the rows held out is kept.
        learning_rate: of Adam at the beginning; "auto" is 0.01.
        batch_size: rows per step; "auto" is 64, and 256 from 10,000 rows to train on.
        max_epochs: passes over the training rows; "auto" makes about 4,000 steps, and at least 20 passes.
        patience: stop after so many validations (20 per run) without improvement.
        validation_fraction: share of rows held out to choose the epoch on, the best validated or the newest
            within a standard error of it; 0 trains on all rows, however many, and keeps the last epoch, and
            so does temperature="auto" below 5,000 rows, unless there is patience.
        n_samples: draws of the posterior per prediction.
        random_state: an int makes fit and predictions reproducible.
        verbose: show a progress bar.

    Attributes:
        model_: the trained network, from `kasuri.bayesianize`; in float64, its inputs and outputs scaled.
        objective_: network, prior and likelihood, a `kasuri.ELBO`.
        n_outputs_: number of targets.
        history_: one row of numbers per epoch.
        n_iter_: epochs run.
        best_epoch_: the epoch kept.
        temperature_: the temperature there.
        temperatures_: mean held-out NLL of each temperature that was tried, targets scaled; {} if none was.
        n_features_in_: number of columns.
        feature_names_in_: their names, if fitted on a data frame whose columns are all strings.

    Examples:
        >>> X = np.linspace(-1, 1, 60).reshape(-1, 1)
        >>> model = BayesianRegressor((20,), max_epochs=20, random_state=0).fit(X, 3 * X[:, 0] + 7)
        >>> mean, std = model.predict(X[:2], return_std=True)
        >>> low, high = model.predict_interval(X[:2], level=0.9)
        >>> bool((low < mean).all() and (mean < high).all())
        True
    """

    likelihood: str | Likelihood = "gaussian"

    _temperatures = choosing.REAL
    _parameter_constraints = settings.CONSTRAINTS | {"likelihood": [str, Likelihood]}

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X (rows, columns) and targets y (rows,) or (rows, outputs)."""
        checks = {"multi_output": True, "y_numeric": True, "ensure_min_samples": 2}
        X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        raw = torch.tensor(y.astype(np.float64)).reshape(len(y), -1)  # y may be read as text
        rows, folds = self._split(len(y))
        self.targets_ = Scaling.of(raw[rows.rest], everything=raw)
        self.n_outputs_, self._is_flat = raw.shape[1], y.ndim == 1
        noise = settings.likelihood(self.likelihood, self.n_outputs_)
        width = self.n_outputs_ * (2 if isinstance(noise, HeteroscedasticGaussian) else 1)
        self._train(torch.tensor(X), self.targets_(raw).float(), rows, folds, noise, width)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictive mean; with `return_std` also the standard deviation, noise and weights together."""
        prediction = self._predicted(X)
        mean = self._in_unit(prediction.mean)
        if not return_std:
            return mean
        return mean, self._in_unit(prediction.std, zero=0.0)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper end of the central interval that holds a new target with this probability.

        Quantiles of the predictive distribution, noise included; `level` is between 0 and 1.
        """
        x, parts = self._inputs(X), []
        for piece in x.split(CHUNK):  # draws are kept for one piece at a time
            parts.append(predict(self.objective_, piece, **self._draws()).interval(level))
        low, high = (self._in_unit(torch.cat(ends)) for ends in zip(*parts, strict=True))
        return low, high

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draws of new targets, (rows, n_samples) or (rows, outputs, n_samples).

        Each draw is one function of the posterior at all rows, plus noise for every row.
        """
        x = self._inputs(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        own = mix(seed, Stream.FUNCTIONS)
        functions = predict(self.model_, x, n_samples, seed=own, chunk=CHUNK)
        noise = mix(seed, Stream.TARGETS)
        with torch.no_grad(), GENERATOR, globally_seeded(noise, x.device):
            drawn = [self.objective_.likelihood(f).sample() for f in functions.draws]
        return np.stack([self._in_unit(y) for y in drawn], axis=-1)

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Every metric of `kasuri.evaluate` in the target's own unit: rmse, nll, crps, coverage_90, ..."""
        check_is_fitted(self, "objective_")
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=False
        )
        raw = torch.tensor(y, dtype=torch.float64).reshape(len(y), -1)
        if raw.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {raw.shape[1]} outputs, but fit saw {self.n_outputs_} outputs")
        return self._evaluated(X, self.targets_(raw), self.targets_.unit)

    def _in_unit(self, rows: Tensor, zero: float | None = None) -> Array:
        """Scaled targets in their own unit, a column as a vector if the target was one."""
        values = self.targets_.undone(rows, zero).numpy()
        return values[:, 0] if self._is_flat else values

    def _units(self) -> dict[str, Any]:
        return {"target_mean": self.targets_.zero, "target_scale": self.targets_.unit}

    def _state(self) -> dict[str, Any]:
        return {"targets_": self.targets_.options(), "is_flat": self._is_flat}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.targets_ = Scaling.from_options(state["targets_"])
        self.n_outputs_, self._is_flat = len(self.targets_.unit), state["is_flat"]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

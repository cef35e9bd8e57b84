"""BayesianClassifier: classes with averaged probabilities."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kasuri.likelihoods import Categorical
from kasuri.sklearn import choosing
from kasuri.sklearn.estimator import Array, BayesianEstimator


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """Classification by a Bayesian neural network.

    Inputs are standardised inside; labels are strings or whole numbers, two kinds or more.
    Predictions use the same draws of the posterior for all rows at every call.

    Args:
        hidden_layer_sizes: widths of the hidden layers; () is logistic regression.
        activation: "relu", "elu", "gelu", "silu" or "tanh".
        posterior: "k-tied", "mean-field", "matrix-normal", "matrix-normal-diagonal",
            "scaled-matrix-normal", "full-normal" (small networks), "radial", "point" (the weights of highest
            posterior density), or the name of a family of your own; or a family, e.g. kasuri.KTied(1).
        prior: "he", "normal", "ard", "group-ard" or "radial"; a standard deviation; or a prior, e.g.
            kasuri.Normal(0.5).
        temperature: weight of the KL, 1 for Bayes; kasuri.Balanced(0.1) for that times rows / weights; "auto"
            tries 1, 0.3, 0.1, 0.03 and 0.01 by cross-validation in five folds, together, and trains on all
            rows with the best; from 5,000 rows on the best on the rows held out is kept.
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
        model_: the trained network, from `kasuri.bayesianize`; in float64, its inputs scaled.
        objective_: network, prior and likelihood, a `kasuri.ELBO`.
        classes_: the labels, sorted.
        history_: one row of numbers per epoch.
        n_iter_: epochs run.
        best_epoch_: the epoch kept.
        temperature_: the temperature there.
        temperatures_: mean held-out NLL of each temperature that was tried; {} if none was.
        n_features_in_: number of columns.
        feature_names_in_: their names, if fitted on a data frame whose columns are all strings.

    Examples:
        >>> X = np.linspace(-1, 1, 60).reshape(-1, 1)
        >>> y = np.where(X[:, 0] > 0, "right", "left")
        >>> model = BayesianClassifier((20,), max_epochs=100, random_state=0).fit(X, y)
        >>> model.predict([[-1.0], [1.0]]).tolist()
        ['left', 'right']
        >>> model.predict_proba([[0.0]]).shape
        (1, 2)
    """

    _temperatures = choosing.CLASSES

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X (rows, columns) and labels y (rows,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_.tolist()}")
        labels = torch.tensor(numbers, dtype=torch.int64)
        parts = self._split(len(y), labels)
        self._train(torch.tensor(X), labels, *parts, Categorical(), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (rows, classes), averaged over draws of the posterior."""
        return self._predicted(X).mean.numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of `predict_proba`; a probability that underflows counts as the smallest number."""
        probabilities = self.predict_proba(X)
        return np.log(np.maximum(probabilities, np.finfo(probabilities.dtype).tiny))

    def predict(self, X: Any) -> Array:
        """The most probable label of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Every metric of `kasuri.evaluate`: accuracy, nll, brier, ece, mutual_information, ...

        Args:
            X: (rows, columns).
            y: labels (rows,), all known from `fit`.
        """
        check_is_fitted(self, "objective_")
        X, y = validate_data(self, X, y, dtype=np.float64, reset=False)
        encoder = LabelEncoder()
        encoder.classes_ = self.classes_
        labels = torch.tensor(encoder.transform(y), dtype=torch.int64)
        return self._evaluated(X, labels, 1.0)

    def _state(self) -> dict[str, Any]:
        return {"classes_": self.classes_.tolist(), "type": self.classes_.dtype.str}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.classes_ = np.array(state["classes_"], dtype=np.dtype(state["type"]))

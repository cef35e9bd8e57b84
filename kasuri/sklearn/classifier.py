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

    Parameters and attributes are those of `BayesianRegressor`, but for its `likelihood`, with these
    differences: `hidden_layer_sizes=()` is logistic regression, temperature="auto" tries 1, 0.3, 0.1, 0.03
    and 0.01, only inputs are scaled, and `classes_` has the labels, sorted.

    Examples:
        >>> X = np.linspace(-1, 1, 60).reshape(-1, 1)
        >>> y = np.where(X[:, 0] > 0, "right", "left")
        >>> model = BayesianClassifier((20,), temperature=0.1, max_epochs=60, random_state=0).fit(X, y)
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
        """Every metric of `kasuri.evaluate`: accuracy, nll, brier, ece, mutual_information, ..."""
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

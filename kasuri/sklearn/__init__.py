"""Bayesian networks for tables, behind scikit-learn's interface.

`BayesianRegressor` and `BayesianClassifier` go wherever a scikit-learn estimator goes: pipelines,
grid searches, cross-validation. Needs scikit-learn 1.6 or newer: pip install kasuri[sklearn].
"""

from kasuri.sklearn.classifier import BayesianClassifier
from kasuri.sklearn.regressor import BayesianRegressor

__all__ = ["BayesianClassifier", "BayesianRegressor"]

"""scikit-learn's own conformance suite, with nothing excused.

The one check that skips itself asks for an environment variable (SCIPY_ARRAY_API) and is about a
support for array libraries that these estimators do not claim.
"""

from sklearn.utils.estimator_checks import parametrize_with_checks

from kasuri.sklearn import BayesianClassifier, BayesianRegressor

# few large steps: the checks ask for interface and invariance, and for a fit that is not hopeless
SETTINGS = {
    "hidden_layer_sizes": (10,),
    "max_epochs": 4,
    "batch_size": 16,
    "learning_rate": 0.1,
    "n_samples": 4,
    "temperature": 0.1,  # to choose it takes longer
}


@parametrize_with_checks([BayesianRegressor(**SETTINGS), BayesianClassifier(**SETTINGS)])
def test_conformance(estimator, check):
    check(estimator)

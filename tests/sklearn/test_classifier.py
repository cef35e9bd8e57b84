"""BayesianClassifier: labels of any kind, probabilities against scikit-learn's own scores."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from kasuri.sklearn import BayesianClassifier

SMALL = {"hidden_layer_sizes": (8,), "max_epochs": 15, "learning_rate": 0.03, "batch_size": 16}
SMALL["temperature"] = 0.1  # saves choosing it


def blobs(labels, rows=90, seed=0):
    rng = np.random.default_rng(seed)
    number = rng.integers(len(labels), size=rows)
    centre = np.array([[0, 0], [4, 0], [0, 4]]) * 10
    return centre[number] + rng.normal(size=(rows, 2)) * 8, np.array(labels)[number]


def classifier(**changes):
    return BayesianClassifier(**(SMALL | {"n_samples": 20, "random_state": 0} | changes))


LABELS = [["b", "a", "c"], [3, -1, 10], [False, True]]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_of_every_kind(labels):
    X, y = blobs(labels)
    model = classifier().fit(X, y)
    new, truth = blobs(labels, seed=1)
    proba = model.predict_proba(new)
    assert model.classes_.tolist() == sorted(labels)
    assert model.classes_.dtype == y.dtype
    assert proba.shape == (90, len(labels))
    assert np.allclose(proba.sum(1), 1)
    assert model.score(new, truth) > 0.85
    assert (model.predict(new) == model.classes_[proba.argmax(1)]).all()


def test_scores_are_those_of_scikit_learn():
    X, y = blobs(["b", "a", "c"])
    model = classifier().fit(X, y)
    new, truth = blobs(["b", "a", "c"], seed=1)
    told, proba = model.evaluate(new, truth), model.predict_proba(new)
    assert model.log_likelihood(new, truth) == pytest.approx(-log_loss(truth, proba), rel=1e-6)
    assert told["accuracy"] == accuracy_score(truth, model.predict(new))
    assert np.allclose(model.predict_log_proba(new), np.log(proba))


def test_probabilities_are_those_of_several_functions():
    """Averaged over draws they differ from any single one's, and uncertainty has two parts."""
    X, y = blobs(["b", "a", "c"])
    model = classifier().fit(X, y)
    one = model.predict_proba(X), model.set_params(n_samples=1).predict_proba(X)
    assert np.abs(one[0] - one[1]).max() > 1e-3
    assert model.set_params(n_samples=30).evaluate(X, y)["mutual_information"] > 0


def test_unknown_labels_are_refused_in_scores():
    X, y = blobs(["b", "a"])
    model = classifier(max_epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="unseen labels"):
        model.log_likelihood(X, np.full(90, "z"))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="one class only"):
        classifier().fit(blobs(["a"])[0], np.full(90, "a"))


def test_a_class_of_one_row_is_learned_or_not_but_does_no_harm():
    X, y = blobs(["b", "a"])
    y[0] = "z"
    proba = classifier(max_epochs=2).fit(X, y).predict_proba(X)
    assert proba.shape == (90, 3)
    assert np.isfinite(proba).all()

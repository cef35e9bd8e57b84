"""Estimators inside scikit-learn's tools, in other processes and threads, and out of generators' way."""

import pickle

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor

SMALL = {"hidden_layer_sizes": (6,), "max_epochs": 8, "learning_rate": 0.05, "batch_size": 16}
SMALL["temperature"] = 0.3  # saves choosing it


def regressor(**changes):
    return BayesianRegressor(**(SMALL | {"n_samples": 5, "random_state": 0} | changes))


def table(rows=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(rows, 2))
    return X, 5 * X[:, 0] ** 2 - X[:, 1] + rng.normal(size=rows) * 0.1


def test_pipeline():
    X, y = table()
    model = make_pipeline(PolynomialFeatures(2, include_bias=False), regressor(max_epochs=40))
    assert model.fit(X, y).score(X, y) > 0.5
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (60,)


def test_grid_search_over_names_objects_and_numbers():
    X, y = table()
    grid = {
        "posterior": ["mean-field", kasuri.KTied(rank=1), kasuri.MatrixNormal()],
        "prior": ["he", 0.3],
        "temperature": [np.float64(0.1)],
    }
    search = GridSearchCV(regressor(max_epochs=2), grid, cv=2).fit(X, y)
    assert len(search.cv_results_["params"]) == 6
    assert search.best_params_["posterior"] in grid["posterior"]
    assert search.predict(X).shape == (60,)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_cross_validation_of_probabilities():
    X, y = table()
    model = BayesianClassifier(**SMALL, n_samples=5, random_state=0)
    proba = cross_val_predict(model, X, y > 1, cv=3, method="predict_proba")
    assert proba.shape == (60, 2)
    assert cross_val_score(model, X, y > 1, cv=3, scoring="neg_log_loss").shape == (3,)


def test_other_threads_find_the_same_numbers():
    X, y = table(30)
    models = [regressor(random_state=seed, max_epochs=3) for seed in range(2)]
    here = [clone(model).fit(X, y).predict(X) for model in models]
    with joblib.parallel_config("threading", n_jobs=2):
        fits = joblib.Parallel()(joblib.delayed(model.fit)(X, y) for model in models)
    for ours, theirs in zip(here, fits, strict=True):
        assert np.array_equal(ours, theirs.predict(X))


def test_clone_copies_parameters_and_forgets_the_fit():
    model = regressor(posterior=kasuri.KTied(rank=1), prior=kasuri.Normal(0.5)).fit(*table())
    again = clone(model)
    assert again.posterior == model.posterior
    assert again.prior is not model.prior
    assert {k: str(v) for k, v in again.get_params().items()} == {
        k: str(v) for k, v in model.get_params().items()
    }
    assert not [name for name in vars(again) if name.endswith("_")]


def test_objects_given_as_parameters_are_not_trained():
    X, y = table()
    noise, prior = kasuri.Gaussian(), kasuri.Normal(0.5, learn="gradient")
    model = regressor(likelihood=noise, prior=prior).fit(X, y)
    assert float(noise.scale.detach()) == 1.0
    assert prior.scale == pytest.approx(0.5)
    assert float(model.objective_.likelihood.scale.detach()) < 0.99
    assert model.objective_.priors[0].scale != pytest.approx(0.5, abs=1e-6)


def test_pickle():
    """Which is also how joblib sends estimators to other processes."""
    X, y = table()
    model = regressor(posterior="matrix-normal").fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
    assert again.fit(X, y).score(X, y) == model.score(X, y)


def test_a_seed_decides_everything():
    X, y = table()
    first, second, other = (regressor(random_state=seed).fit(X, y) for seed in (3, 3, 4))
    assert np.array_equal(first.predict_interval(X), second.predict_interval(X))
    assert np.array_equal(first.predict(X), first.predict(X))
    assert np.array_equal(first.sample_y(X, 2), second.sample_y(X, 2))
    assert not np.array_equal(first.sample_y(X, 2), first.sample_y(X, 2, random_state=1))
    assert not np.allclose(first.predict(X), other.predict(X))


def test_without_a_seed_the_global_generator_of_numpy_decides():
    X, y = table()
    found = []
    for seed in (0, 0, 1):
        np.random.seed(seed)
        found.append(regressor(random_state=None).fit(X, y).predict(X))
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])
    generator = np.random.RandomState(5)
    one, two = (regressor(random_state=generator).fit(X, y).seed_ for _ in range(2))
    assert one != two


def test_generators_are_left_alone():
    X, y = table()
    torch.manual_seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    model = regressor().fit(X, y)
    model.predict_interval(X)
    model.sample_y(X)
    model.evaluate(X, y)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_a_default_type_of_float64_does_not_matter():
    X, y = table()
    usual = regressor().fit(X, y).predict(X)
    torch.set_default_dtype(torch.float64)
    try:
        assert np.allclose(regressor().fit(X, y).predict(X), usual, rtol=1e-3, atol=1e-3)
    finally:
        torch.set_default_dtype(torch.float32)


def test_data_frames():
    pd = pytest.importorskip("pandas")
    X, y = table()
    frame = pd.DataFrame(X, columns=["width", "height"])
    frame["colour"] = np.where(X[:, 1] > 0, "red", "blue")
    numbers = frame[["width", "height"]]
    model = regressor().fit(numbers, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["width", "height"]
    assert np.array_equal(model.predict(numbers), regressor().fit(X, y).predict(X))
    assert np.isfinite(model.log_likelihood(numbers, pd.Series(y)))  # no warning about names
    with pytest.raises(ValueError, match="feature names"):
        model.predict(numbers[["height", "width"]])
    columns = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    whole = make_pipeline(columns, regressor()).fit(frame, y)
    assert whole.predict(frame).shape == (60,)
    label = pd.Series(frame["colour"], dtype="category")
    classes = BayesianClassifier(**SMALL, n_samples=5, random_state=0).fit(numbers, label).classes_
    assert classes.tolist() == ["blue", "red"]

"""Tables of few rows, rare classes, and what a failed fit leaves behind."""

import numpy as np
import pytest
import torch

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor
from kasuri.sklearn.splitting import with_every_class

QUICK = {"max_epochs": 3, "n_samples": 5}


def test_every_class_is_trained_on():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 2)), [0] * 19 + [1]
    for seed in range(30):
        model = BayesianClassifier((4,), temperature=0.5, random_state=seed, **QUICK)
        rest, held = model._split(20, torch.tensor(y)).rows
        assert 19 in rest
        assert len(held) == 2
        assert sorted([*rest.tolist(), *held.tolist()]) == list(range(20))
    assert model.fit(X, y).predict_proba(X).shape == (20, 2)


def test_rows_are_exchanged_only_where_a_class_is_missing():
    classes = torch.tensor([0, 0, 0, 1, 1, 2])
    rest, held = torch.tensor([0, 2, 3, 5]), torch.tensor([1, 4])
    assert [one.tolist() for one in with_every_class(rest, held, classes)] == [
        [0, 2, 3, 5],
        [1, 4],
    ]
    rest, held = with_every_class(torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5]), classes)
    assert {classes[i].item() for i in rest} == {0, 1, 2}
    assert len(held) == 2


def test_classes_of_one_row_each_cannot_be_held_out():
    rows, labels = [[0.0], [1.0], [2.0]], ["a", "b", "c"]
    with pytest.raises(ValueError, match="write validation_fraction=0"):
        BayesianClassifier(temperature=0.1, **QUICK).fit(rows, labels)
    assert BayesianClassifier(**QUICK).fit(rows, labels).predict_proba(rows).shape == (3, 3)


def test_the_unit_of_a_target_comes_from_all_rows_if_training_rows_are_alike():
    X, y = np.array([[0.0], [1.0]]), np.array([151.0, 75.0])
    model = BayesianRegressor(random_state=0, **QUICK).fit(X, y)
    assert model.predict(X, return_std=True)[1].min() > 10
    constant = BayesianRegressor(random_state=0, **QUICK).fit(X, np.array([7.0, 7.0]))
    assert constant.targets_.unit.item() == 1.0


@pytest.mark.parametrize("estimator", [BayesianRegressor, BayesianClassifier])
def test_a_failed_fit_leaves_the_last_one(estimator):
    X, y = np.random.default_rng(0).standard_normal((30, 5)), np.arange(30) % 2
    model = estimator((4,), random_state=0, **QUICK).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="zzz"):
        model.set_params(prior="zzz").fit(X[:, :2], y)
    np.testing.assert_array_equal(model.set_params(prior="he").predict(X), before)
    fresh = estimator(prior="zzz")
    with pytest.raises(ValueError, match="zzz"):
        fresh.fit(X, y)
    assert not hasattr(fresh, "n_features_in_")


def test_a_known_noise_is_saved_as_it_was_given(tmp_path):
    assert kasuri.Gaussian(0.3).options() == {"scale": 0.3}
    X = np.random.default_rng(0).standard_normal((30, 2))
    model = BayesianRegressor((4,), likelihood=kasuri.Gaussian(0.3), random_state=0, **QUICK)
    model.fit(X, X[:, 0]).save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert again.log_likelihood(X, X[:, 0]) == model.log_likelihood(X, X[:, 0])


def test_widths_may_be_an_array():
    X = np.random.default_rng(0).standard_normal((20, 2))
    model = BayesianRegressor(np.array([4, 3]), random_state=0, **QUICK).fit(X, X[:, 0])
    assert [layer.out_features for layer in model.model_ if hasattr(layer, "out_features")] == [
        4,
        3,
        1,
    ]


def test_an_interrupted_fit_speaks_of_the_estimator(monkeypatch):
    def stopped(*args, **kwargs):
        raise kasuri.Interrupted("give folder=", "epoch 3, step 5")

    monkeypatch.setattr("kasuri.sklearn.choosing.fit", stopped)
    with pytest.raises(kasuri.Interrupted, match=r"epoch 3, step 5; the estimator is as it was"):
        BayesianRegressor(**QUICK).fit(np.eye(20), np.arange(20))


def test_a_name_is_listed_once():
    with pytest.raises(ValueError, match="there is") as told:
        BayesianRegressor(prior="zzz", **QUICK).fit(np.eye(20), np.arange(20))
    assert str(told.value).count("'group-ard'") == 1
    with pytest.raises(ValueError, match='posterior="radial"'):
        BayesianRegressor(prior="radial", **QUICK).fit(np.eye(20), np.arange(20))


def test_a_column_that_varies_in_the_held_out_rows_alone_is_scaled():
    """Whichever row is held out: a cell of 1000 among zeros must not reach the network as 1000."""
    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(size=(80, 3)), np.zeros(80)]
    y = rows[:, 0] + 0.1 * rng.normal(size=80)
    for place in range(0, 80, 8):
        varied = rows.copy()
        varied[place, 3] = 1000.0
        model = BayesianRegressor(max_epochs=1, random_state=0).fit(varied, y)
        assert model.inputs_.unit[3] > 100


def test_tiny_numbers_have_a_unit():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 2))
    model = BayesianRegressor(max_epochs=2, random_state=0)
    small = model.fit(rows * 1e-170, rows[:, 0] * 1e-162).predict(rows * 1e-170)
    plain = model.fit(rows, rows[:, 0]).predict(rows)
    np.testing.assert_allclose(small * 1e162, plain, rtol=1e-5)


@pytest.mark.parametrize("far", [1e308, -1e308, 1e200])
def test_rows_as_far_away_as_numbers_go_are_predicted(far):
    X = np.random.default_rng(0).normal(size=(30, 2))
    rows = [[far, 0.0], [far, -far]]
    sure = BayesianClassifier((4,), random_state=0, **QUICK).fit(X, (X[:, 0] > 0).astype(int))
    assert np.allclose(sure.predict_proba(rows).sum(1), 1.0)
    real = BayesianRegressor((4,), random_state=0, **QUICK).fit(X, X[:, 0])
    assert np.isfinite(real.predict(rows)).all()
    assert np.isfinite(real.log_likelihood(rows, [0.0, 1.0]))

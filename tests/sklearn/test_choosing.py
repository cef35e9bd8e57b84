"""The temperature: which rows are held out for it, what is tried, and that the better one is taken."""

import os
import signal
import threading

import numpy as np
import pytest
import torch

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor, choosing, estimator

QUICK = {"hidden_layer_sizes": (4,), "max_epochs": 2, "n_samples": 5, "random_state": 0}
X = np.random.default_rng(0).normal(size=(43, 3))
Y = X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=43)


@pytest.mark.parametrize("count", [2, 3, 5, 14, 200])
def test_folds_are_of_equal_size_and_do_not_overlap(count):
    folds = choosing.cross_validation(count, seed=3)
    held = torch.cat([rows.held for rows in folds])
    assert len(held.unique()) == len(held) == count - count % min(5, count)
    for rows in folds:
        assert len(rows.rest) == count - count // len(folds)
        assert torch.cat(list(rows)).sort().values.tolist() == list(range(count))
    other = torch.cat([rows.held for rows in choosing.cross_validation(count, seed=4)])
    assert count < 10 or held.tolist() != other.tolist()


def test_folds_have_every_class_in_proportion():
    classes = torch.tensor([0] * 50 + [1] * 25 + [2] * 5)
    for rows in choosing.cross_validation(80, 0, classes):
        assert classes[rows.held].bincount().tolist() == [10, 5, 1]


def test_rows_that_fit_into_no_fold_are_of_any_class():
    classes = torch.tensor([0] * 10 + [1] * 4)
    held = [
        classes[torch.cat([rows.held for rows in choosing.cross_validation(14, seed, classes)])]
        for seed in range(40)
    ]
    assert {len(labels) for labels in held} == {10}
    assert 2.4 < np.mean([int(labels.sum()) for labels in held]) < 3.3  # 4 · 10 / 14


def test_every_class_is_trained_on_and_as_many_rows_held_out_as_asked_for():
    classes = torch.tensor([0] * 18 + [1, 2])
    seen = set()
    for seed in range(30):
        rest, held = choosing.held_out(20, seed, 0.1, classes)
        assert {18, 19} <= set(rest.tolist())
        assert len(held) == 2
        assert sorted([*rest.tolist(), *held.tolist()]) == list(range(20))
        seen |= set(held.tolist())
    assert len(seen) > 10
    assert len(choosing.held_out(20, 0, 0.1).held) == 2
    with pytest.raises(ValueError, match="validation_fraction=0"):
        choosing.held_out(3, 0, 0.1, torch.arange(3))
    rows, labels = [[0.0], [1.0], [2.0]], ["a", "b", "c"]
    assert BayesianClassifier(**QUICK).fit(rows, labels).predict_proba(rows).shape == (3, 3)


@pytest.mark.parametrize(
    ("count", "share", "is_chosen", "has_patience", "held", "folds"),
    [
        (100, 0.1, True, False, 0, 5),
        (100, 0.1, True, True, 10, 5),
        (100, 0.1, False, False, 10, 0),
        (100, 0.0, False, False, 0, 0),
        (5000, 0.1, True, False, 500, 1),
        (5000, 0.0, True, False, 0, 5),
        (5000, 0.1, False, True, 500, 0),
    ],
)
def test_what_rows_are_for(count, share, is_chosen, has_patience, held, folds):
    rows, parts = choosing.split(count, 0, share, is_chosen, has_patience)
    assert (len(rows.held), len(rows.rest), len(parts)) == (held, count - held, folds)
    if folds == 1:
        assert parts[0] is rows


def test_all_rows_are_trained_on_in_the_end(tmp_path):
    model = BayesianRegressor(**QUICK).fit(X, Y)
    assert model.objective_.num_data == 43
    assert "valid_nll" not in model.history_[-1]
    assert tuple(model.temperatures_) == choosing.REAL
    assert model.temperature_ == min(model.temperatures_, key=model.temperatures_.get)
    assert model.n_iter_ == model.best_epoch_ == len(model.history_) == 2
    model.save(tmp_path / "model")
    assert BayesianRegressor.load(tmp_path / "model").temperatures_ == model.temperatures_
    given = BayesianRegressor(temperature=0.3, **QUICK).fit(X, Y)
    assert given.temperatures_ == {}
    assert given.objective_.num_data == 39


def test_patience_holds_rows_out_for_the_last_fit():
    model = BayesianRegressor(**(QUICK | {"max_epochs": 60, "learning_rate": 2.0}), patience=1)
    model.fit(X, Y)
    assert model.n_iter_ < 60
    assert model.objective_.num_data == 39
    assert model.temperatures_


def test_of_many_rows_the_best_trial_is_kept(monkeypatch):
    monkeypatch.setattr(choosing, "MANY", 40)
    trained = []
    whole = choosing.fit_many

    def noted(*args, **options):
        trained.extend(whole(*args, **options))
        return trained

    monkeypatch.setattr(choosing, "fit_many", noted)
    monkeypatch.setattr(estimator, "fit", None)  # there is no second fit
    model = BayesianRegressor(**QUICK).fit(X, Y)
    assert len(trained) == len(choosing.REAL)
    kept = trained[choosing.REAL.index(model.temperature_)]
    assert model.objective_ is kept.objective
    assert "valid_nll" in model.history_[-1]


def test_noise_wants_all_of_the_kl_and_a_clean_curve_less():
    """Ten columns of noise and targets of noise: a low temperature believes in it."""
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(60, 10)), rng.normal(size=60)
    changes = {"hidden_layer_sizes": (20,), "max_epochs": 60, "batch_size": 48}
    changes["learning_rate"] = 0.05
    model = BayesianRegressor(**(QUICK | changes)).fit(rows, noise)
    assert model.temperature_ > 0.3
    assert model.temperatures_[0.1] > model.temperatures_[1.0] + 0.5
    t = rng.uniform(-2, 2, size=(60, 1))
    clean = BayesianRegressor(**(QUICK | changes)).fit(t, np.sin(2 * t[:, 0]))
    assert clean.temperature_ < 0.5


class Own(kasuri.Normal):
    """A prior that looks at its values, which a stack has not."""

    def kl(self, *posteriors):
        divergence = super().kl(*posteriors)
        assert float(divergence.detach()) > -1.0
        return divergence


def test_what_cannot_be_stacked_is_refused_with_a_way_out():
    with pytest.raises(RuntimeError) as caught:
        BayesianRegressor(prior=Own(), **QUICK).fit(X, Y)
    assert "temperature=0.3" in caught.value.__notes__[0]
    assert BayesianRegressor(prior=Own(), temperature=0.3, **QUICK).fit(X, Y).temperature_ == 0.3


@pytest.mark.parametrize(
    "changes",
    [
        {"posterior": "mean-field", "prior": "normal", "likelihood": "gamma"},
        {"posterior": "matrix-normal", "prior": "ard", "likelihood": "heteroscedastic"},
        {"posterior": "matrix-normal-diagonal", "prior": 0.5},
        {"posterior": "scaled-matrix-normal"},
        {"posterior": "full-normal", "prior": "group-ard"},
        {"posterior": "radial", "prior": "radial"},
        {"posterior": "point"},
    ],
    ids=str,
)
def test_all_that_has_a_name_is_stacked(changes):
    model = BayesianRegressor(**QUICK | {"max_epochs": 1} | changes).fit(X, Y)
    assert np.isfinite(list(model.temperatures_.values())).all()


def test_an_error_is_that_of_one_fit():
    with pytest.raises(kasuri.training.NonFiniteLoss, match=r"layer|step"):
        BayesianRegressor(learning_rate=1e30, **QUICK).fit(X, Y)


@pytest.mark.parametrize("temperature", ["auto", 0.3])
def test_an_interruption_ends_a_fit(temperature):
    """As by Ctrl-C, a moment after it has begun."""
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    model = BayesianRegressor(**(QUICK | {"max_epochs": 100_000}), temperature=temperature)
    timer.start()
    with pytest.raises(kasuri.training.Interrupted, match=r"epoch \d+"):
        model.fit(X, Y)
    assert not hasattr(model, "model_")


def test_scores_that_are_no_numbers_are_not_the_best(monkeypatch):
    scores = iter([np.nan, 3.0, 2.0, np.inf] * 5)
    monkeypatch.setattr(choosing, "examine", lambda *a: (None, {"nll": next(scores)}))
    assert BayesianRegressor(**QUICK).fit(X, Y).temperature_ == 0.3
    monkeypatch.setattr(choosing, "examine", lambda *a: (None, {"nll": np.nan}))
    assert BayesianRegressor(**QUICK).fit(X, Y).temperature_ == 1.0


def test_classes_have_temperatures_of_their_own():
    model = BayesianClassifier(**QUICK).fit(X, (Y > 0).astype(int))
    assert tuple(model.temperatures_) == choosing.CLASSES
    assert model.temperature_ in choosing.CLASSES

"""The temperature: which rows are held out for it, what is tried, and that the better one is taken."""

import os
import signal
import threading

import numpy as np
import pytest
import torch

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor, choosing, names, splitting

QUICK = {"hidden_layer_sizes": (4,), "max_epochs": 2, "n_samples": 5, "random_state": 0}
X = np.random.default_rng(0).normal(size=(43, 3))
Y = X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=43)


@pytest.fixture
def fits(monkeypatch):
    """Arguments of all fits of single networks."""
    found, whole = [], choosing.fit

    def counted(*args, **options):
        found.append(options)
        return whole(*args, **options)

    monkeypatch.setattr(choosing, "fit", counted)
    return found


@pytest.mark.parametrize("count", [2, 3, 5, 14, 200])
def test_folds_are_of_equal_size_and_do_not_overlap(count):
    folds = splitting.cross_validation(count, seed=3)
    held = torch.cat([rows.held for rows in folds])
    assert len(held.unique()) == len(held) == count - count % min(5, count)
    for rows in folds:
        assert len(rows.rest) == count - count // len(folds)
        assert torch.cat(list(rows)).sort().values.tolist() == list(range(count))
    other = torch.cat([rows.held for rows in splitting.cross_validation(count, seed=4)])
    assert count < 10 or held.tolist() != other.tolist()


def test_folds_have_every_class_in_proportion():
    classes = torch.tensor([0] * 50 + [1] * 25 + [2] * 5)
    for rows in splitting.cross_validation(80, 0, classes):
        assert classes[rows.held].bincount().tolist() == [10, 5, 1]


def test_rows_that_fit_into_no_fold_are_of_any_class():
    classes = torch.tensor([0] * 10 + [1] * 4)
    held = [
        classes[torch.cat([rows.held for rows in splitting.cross_validation(14, seed, classes)])]
        for seed in range(40)
    ]
    rare = [int(one.sum()) for one in held]
    assert {len(one) for one in held} == {10}
    assert 2.4 < np.mean(rare) < 3.3  # 4 · 10 / 14


@pytest.mark.parametrize(
    ("count", "share", "is_chosen", "has_patience", "held", "folds"),
    [
        (100, 0.1, True, False, None, 5),
        (100, 0.1, True, True, 10, 5),
        (100, 0.1, False, False, 10, 0),
        (100, 0.0, False, False, None, 0),
        (5000, 0.1, True, False, 500, 1),
        (5000, 0.0, True, False, None, 5),
        (5000, 0.1, False, True, 500, 0),
    ],
)
def test_what_rows_are_for(count, share, is_chosen, has_patience, held, folds):
    found = splitting.split(count, 0, share, is_chosen, has_patience)
    assert (None if found.rows.held is None else len(found.rows.held)) == held
    assert len(found.folds) == folds
    assert len(found.rows.rest) == count - (held or 0)
    if folds == 1:
        assert found.folds[0] is found.rows


def test_all_rows_are_trained_on_in_the_end():
    model = BayesianRegressor(**QUICK).fit(X, Y)
    assert model.objective_.num_data == 43
    assert "valid_nll" not in model.history_[-1]
    assert tuple(model.temperatures_) == choosing.REAL
    assert model.temperature_ == min(model.temperatures_, key=model.temperatures_.get)
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
    monkeypatch.setattr(splitting, "MANY", 40)
    trained = []
    whole = choosing.fit_many

    def noted(*args, **options):
        trained.extend(whole(*args, **options))
        return trained

    monkeypatch.setattr(choosing, "fit_many", noted)
    monkeypatch.setattr(choosing, "fit", None)  # there is no second fit
    model = BayesianRegressor(**QUICK).fit(X, Y)
    assert len(trained) == len(choosing.REAL)
    kept = trained[choosing.REAL.index(model.temperature_)]
    assert model.objective_ is kept.objective
    assert "valid_nll" in model.history_[-1]


def test_noise_wants_all_of_the_kl_and_a_clean_curve_less():
    """Ten columns of noise and targets of noise: a low temperature believes in it."""
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(60, 10)), rng.normal(size=60)
    changes = {"hidden_layer_sizes": (50,), "max_epochs": 400, "batch_size": 48}
    model = BayesianRegressor(**(QUICK | changes)).fit(rows, noise)
    assert model.temperature_ > 0.3
    assert model.temperatures_[0.1] > model.temperatures_[1.0] + 0.5
    t = rng.uniform(-2, 2, size=(60, 1))
    clean = BayesianRegressor(**(QUICK | changes)).fit(t, np.sin(2 * t[:, 0]))
    assert clean.temperature_ < 0.5


def test_what_cannot_be_stacked_is_trained_one_by_one(fits):
    class Own(kasuri.Normal):
        """A prior that looks at its values, which a stack has not."""

        def kl(self, *posteriors):
            found = super().kl(*posteriors)
            assert float(found.detach()) > -1.0
            return found

    with pytest.warns(UserWarning, match="one after the other"):
        model = BayesianRegressor(prior=Own(), **QUICK).fit(X, Y)
    assert [one["temperature"] for one in fits] == [*choosing.REAL * 5, model.temperature_]
    for part in ("likelihood", "prior"):  # every network learns its own
        assert len({id(one[part]) for one in fits}) == len(fits)
    with pytest.warns(UserWarning, match="one after the other"):
        patient = BayesianRegressor(prior=Own(), patience=1, **QUICK).fit(X, Y)
    assert patient.objective_.num_data == 39


@pytest.mark.parametrize("posterior", names.FAMILIES)
@pytest.mark.parametrize("likelihood", names.LIKELIHOODS)
def test_all_that_has_a_name_is_stacked(posterior, likelihood, fits):
    settings = QUICK | {"posterior": posterior, "likelihood": likelihood, "max_epochs": 1}
    BayesianRegressor(**settings).fit(X, Y)
    assert len(fits) == 1


@pytest.mark.parametrize("prior", ["he", "normal", "ard", "group-ard", "radial", 0.5])
def test_every_prior_is_stacked(prior, fits):
    settings = QUICK | {"posterior": "radial" if prior == "radial" else "k-tied"}
    BayesianClassifier(**settings, prior=prior).fit(X, (Y > 0).astype(int))
    assert len(fits) == 1


def test_an_error_is_that_of_one_fit():
    with pytest.raises(kasuri.NonFiniteLoss, match=r"layer|step"):
        BayesianRegressor(learning_rate=1e30, **QUICK).fit(X, Y)
    with pytest.raises(kasuri.NonFiniteLoss, match=r"layer|step"):
        BayesianRegressor(learning_rate=1e30, patience=2, **QUICK).fit(X, Y)


def test_a_temperature_that_diverges_is_not_chosen(monkeypatch):
    def broken(*args, **options):
        raise kasuri.NonFiniteLoss("network 3")

    whole = choosing.fit

    def fit(*args, **options):
        if options["temperature"] == 0.1:
            raise kasuri.NonFiniteLoss("layer '0'")
        return whole(*args, **options)

    monkeypatch.setattr(choosing, "fit_many", broken)
    monkeypatch.setattr(choosing, "fit", fit)
    with pytest.warns(UserWarning, match="network 3"):
        model = BayesianRegressor(**QUICK).fit(X, Y)
    assert model.temperatures_[0.1] == np.inf
    assert model.temperature_ in (1.0, 0.55, 0.3)


def test_a_lack_of_memory_is_told(monkeypatch):
    def broken(*args, **options):
        raise MemoryError

    monkeypatch.setattr(choosing, "fit_many", broken)
    with pytest.raises(MemoryError):
        BayesianRegressor(**QUICK).fit(X, Y)


def test_an_interruption_of_the_trials_speaks_of_the_estimator():
    """As by Ctrl-C, half a second after it has begun."""
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    model = BayesianRegressor(**(QUICK | {"max_epochs": 100_000}))
    timer.start()
    with pytest.raises(kasuri.Interrupted, match=r"epoch \d+.*the estimator is as it was"):
        model.fit(X, Y)
    assert not hasattr(model, "model_")


def test_scores_that_are_no_numbers_are_not_the_best(monkeypatch):
    found = iter([np.nan, 3.0, 2.0, np.inf] * 5)
    monkeypatch.setattr(choosing, "validate", lambda *a: {"nll": next(found)})
    assert BayesianRegressor(**QUICK).fit(X, Y).temperature_ == 0.3
    monkeypatch.setattr(choosing, "validate", lambda *a: {"nll": np.nan})
    assert BayesianRegressor(**QUICK).fit(X, Y).temperature_ == 1.0


def test_temperatures_are_saved(tmp_path):
    model = BayesianRegressor(**QUICK).fit(X, Y)
    model.save(tmp_path / "model")
    assert BayesianRegressor.load(tmp_path / "model").temperatures_ == model.temperatures_


def test_classes_have_temperatures_of_their_own():
    model = BayesianClassifier(**QUICK).fit(X, (Y > 0).astype(int))
    assert tuple(model.temperatures_) == choosing.CLASSES
    assert model.temperature_ in choosing.CLASSES


def test_files_without_temperatures_are_read(tmp_path):
    model = BayesianRegressor(**QUICK).fit(X, Y)
    del model.temperatures_
    model.save(tmp_path / "model")
    assert BayesianRegressor.load(tmp_path / "model").temperatures_ == {}

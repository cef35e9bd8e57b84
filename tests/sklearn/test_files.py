"""Files of estimators: whole or not at all, without code, and equal after loading."""

import json
import zipfile

import numpy as np
import pytest
import torch

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor

SMALL = {"hidden_layer_sizes": [4, 3], "max_epochs": 2, "n_samples": 6, "random_state": 0}
SMALL["temperature"] = 0.3
X = np.random.default_rng(0).normal(size=(40, 2)) * 30 + 5
Y = X[:, 0] * 2 + 1


def regressor(**changes):
    return BayesianRegressor(**(SMALL | changes)).fit(X, Y)


CHANGES = [
    {},
    {"posterior": kasuri.MatrixNormal(), "prior": kasuri.GroupARD(), "activation": "tanh"},
    {"posterior": "point", "prior": kasuri.Normal(0.3, learn="gradient")},
    {"likelihood": kasuri.Gaussian(0.2), "temperature": np.float64(0.1), "batch_size": np.int64(8)},
    {"likelihood": kasuri.GammaGaussian((3.0, 2.0), learn="closed form")},
    {"likelihood": "heteroscedastic", "posterior": "mean-field"},
    {
        "posterior": kasuri.Radial(),
        "prior": kasuri.RadialPrior(mean="uniform"),
        "hidden_layer_sizes": [4],
    },
    {"validation_fraction": 0, "temperature": 1, "prior": 0.5, "random_state": None},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_loaded_regressor_is_the_saved_one(changes, tmp_path):
    model = regressor(**changes)
    model.save(tmp_path / "model.kasuri")
    again = BayesianRegressor.load(tmp_path / "model.kasuri")
    # numbers given to a prior or likelihood pass through float32 there
    assert np.allclose(again.predict_interval(X), model.predict_interval(X), rtol=1e-6)
    assert np.allclose(again.sample_y(X, 3), model.sample_y(X, 3), rtol=1e-6)
    assert again.evaluate(X, Y) == pytest.approx(model.evaluate(X, Y), rel=1e-6)  # KL among it
    assert again.history_ == model.history_
    for name in ("n_iter_", "best_epoch_", "temperature_", "n_features_in_", "n_outputs_", "seed_"):
        assert getattr(again, name) == getattr(model, name)
    told = {name: str(value) for name, value in again.get_params().items()}
    expected = {name: str(value) for name, value in model.get_params().items()}
    assert told == expected | {"hidden_layer_sizes": str(tuple(model.hidden_layer_sizes))}


def test_what_was_fitted_is_saved_whatever_is_set_afterwards(tmp_path):
    model = regressor(activation="tanh")
    expected = model.predict(X)
    model.set_params(hidden_layer_sizes=(9,), activation="relu").save(tmp_path / "model.kasuri")
    again = BayesianRegressor.load(tmp_path / "model.kasuri")
    assert again.hidden_layer_sizes == (9,)
    assert np.allclose(again.predict(X), expected, rtol=1e-6)
    again.save(tmp_path / "again.kasuri")
    assert np.allclose(BayesianRegressor.load(tmp_path / "again.kasuri").predict(X), expected)


def test_several_targets_are_equal_bit_for_bit(tmp_path):
    y = np.stack([Y, -1000 * Y], 1)
    model = BayesianRegressor(**SMALL, posterior=kasuri.MatrixNormal()).fit(X, y)
    model.save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict_interval(X), model.predict_interval(X))
    assert again.evaluate(X, y) == model.evaluate(X, y)
    assert torch.equal(again.objective_.kl(), model.objective_.kl())
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        model.save(tmp_path / "missing" / "model.kasuri")


@pytest.mark.parametrize(
    "labels",
    [["no", "yes"], [1, 7], [False, True], np.array(["no", "yes"], object)],
    ids=str,
)
def test_a_loaded_classifier_has_the_same_labels(labels, tmp_path):
    y = np.array(labels)[(Y > 1).astype(int)]
    model = BayesianClassifier(**SMALL).fit(X, y)
    model.save(tmp_path / "model")
    again = BayesianClassifier.load(tmp_path / "model")
    assert again.classes_.dtype == model.classes_.dtype
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_names_of_columns_are_kept(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = BayesianRegressor(**SMALL).fit(frame, Y)
    model.save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict(frame), model.predict(frame))
    with pytest.warns(UserWarning, match="feature names"):
        again.predict(X)


def test_a_loaded_estimator_fits_again(tmp_path):
    regressor().save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert np.array_equal(again.fit(X, Y).predict(X), regressor().predict(X))


def test_the_file_holds_tensors_and_text_only(tmp_path):
    regressor().save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model") as archive:
        assert archive.namelist() == ["estimator.json", "network.safetensors"]
        assert json.loads(archive.read("estimator.json"))["estimator"] == "BayesianRegressor"


def test_refusals_of_loading(tmp_path):
    path = tmp_path / "model"
    regressor().save(path)
    with pytest.raises(
        kasuri.FileError, match=r"holds a BayesianRegressor.*BayesianRegressor.load"
    ):
        BayesianClassifier.load(path)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        BayesianRegressor.load(tmp_path / "nowhere")
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense", whole[:-40], whole[:5000] + b"x" + whole[5001:]):
        path.write_bytes(damaged)
        with pytest.raises(kasuri.FileError, match="damaged"):
            BayesianRegressor.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("estimator.json", "{}")
    with pytest.raises(kasuri.FileError, match="damaged"):
        BayesianRegressor.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told.update(format=2), "format 2"),
        (lambda told: told["params"].update(prior={"class": "P", "options": {}}), "needs 'P'"),
        (lambda told: told.pop("params"), "damaged"),
    ],
)
def test_files_of_other_versions(change, words, tmp_path):
    regressor().save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model") as archive:
        told, weights = map(archive.read, ("estimator.json", "network.safetensors"))
    told = json.loads(told)
    change(told)
    with zipfile.ZipFile(tmp_path / "model", "w") as archive:
        archive.writestr("estimator.json", json.dumps(told))
        archive.writestr("network.safetensors", weights)
    with pytest.raises(kasuri.FileError, match=words):
        BayesianRegressor.load(tmp_path / "model")


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"old")
    model = regressor(random_state=np.random.RandomState(0))
    with pytest.raises(ValueError, match="random_state"):
        model.save(path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["model"]

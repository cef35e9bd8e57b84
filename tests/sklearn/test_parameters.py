"""Parameters: names and objects, what they do to the fit, and what is refused."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import nn

import kasuri
from kasuri.posteriors.base import Family
from kasuri.sklearn import BayesianRegressor, settings

SMALL = {"hidden_layer_sizes": (4,), "max_epochs": 2, "n_samples": 3, "random_state": 0}
GIVEN = {"temperature": 0.5}  # which saves choosing it
X = np.random.default_rng(0).normal(size=(40, 2))
Y = X[:, 0] * 2 + 1


def regressor(**changes):
    return BayesianRegressor(**(SMALL | GIVEN | changes))


@dataclass(frozen=True)
class RankOne(kasuri.MeanField):
    """A family that is defined here and nowhere else."""


@pytest.mark.parametrize(
    ("name", "base", "kind"),
    [
        ("k-tied", Family, kasuri.KTied),
        ("mean-field", Family, kasuri.MeanField),
        ("matrix-normal", Family, kasuri.MatrixNormal),
        ("matrix-normal-diagonal", Family, kasuri.MatrixNormalDiagonal),
        ("scaled-matrix-normal", Family, kasuri.ScaledMatrixNormal),
        ("full-normal", Family, kasuri.FullNormal),
        ("radial", Family, kasuri.Radial),
        ("point", Family, kasuri.Point),
        ("deterministic", Family, kasuri.Point),  # as version 0.2 had it
        ("rank one", Family, RankOne),
        ("he", kasuri.Prior, kasuri.HeNormal),
        ("normal", kasuri.Prior, kasuri.Normal),
        ("ard", kasuri.Prior, kasuri.ARD),
        ("group-ard", kasuri.Prior, kasuri.GroupARD),
        ("radial", kasuri.Prior, kasuri.RadialPrior),
        ("gaussian", kasuri.Likelihood, kasuri.Gaussian),
        ("gamma", kasuri.Likelihood, kasuri.GammaGaussian),
        ("heteroscedastic", kasuri.Likelihood, kasuri.HeteroscedasticGaussian),
    ],
)
def test_names(name, base, kind):
    assert settings.named("parameter", name, base) is kind


def test_a_name_that_two_classes_begin_with_is_refused():
    with pytest.raises(ValueError, match="matrix-normal"):
        settings.named("posterior", "matrix", Family)


def test_a_family_of_the_users_own_is_known_by_its_name():
    model = regressor(posterior="rank one").fit(X, Y)
    assert np.isfinite(model.predict_interval(X)).all()


@pytest.mark.parametrize(
    ("prior", "kind"),
    [
        ("group-ard", kasuri.GroupARD),
        (np.float32(0.25), kasuri.Normal),
        (kasuri.Normal(0.25), kasuri.Normal),
    ],
    ids=str,
)
def test_priors(prior, kind):
    (governing,) = regressor(prior=prior).fit(X, Y).objective_.priors
    assert type(governing) is kind
    if not isinstance(prior, str):
        assert governing.scale == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("hidden", "shapes"),
    [
        (5, [(5, 2), (1, 5)]),
        ([5, 3], [(5, 2), (3, 5), (1, 3)]),
        (np.array([4, 3]), [(4, 2), (3, 4), (1, 3)]),
        ((), [(1, 2)]),
    ],
)
def test_hidden_layers(hidden, shapes):
    net = regressor(hidden_layer_sizes=hidden, max_epochs=1).fit(X, Y).model_
    assert [tuple(q.shape) for _, q in kasuri.named_posteriors(net)][::2] == shapes


def test_the_start_is_the_one_the_defaults_were_measured_with():
    """He's: variance 2 / fan-in; thresholds of the first layer all over the data, the others at 0."""
    net = settings.network(400, (300, 5), 1, "tanh")
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert float(net[0].weight.detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    biases = net[0].bias.detach()
    assert float(biases.std()) == pytest.approx(2 / 3**0.5, rel=0.1)
    assert biases.abs().max() <= 2
    assert not net[2].bias.any()
    assert not settings.network(4, (), 1, "relu")[0].bias.any()


def test_scaling_is_by_the_rows_trained_on():
    rows, targets = np.concatenate([X, [[1e4, 0.0]]]), np.append(Y, 1e4)
    model = regressor().fit(rows, targets)
    rest = model._split(41)[0].rest
    assert len(rest) < 41
    assert np.allclose(model.inputs_.zero, rows[rest].mean(0))
    assert np.allclose(model.inputs_.unit, rows[rest].std(0))
    assert np.allclose(model.targets_.zero, targets[rest].mean())
    assert np.allclose(model.targets_.unit, targets[rest].std())


def test_a_column_that_varies_in_the_held_out_rows_alone_is_scaled():
    """Whichever row is held out: a cell of 1000 among zeros must not reach the network as 1000."""
    model = regressor(max_epochs=1, validation_fraction=0.5)
    held = model._split(40)[0].held
    rows = np.c_[X, np.zeros(40)]
    rows[held[0], 2] = 1000.0
    assert model.fit(rows, Y).inputs_.unit[2] > 100


def test_the_unit_of_a_target_comes_from_all_rows_if_training_rows_are_alike():
    rows, targets = np.array([[0.0], [1.0]]), np.array([151.0, 75.0])
    model = BayesianRegressor(**SMALL | {"max_epochs": 3}).fit(rows, targets)
    assert model.predict(rows, return_std=True)[1].min() > 10
    constant = BayesianRegressor(**SMALL).fit(rows, np.array([7.0, 7.0]))
    assert constant.targets_.unit.item() == 1.0


def test_settings_reach_the_training():
    model = regressor(temperature=0.07, learning_rate=0.5, batch_size=9, max_epochs=3).fit(X, Y)
    assert model.temperature_ == 0.07
    assert model.history_[0]["step"] == 36 // 9
    assert model.n_iter_ == 3
    assert model.history_[0]["learning_rate"] == pytest.approx(0.5, rel=0.5)
    stopped = regressor(max_epochs=60, patience=1, learning_rate=5.0).fit(X, Y)
    assert stopped.n_iter_ < 60
    balanced = regressor(temperature=kasuri.Balanced(0.1)).fit(X, Y)
    assert balanced.temperature_ == pytest.approx(0.1 * 36 / (2 * 4 + 4 + 4 + 1))


def test_rate_and_batch_if_nothing_is_said():
    usual = settings.of_fit(BayesianRegressor(), 9_999)
    assert (usual["batch_size"], usual["epochs"]) == (64, None)
    assert usual["optimiser"].keywords == {"rate": 0.01}
    assert settings.of_fit(BayesianRegressor(), 10_000)["batch_size"] == 256
    assert settings.of_fit(BayesianRegressor(batch_size=7), 20)["batch_size"] == 7


@pytest.mark.parametrize("name", ["gaussian", "gamma", "heteroscedastic"])
def test_every_likelihood_by_name(name):
    y = np.stack([Y, 100 * X[:, 1]], 1)
    model = regressor(likelihood=name).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X, 0.5)
    assert mean.shape == std.shape == (40, 2)
    assert ((low < mean) & (mean < high)).all()
    assert model.sample_y(X, 3).shape == (40, 2, 3)
    assert np.isfinite(model.log_likelihood(X, y))


def test_noise_that_depends_on_the_row():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, size=(400, 1))
    y = rng.normal(size=400) * (1.6 + 1.4 * x[:, 0])  # standard deviation 0.2 to 3
    changes = {"hidden_layer_sizes": (10,), "max_epochs": 20, "learning_rate": 0.05}
    changes |= {"batch_size": 40, "n_samples": 30}
    ours = regressor(likelihood="heteroscedastic", **changes).fit(x, y)
    quiet, loud = ours.predict([[-0.8], [0.8]], return_std=True)[1]
    assert quiet == pytest.approx(0.48, rel=0.5)
    assert loud == pytest.approx(2.72, rel=0.6)
    usual = regressor(**changes).fit(x, y)
    assert ours.log_likelihood(x, y) > usual.log_likelihood(x, y) + 0.15


def test_noise_that_is_given():
    """In closed form `kasuri.fit` calls the update: the concentration ends near 6 + 36/2 targets."""
    noise = kasuri.GammaGaussian(learn="closed form")
    model = regressor(likelihood=noise, max_epochs=10).fit(X, Y)
    assert 20 < float(model.objective_.likelihood.concentration) <= 24.001
    fixed = regressor(likelihood=kasuri.Gaussian(0.1)).fit(X, Y)
    assert float(fixed.objective_.likelihood.scale) == pytest.approx(0.1)
    assert fixed.predict(X, return_std=True)[1].min() > 0.09 * Y.std()


def test_verbose_shows_a_bar(capfd):
    regressor(verbose=True).fit(X, Y)
    assert "BayesianRegressor" in capfd.readouterr().err


REFUSED = [
    ({"posterior": "ktied"}, ValueError, "posterior='ktied'.*did you mean 'k-tied'"),
    ({"posterior": 3}, TypeError, "posterior"),
    ({"prior": "arf"}, ValueError, "prior='arf'.*did you mean 'ard'"),
    ({"prior": -1.0}, ValueError, "prior"),
    ({"prior": "radial"}, ValueError, 'posterior="radial"'),
    ({"likelihood": "gausian"}, ValueError, "did you mean 'gaussian'"),
    ({"likelihood": "categorical"}, TypeError, "BayesianClassifier"),
    ({"likelihood": kasuri.Categorical()}, TypeError, "BayesianClassifier"),
    ({"activation": "rely"}, ValueError, "activation.*relu"),
    ({"hidden_layer_sizes": (5, 0)}, ValueError, "hidden_layer_sizes"),
    ({"hidden_layer_sizes": "50"}, ValueError, "hidden_layer_sizes"),
    ({"temperature": "hot"}, ValueError, "temperature.*hot"),
    ({"temperature": -0.1}, ValueError, "temperature.*-0.1"),
    ({"temperature": float("nan")}, ValueError, "temperature.*nan"),
    ({"learning_rate": 0}, ValueError, "learning_rate.*0"),
    ({"batch_size": 2.5}, ValueError, "batch_size.*auto.*2.5"),
    ({"max_epochs": 0}, ValueError, "max_epochs.*auto.*0"),
    ({"patience": "auto"}, ValueError, "patience.*None"),
    ({"validation_fraction": 1.0}, ValueError, "validation_fraction.*1.0"),
    ({"validation_fraction": 0.99}, ValueError, "none is left to train on"),
    ({"validation_fraction": 0, "patience": 3}, ValueError, "patience.*validation_fraction"),
    ({"n_samples": 0}, ValueError, "n_samples.*0"),
]


@pytest.mark.parametrize(("changes", "error", "words"), REFUSED, ids=lambda one: str(one)[:40])
def test_refusals(changes, error, words):
    """At fit, as scikit-learn wants it; the constructor takes anything."""
    model = regressor(**changes)
    with pytest.raises(error, match=words):
        model.fit(X, Y)


def test_refusals_of_predictions():
    model = regressor().fit(X, Y)
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.predict_interval(X, 90)
    with pytest.raises(ValueError, match="samples"):
        model.sample_y(X, 0)
    with pytest.raises(TypeError, match="sample_weight"):  # the objective counts every row once
        regressor().fit(X, Y, sample_weight=np.ones(40))


@pytest.mark.parametrize("method", ["predict", "predict_interval", "sample_y", "export", "save"])
def test_methods_say_that_fit_comes_first(method):
    with pytest.raises(NotFittedError):
        getattr(BayesianRegressor(), method)(np.zeros((2, 3)))


def test_a_network_of_the_estimator_is_an_ordinary_one():
    model = regressor().fit(X, Y)
    assert [type(layer) for layer in kasuri.collapse(model.model_)] == [
        nn.Linear,
        nn.ReLU,
        nn.Linear,
    ]
    assert next(model.model_.parameters()).dtype == torch.float64

"""Parameters: names and objects, what they do to the fit, and what is refused in which words."""

import numpy as np
import pytest

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor, names, settings

SMALL = {"hidden_layer_sizes": (4,), "max_epochs": 2, "n_samples": 3, "random_state": 0}
X = np.random.default_rng(0).normal(size=(40, 2))
Y = X[:, 0] * 2 + 1


def regressor(**changes):
    return BayesianRegressor(**(SMALL | changes))


@pytest.mark.parametrize("name", names.FAMILIES)
def test_every_family_by_name(name):
    model = regressor(posterior=name).fit(X, Y)
    posteriors = dict(kasuri.named_posteriors(model.model_))
    built = names.FAMILIES[name]()(posteriors["0.weight"].mean.detach())
    assert type(posteriors["0.weight"]) is type(built)
    assert np.isfinite(model.predict_interval(X)).all()


@pytest.mark.parametrize(
    ("prior", "kind"),
    [
        ("he", kasuri.HeNormal),
        ("normal", kasuri.Normal),
        ("ard", kasuri.ARD),
        ("group-ard", kasuri.GroupARD),
        (0.25, kasuri.Normal),
        (np.float32(0.25), kasuri.Normal),
        (kasuri.Normal(0.25), kasuri.Normal),
    ],
    ids=str,
)
def test_priors(prior, kind):
    (found,) = regressor(prior=prior).fit(X, Y).objective_.priors
    assert type(found) is kind
    if not isinstance(prior, str):
        assert found.scale == pytest.approx(0.25)


@pytest.mark.parametrize("name", names.ACTIVATIONS)
def test_activations(name):
    model = regressor(activation=name, hidden_layer_sizes=(4, 3)).fit(X, Y)
    plain = kasuri.collapse(model.model_)
    assert [type(layer) is names.ACTIVATIONS[name] for layer in plain][1::2] == [True, True]


@pytest.mark.parametrize(
    ("hidden", "shapes"),
    [(5, [(5, 2), (1, 5)]), ([5, 3], [(5, 2), (3, 5), (1, 3)]), ((), [(1, 2)])],
)
def test_hidden_layers(hidden, shapes):
    model = regressor(hidden_layer_sizes=hidden).fit(X, Y)
    posteriors = [tuple(q.shape) for _, q in kasuri.named_posteriors(model.model_)]
    assert posteriors[::2] == shapes


def test_the_start_is_the_one_the_defaults_were_measured_with():
    """He's: variance 2 / fan-in; thresholds of the first layer all over the data, the others at 0."""
    net = settings.network(400, (300, 5), 1, "relu")
    assert float(net[0].weight.detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    biases = net[0].bias.detach()
    assert float(biases.std()) == pytest.approx(2 / 3**0.5, rel=0.1)
    assert biases.abs().max() <= 2
    assert not net[2].bias.any()
    assert not settings.network(4, (), 1, "relu")[0].bias.any()


def test_held_out_rows():
    share = regressor(validation_fraction=0.25, temperature=0.5).fit(X, Y)
    assert share.objective_.num_data == 30
    assert "valid_nll" in share.history_[-1]
    everything = regressor(validation_fraction=0, temperature=0.5).fit(X, Y)
    assert everything.objective_.num_data == 40
    assert "valid_nll" not in everything.history_[-1]
    assert everything.best_epoch_ == everything.n_iter_ == 2


def test_scaling_is_by_the_rows_trained_on():
    wild = np.concatenate([X, [[1e4, 0.0]]])
    model = regressor(temperature=0.5).fit(wild, np.append(Y, 0.0))
    rest = model._split(41).rows.rest
    assert np.allclose(model.inputs_.zero, wild[rest].mean(0))
    assert np.allclose(model.inputs_.unit, wild[rest].std(0))


def test_targets_are_scaled_by_the_rows_trained_on():
    wild = np.append(Y, 1e4)
    model = regressor(temperature=0.5).fit(np.concatenate([X, X[:1]]), wild)
    rest = model._split(41).rows.rest
    assert len(rest) < 41
    assert np.allclose(model.targets_.zero, wild[rest].mean())
    assert np.allclose(model.targets_.unit, wild[rest].std())


def test_settings_reach_the_training():
    model = regressor(temperature=0.07, learning_rate=0.5, batch_size=9, max_epochs=3).fit(X, Y)
    assert model.temperature_ == 0.07
    assert model.history_[0]["step"] == 36 // 9
    assert model.n_iter_ == 3
    assert model.history_[0]["learning_rate"] == pytest.approx(0.5, rel=0.5)
    stopped = regressor(max_epochs=60, patience=1, learning_rate=5.0).fit(X, Y)
    assert stopped.n_iter_ < 60


def test_rate_and_batch_if_nothing_is_said():
    told = settings.of_fit(BayesianRegressor(), 9_999)
    assert (told["learning_rate"], told["batch_size"], told["epochs"]) == (0.01, 64, None)
    assert settings.of_fit(BayesianRegressor(), 10_000)["batch_size"] == 256
    assert settings.of_fit(BayesianRegressor(batch_size=7), 20)["batch_size"] == 7


@pytest.mark.parametrize("name", names.LIKELIHOODS)
@pytest.mark.parametrize("targets", [1, 2])
def test_every_likelihood_by_name(name, targets):
    y = np.stack([Y, 100 * X[:, 1]], 1)[:, :targets]
    model = regressor(likelihood=name).fit(X, y)
    assert type(model.objective_.likelihood) is names.LIKELIHOODS[name]
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X, 0.5)
    assert mean.shape == std.shape == (40, targets)
    assert ((low < mean) & (mean < high)).all()
    assert model.sample_y(X, 3).shape == (40, targets, 3)
    assert np.isfinite(model.log_likelihood(X, y))


def test_noise_that_depends_on_the_row():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, size=(400, 1))
    y = rng.normal(size=400) * (1.6 + 1.4 * x[:, 0])  # standard deviation 0.2 to 3
    changes = {"hidden_layer_sizes": (20,), "max_epochs": 60, "learning_rate": 0.02}
    changes |= {"batch_size": 40, "n_samples": 30}
    ours = regressor(likelihood="heteroscedastic", **changes).fit(x, y)
    quiet, loud = ours.predict([[-0.8], [0.8]], return_std=True)[1]
    assert quiet == pytest.approx(0.48, rel=0.5)
    assert loud == pytest.approx(2.72, rel=0.6)
    usual = regressor(**changes).fit(x, y)
    assert ours.log_likelihood(x, y) > usual.log_likelihood(x, y) + 0.15


def test_noise_in_closed_form():
    """kasuri.fit calls the update; afterwards the concentration is near 6 + 40/2 targets."""
    noise = kasuri.GammaGaussian(learn="closed form")
    model = regressor(likelihood=noise, max_epochs=10).fit(X, Y)
    assert 22 < float(model.objective_.likelihood.concentration) <= 26.001


def test_noise_of_a_given_size():
    fixed = regressor(likelihood=kasuri.Gaussian(0.1)).fit(X, Y)
    assert float(fixed.objective_.likelihood.scale) == pytest.approx(0.1)
    assert fixed.predict(X, return_std=True)[1].min() > 0.09 * Y.std()


def test_verbose_shows_a_bar(capfd):
    regressor(verbose=True).fit(X, Y)
    assert "BayesianRegressor" in capfd.readouterr().err


REFUSED = [
    ({"posterior": "ktied"}, ValueError, "posterior='ktied'.*did you mean 'k-tied'"),
    ({"posterior": 3}, TypeError, "posterior=3.*kasuri.KTied"),
    ({"prior": "hee"}, ValueError, "prior='hee'.*did you mean 'he'"),
    ({"prior": True}, TypeError, "prior=True.*standard deviation"),
    ({"prior": -1.0}, ValueError, "positive"),
    ({"likelihood": "gausian"}, ValueError, "did you mean 'gaussian'"),
    ({"likelihood": kasuri.Categorical()}, TypeError, "BayesianClassifier"),
    ({"activation": "rely"}, ValueError, "did you mean 'relu'"),
    ({"hidden_layer_sizes": (5, 0)}, ValueError, "hidden_layer_sizes=.*widths"),
    ({"hidden_layer_sizes": "50"}, ValueError, "hidden_layer_sizes='50'"),
    ({"temperature": "hot"}, ValueError, "temperature='hot'.*from 0 on"),
    ({"temperature": -0.1}, ValueError, "temperature=-0.1"),
    ({"temperature": float("nan")}, ValueError, "temperature=nan"),
    ({"learning_rate": 0}, ValueError, "learning_rate=0.*above 0"),
    ({"batch_size": 2.5}, ValueError, "batch_size=2.5.*whole number.*auto"),
    ({"max_epochs": 0}, ValueError, "max_epochs=0.*auto"),
    ({"max_epochs": True}, ValueError, "max_epochs=True"),
    ({"patience": "auto"}, ValueError, "patience='auto'.*or None"),
    ({"validation_fraction": 1.0}, ValueError, "validation_fraction=1.0.*below 1"),
    (
        {"validation_fraction": 0.99, "temperature": 0.1},
        ValueError,
        "none is left to train on",
    ),
    ({"validation_fraction": 0, "patience": 3}, ValueError, "patience=3 with validation_fraction"),
    ({"n_samples": 0}, ValueError, "n_samples=0: a whole number above 0$"),
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
    with pytest.raises(ValueError, match="n_samples=0"):
        model.sample_y(X, 0)


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_a_fit_that_fails_leaves_the_one_before(kind):
    y = Y if kind is BayesianRegressor else Y > 1
    model = kind(**SMALL).fit(X, y)
    before = model.predict(X)
    model.set_params(posterior="none")
    with pytest.raises(ValueError, match="posterior='none'"):
        model.fit(X * 100, y)
    assert np.array_equal(model.predict(X), before)


def test_weights_of_rows_are_not_taken():
    """The objective counts every example once; accepting weights would be a promise."""
    with pytest.raises(TypeError, match="sample_weight"):
        regressor().fit(X, Y, sample_weight=np.ones(40))

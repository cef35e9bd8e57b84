"""BayesianRegressor: predictions in the target's unit, against independent arithmetic."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import mean_squared_error

import kasuri
from kasuri.sklearn import BayesianRegressor

SMALL = {"hidden_layer_sizes": (8,), "max_epochs": 6, "learning_rate": 0.03, "batch_size": 16}
SMALL["temperature"] = 0.3  # saves choosing it, and at 1 six epochs learn noise, and little else


def table(rows=60, outputs=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) * [1.0, 50.0, 0.01] + [0.0, 900.0, -4.0]
    y = 30 * X[:, :1] - X[:, 1:2] + rng.normal(size=(rows, outputs or 1)) * 5 + 2000
    return X, (y if outputs else y[:, 0])


def regressor(**changes):
    return BayesianRegressor(**(SMALL | {"n_samples": 20, "random_state": 0} | changes))


@pytest.fixture(scope="module")
def fitted():
    wide = kasuri.MeanField(scale=0.2)  # so that draws differ
    return regressor(posterior=wide, n_samples=400).fit(*table())


def test_draws_of_targets_have_the_moments_and_quantiles_that_are_predicted(fitted):
    X = table(rows=4, seed=1)[0]
    drawn = fitted.sample_y(X, 3000, random_state=3)
    mean, std = fitted.predict(X, return_std=True)
    assert drawn.shape == (4, 3000)
    # 400 functions and 3,000 other ones with noise: 5 standard errors at most
    assert np.allclose(drawn.mean(1), mean, atol=5 * std.max() / np.sqrt(350))
    assert np.allclose(drawn.std(1), std, rtol=0.1)
    for level in (0.5, 0.9):
        low, high = fitted.predict_interval(X, level)
        inside = ((drawn > low[:, None]) & (drawn < high[:, None])).mean(1)
        assert np.allclose(inside, level, atol=0.04)
        assert np.allclose((drawn < low[:, None]).mean(1), (1 - level) / 2, atol=0.03)


def test_weights_are_part_of_the_spread(fitted):
    X = table(rows=4, seed=1)[0]
    noise = float(fitted.objective_.likelihood.scale.detach()) * float(fitted.targets_.unit)
    std = fitted.predict(X, return_std=True)[1]
    assert (std > 1.005 * noise).all()
    assert std.max() > 1.05 * noise


def test_functions_of_sampled_targets_are_coherent():
    """The noise fixed at almost nothing, equal rows get equal targets, draw by draw."""
    family, noise = kasuri.MeanField(scale=0.3), kasuri.Gaussian(1e-6)
    X, y = table()
    model = regressor(posterior=family, likelihood=noise, max_epochs=1, learning_rate=1e-4)
    drawn = model.fit(X, y).sample_y(X[[0, 5, 0]], 7)
    scale = drawn.std()
    assert np.allclose(drawn[0], drawn[2], atol=1e-4 * scale)
    assert not np.allclose(drawn[0], drawn[1], atol=0.05 * scale)
    assert not np.allclose(drawn[0, 0], drawn[0, 1:], atol=0.01 * scale)


def test_a_point_posterior_is_one_normal_per_row():
    X, y = table()
    model = regressor(posterior="point", n_samples=2).fit(X, y)
    new, targets = table(seed=2)
    mean, std = model.predict(new, return_std=True)
    law = stats.norm(mean, std)
    assert np.ptp(std) < 1e-9 * std[0]
    assert model.log_likelihood(new, targets) == pytest.approx(law.logpdf(targets).mean(), rel=1e-6)
    low, high = model.predict_interval(new, 0.8)
    assert np.allclose(low, law.ppf(0.1), rtol=1e-6)
    assert np.allclose(high, law.ppf(0.9), rtol=1e-6)


def test_metrics_agree_with_the_predictions(fitted):
    X, y = table(seed=4)
    told = fitted.evaluate(X, y)
    low, high = fitted.predict_interval(X, 0.9)
    root = np.sqrt(mean_squared_error(y, fitted.predict(X)))
    assert told["rmse"] == pytest.approx(root, rel=1e-6)
    assert told["coverage_90"] == pytest.approx(((low <= y) & (y <= high)).mean())
    assert told["interval_width_90"] == pytest.approx((high - low).mean(), rel=1e-5)


def test_another_unit_changes_the_unit_and_nothing_else():
    X, y = table()
    ours, theirs = regressor().fit(X, y), regressor().fit(X * 8, y * 0.25)  # exact in floats
    mean, std = ours.predict(X, return_std=True)
    assert np.array_equal(theirs.predict(X * 8, return_std=True), (mean * 0.25, std * 0.25))
    moved = theirs.log_likelihood(X * 8, y * 0.25) - ours.log_likelihood(X, y)
    assert moved == pytest.approx(np.log(4), rel=1e-9)


def test_several_targets_keep_their_shapes_and_units():
    X, y = table(outputs=2)
    y = y * [1.0, 1000.0]
    model = regressor().fit(X, y)
    mean, std = model.predict(X[:5], return_std=True)
    low, high = model.predict_interval(X[:5])
    assert mean.shape == std.shape == low.shape == high.shape == (5, 2)
    assert model.sample_y(X[:5], 3).shape == (5, 2, 3)
    assert model.n_outputs_ == 2
    assert (std[:, 1] > 300 * std[:, 0]).all()
    assert np.abs(mean.mean(0) / y.mean(0) - 1).max() < 0.2
    with pytest.raises(ValueError, match="fit saw 2 outputs"):
        model.evaluate(X, y[:, 0])


def test_a_column_stays_a_column():
    X, y = table()
    assert regressor(max_epochs=1).fit(X, y[:, None]).predict(X).shape == (60, 1)


def test_constant_columns_and_targets_are_harmless():
    X, y = table()
    X[:, 1] = 7.0
    model = regressor().fit(X, y)
    assert model.score(X, y) == model.score(X, y)  # not nan
    same = regressor(max_epochs=40).fit(X, np.full(60, 3.0))
    mean, std = same.predict(X, return_std=True)
    assert np.allclose(mean, 3.0, atol=0.3)
    assert (std < 0.5).all()
    low, high = same.predict_interval(X)
    assert ((low < 3.0) & (high > 3.0)).all()


def test_targets_that_are_text():
    X, y = table()
    numbers, text = regressor().fit(X, y), regressor().fit(X, y.astype(str))
    assert np.allclose(numbers.predict(X), text.predict(X))
    with pytest.raises(ValueError, match=r"much|little"):
        regressor().fit(X, np.where(y > y.mean(), "much", "little"))


def test_intervals_of_any_level(fitted):
    X = table(rows=4, seed=1)[0]
    widths = [np.diff(fitted.predict_interval(X, p), axis=0) for p in (0.9, 0.999999, 1 - 1e-12)]
    assert np.isfinite(widths).all()
    assert (widths[0] < widths[1]).all()
    assert (widths[1] <= widths[2]).all()
    for level in (0.0, 1.0, "a"):
        with pytest.raises(ValueError, match="between 0 and 1"):
            fitted.predict_interval(X, level)


def test_intervals_hold_what_they_promise_on_a_straight_line():
    """y = 4 - 3x + N(0, 0.5²): the noise is found, and 90 % of unseen targets are inside."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(1200, 1))
    y = 4 - 3 * X[:, 0] + rng.normal(size=1200) * 0.5
    model = regressor(max_epochs=40, hidden_layer_sizes=(), learning_rate=0.03, batch_size=50)
    model.fit(X[:400], y[:400])
    low, high = model.predict_interval(X[400:])
    inside = ((low <= y[400:]) & (y[400:] <= high)).mean()
    assert abs(inside - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 800) + 0.02
    assert np.allclose(model.predict([[0.0], [1.0]]), [4, 1], atol=0.15)
    assert np.allclose(model.predict([[0.0]], return_std=True)[1], 0.5, rtol=0.12)


def test_long_tables_are_predicted_in_pieces():
    X, y = table(rows=40)
    model = regressor(max_epochs=1, n_samples=3).fit(X, y)
    long = np.tile(X, (60, 1))
    assert np.allclose(model.predict(long), np.tile(model.predict(X), 60), rtol=1e-12)
    low, high = model.predict_interval(long)
    assert np.allclose(low, np.tile(model.predict_interval(X)[0], 60), rtol=1e-9)
    assert len(high) == 2400

"""Training under ARD drops inputs that do not matter; schedules."""

import functools
import itertools

import pytest
import torch

import kasuri
from kasuri.compression.importance import matrices_of, signal_and_noise
from kasuri.objectives import schedules
from tests.priors.relevance_examples import line, network, some_inputs_matter, trained

PRIORS = {
    "ARD": kasuri.ARD,
    "columns": lambda: kasuri.GroupARD("columns"),
    "both": kasuri.GroupARD,
}
EVERYTHING = ("weights", "rows", "columns")
FAMILIES = {
    "mean-field": kasuri.MeanField(scale=0.05),
    "2-tied": kasuri.KTied(rank=2, scale=0.05),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_inputs_that_do_not_matter_are_dropped(prior):
    elbo = trained(prior(), line)
    for threshold in (0.05, 1000):
        options = {"criterion": "group_ard", "structure": EVERYTHING, "threshold": threshold}
        sparse, report = kasuri.compress(elbo, **options)
        assert (report.total.weights_left, report.total.columns_left) == (2, 2)
    plain = kasuri.collapse(sparse)
    assert torch.equal(plain.weight[0] != 0, torch.arange(10) < 2)


@functools.cache
def trained_once(prior, family):
    return trained(PRIORS[prior](), network, FAMILIES[family], steps=700)


@pytest.fixture(scope="module")
def under_a_normal_prior():
    elbo = trained(kasuri.Normal(1.0), network, steps=700)
    _, report = kasuri.compress(elbo, structure=EVERYTHING, threshold=0.05)
    return report.total.weights_left


@pytest.mark.parametrize(
    ("prior", "family"),
    [("both", "mean-field"), ("ARD", "2-tied")],
)
def test_a_network_becomes_sparse_and_predicts_as_before(prior, family, under_a_normal_prior):
    elbo = trained_once(prior, family)
    sparse, report = kasuri.compress(elbo, structure=EVERYTHING, threshold=0.05)
    assert report.total.weights_left < 0.6 * under_a_normal_prior
    for name, q in kasuri.named_posteriors(sparse):
        if name.endswith("weight"):
            assert ((q.mean == 0) == (q.variance == 0)).all()
    x, y = some_inputs_matter(300, seed=1)
    before = kasuri.predict(elbo, x, samples=100, seed=0)
    after = kasuri.predict(sparse, x, samples=100, seed=0, likelihood=elbo.likelihood)
    assert (before.mean - after.mean).abs().max() < 0.15  # in units of targets of size 1.2
    errors = [(p.mean - y).square().mean().sqrt() for p in (before, after)]
    assert errors[1] < errors[0] + 0.005
    again = kasuri.ELBO(sparse, elbo.likelihood, PRIORS[prior](), num_data=400)
    train = some_inputs_matter()
    scores = [kasuri.evaluate(one, train, samples=30, seed=0)["nll"] for one in (elbo, again)]
    assert scores[1] < scores[0] + 0.1


def test_group_prior_separates_inputs_by_columns():
    elbo = trained_once("both", "mean-field")
    _, by_column = signal_and_noise("0.weight", matrices_of(elbo)["0.weight"], "group_ard")
    columns = by_column[0].sum(0) / by_column[1].sum(0)
    assert columns[:2].min() > 10 * columns[2:].max()


# -- schedules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (schedules.HoldThenRamp(10, 20), {0: 0, 9: 0, 10: 0, 15: 0.25, 30: 1, 10**6: 1}),
        (schedules.HoldThenRamp(0, 4), {0: 0, 1: 0.25, 4: 1}),
        (schedules.HoldThenRamp(5, 15, 600), {2999: 0, 7500: 0.5, 12_000: 1}),
        (schedules.HoldThenRamp(0.5, 0.5, 10, end=0.1), {5: 0, 6: 0.02, 10: 0.1, 99: 0.1}),
        (schedules.Exponential(2, 100, start=1e-4), {0: 1e-4, 100: 1e-2, 200: 1, 999: 1}),
        (
            schedules.Exponential(2, 100, start=1e-4, hold=3),
            {0: 0, 299: 0, 300: 1e-4, 400: 1e-2, 500: 1},
        ),
    ],
)
def test_values(schedule, values):
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value)


def test_the_factor_of_exponential_annealing_is_constant():
    steps = [schedules.Exponential(3, 50, start=1e-3)(step) for step in range(151)]
    ratios = [b / a for a, b in itertools.pairwise(steps)]
    assert ratios == pytest.approx([1000 ** (1 / 150)] * 150)


@pytest.mark.parametrize(
    "build",
    [
        lambda: schedules.HoldThenRamp(-1, 10),
        lambda: schedules.HoldThenRamp(5, 0),
        lambda: schedules.HoldThenRamp(5, 5, 0),
        lambda: schedules.HoldThenRamp(5, 5, end=-1.0),
        lambda: schedules.HoldThenRamp(float("nan"), 5),
        lambda: schedules.Exponential(1, 10, hold=-1),
        lambda: schedules.Exponential(0, 10),
    ],
)
def test_impossible_schedules_are_refused(build):
    with pytest.raises(ValueError, match="must be"):
        build()

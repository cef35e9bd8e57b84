"""Metrics against torchmetrics, scikit-learn, scipy and plain loops; laws; refusals."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn import metrics as sk
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_calibration_error,
    multiclass_accuracy,
    multiclass_calibration_error,
)
from torchmetrics.functional.regression.crps import continuous_ranked_probability_score

from kasuri.numerics.mixture import mixture_quantile
from kasuri.prediction import metrics

N, C = 500, 5


@pytest.fixture
def probs():
    return (2 * torch.randn(N, C)).softmax(-1)


@pytest.fixture
def y():
    return torch.randint(C, (N,))


def drawn_from(probs):
    """Labels for which the probabilities are the truth."""
    return torch.multinomial(probs, 1).squeeze(1)


# classification


def test_accuracy_nll_and_brier_agree_with_other_libraries(probs, y):
    ours = float(metrics.correct(probs, y).mean())
    assert ours == pytest.approx(float(multiclass_accuracy(probs, y, C, average="micro")))
    assert ours == sk.accuracy_score(y, probs.argmax(1))
    double = probs.double() / probs.double().sum(1, keepdim=True)
    nll = float(metrics.nll(double, y).mean())
    assert nll == pytest.approx(sk.log_loss(y, double.numpy(), labels=range(C)))
    brier = sk.brier_score_loss(y, double.numpy(), labels=range(C), scale_by_half=False)
    assert float(metrics.brier(double, y).mean()) == pytest.approx(brier)


def test_a_probability_of_zero_costs_much_but_not_infinitely_much():
    probs, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert metrics.nll(probs, y) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert metrics.nll(probs.double(), y) == pytest.approx(708.396, abs=1e-3)


@pytest.mark.parametrize("bins", [1, 2, 15, 40])
def test_ece_agrees_with_torchmetrics(probs, y, bins):
    ours = metrics.ece(probs, y, bins)
    theirs = multiclass_calibration_error(probs, y, C, n_bins=bins, norm="l1")
    assert ours == pytest.approx(float(theirs), abs=1e-6)
    stated, right = metrics.confidence(probs), metrics.correct(probs, y)
    diagram = metrics.calibration_bins(stated, right, bins)
    assert int(diagram.counts.sum()) == N
    assert diagram.error == ours
    means = (
        (diagram.accuracy * diagram.counts).sum() / N,
        (diagram.confidence * diagram.counts).sum(),
    )
    assert float(means[0]) == pytest.approx(float(right.mean()))
    assert float(means[1]) / N == pytest.approx(float(stated.mean()))


def test_certainty_shares_the_last_bin():
    """torchmetrics gives confidences of exactly 1 a bin of their own and says 0.505."""
    probs, y = torch.tensor([[1.0, 0.0], [0.99, 0.01]]), torch.tensor([1, 0])
    assert metrics.ece(probs, y) == pytest.approx(0.995 - 0.5)
    bins = metrics.calibration_bins(metrics.confidence(probs), metrics.correct(probs, y))
    assert bins.counts.tolist() == [0] * 14 + [2]


def test_an_edge_belongs_to_the_bin_above_as_in_torchmetrics():
    stated, happened = torch.tensor([0.25, 0.5, 0.75]), torch.tensor([0, 1, 1])
    assert metrics.calibration_bins(stated, happened, bins=4).counts.tolist() == [0, 1, 1, 1]
    theirs = binary_calibration_error(stated, happened, n_bins=2)
    assert metrics.calibration_bins(stated, happened, bins=2).error == pytest.approx(float(theirs))


def test_the_truth_is_calibrated_and_a_sharpened_truth_is_not():
    """E[ECE] of the truth is about Σ_b √(2 n_b v_b/π)/N ≤ √(bins/N)·0.4 = 0.0035."""
    logits = 1.5 * torch.randn(200_000, 10)
    y = drawn_from(logits.softmax(-1))
    assert metrics.ece(logits.softmax(-1), y) < 0.005
    assert metrics.ece((3 * logits).softmax(-1), y) > 0.2


# telling two sets apart


@pytest.mark.parametrize("levels", [2, 5, 10_000])
def test_auroc_with_ties_agrees_with_scikit_learn_and_with_all_pairs(levels):
    inside = torch.randint(levels, (300,)) / levels
    outside = (torch.randint(levels, (200,)) + levels // 4) / levels
    ours = metrics.auroc(inside, outside)
    pairs = outside[:, None] - inside
    assert ours == pytest.approx(float(((pairs > 0) + 0.5 * (pairs == 0)).mean()), abs=1e-6)
    truth = torch.cat([torch.zeros(300), torch.ones(200)])
    scores = torch.cat([inside, outside])
    assert ours == pytest.approx(sk.roc_auc_score(truth, scores), abs=1e-12)
    squeezed = scores / scores.max()  # torchmetrics takes anything above 1 for a logit
    assert ours == pytest.approx(float(binary_auroc(squeezed, truth.long())), abs=1e-6)


# standard errors


def test_standard_error_agrees_with_scipy_and_averages_outputs_first():
    values = torch.randn(60, 3)
    mean, sem = metrics.mean_sem(values)
    assert mean == pytest.approx(float(values.mean()))
    assert sem == pytest.approx(stats.sem(values.mean(1).double().numpy()), rel=1e-6)
    assert math.isnan(metrics.mean_sem(torch.ones(1)).sem)


def test_bootstrap_predicts_the_spread_of_ece_over_test_sets():
    logits = torch.randn(40, 800, 4)
    sets = [(one.mul(2).softmax(-1), drawn_from(one.softmax(-1))) for one in logits]
    spread = np.std([metrics.ece(*one) for one in sets], ddof=1)
    state = torch.random.get_rng_state()
    guess = metrics.bootstrap_sem(metrics.ece, *sets[0], resamples=200)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert 0.6 < guess / spread < 1.6


# regression


def mixture(outputs=()):
    means, scale = torch.randn(7, 20, *outputs).double(), 0.3 + torch.rand(20, *outputs).double()
    return means, scale, torch.randn(20, *outputs).double()


def test_crps_is_the_integral_it_stands_for():
    means, scale, y = mixture()
    for row in range(5):
        centres, width, target = means[:, row].numpy(), float(scale[row]), float(y[row])

        def below(t, c=centres, w=width):
            return stats.norm.cdf(t, c, w).mean() ** 2

        def above(t, c=centres, w=width):
            return stats.norm.sf(t, c, w).mean() ** 2

        left = integrate.quad(below, -20, target, limit=200)[0]
        right = integrate.quad(above, target, 20, limit=200)[0]
        ours = metrics.crps(means[:, row : row + 1], scale[row], y[row : row + 1])
        assert float(ours) == pytest.approx(left + right, abs=1e-7)


def test_crps_of_one_normal_and_of_components_with_their_own_scales():
    mean, scale, y = torch.randn(1, 9), 0.5, torch.randn(9)
    z = ((y - mean[0]) / scale).double().numpy()
    norm = stats.norm
    closed = scale * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    np.testing.assert_allclose(metrics.crps(mean, scale, y), closed, rtol=1e-6)
    scales = torch.tensor([[0.2], [2.0]]).double()
    means, target = torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([0.3]).double()
    draws = means + scales * torch.randn(2, 200_000).double()
    flat = draws.flatten()
    sampled = (flat - 0.3).abs().mean() - 0.5 * (flat - flat[torch.randperm(400_000)]).abs().mean()
    assert float(metrics.crps(means, scales, target)) == pytest.approx(float(sampled), abs=0.015)


def test_crps_without_noise_is_that_of_the_ensemble():
    means, _, y = mixture()
    ours = metrics.crps(means, 0.0, y).mean()
    assert float(ours) == pytest.approx(float(continuous_ranked_probability_score(means.T, y)))
    same = metrics.crps(torch.ones(4, 2), 0.0, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(same, torch.tensor([0.0, 2.0]).double())


def test_targets_from_the_prediction_are_covered_as_often_as_promised():
    """20,000 targets: the share has standard error below 0.0036; 4 of them are allowed."""
    means, scale = torch.randn(6, 20_000).double(), 0.5
    pick = torch.randint(6, (1, 20_000))
    y = means.gather(0, pick)[0] + scale * torch.randn(20_000).double()
    pit = metrics.pit(means, scale, y)
    assert stats.kstest(pit.numpy(), "uniform").pvalue > 1e-3
    for level in (0.5, 0.9, 0.95):
        wide = torch.full((20_000,), scale).double()
        ends = [mixture_quantile(means, wide, (1 + sign * level) / 2) for sign in (-1, 1)]
        share = metrics.coverage(*ends, y)
        assert share == pytest.approx(level, abs=0.0144)
        assert share == pytest.approx(
            float(((2 * pit - 1).abs() <= level).double().mean()), abs=1e-3
        )


# refusals

GOOD, LABELS, NAN = torch.full((4, 2), 0.5), torch.tensor([0, 1, 1, 0]), float("nan")
SPOILT = torch.tensor([[0.5, 0.5], [NAN, 0.5], [0.5, NAN], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.nll(SPOILT, LABELS), "2 of 4 rows are not finite"),
        (lambda: metrics.confidence(SPOILT), "2 of 4 rows are not finite"),
        (lambda: metrics.ece(5 * torch.randn(4, 2), LABELS), "logits.softmax"),
        (lambda: metrics.correct(GOOD, torch.tensor([0, 1, -100, -100])), "2 of 4 labels"),
        (lambda: metrics.correct(GOOD, torch.tensor([0, 1, 2, 0])), "0..1"),
        (lambda: metrics.correct(GOOD, GOOD), "argmax"),
        (lambda: metrics.brier(GOOD, LABELS[:3]), r"shape \(4,\)"),
        (lambda: metrics.brier(GOOD, LABELS.double()), "integer labels"),
        (lambda: metrics.correct(GOOD[:0], LABELS[:0]), "N at least 1"),
        (lambda: metrics.ece(GOOD, LABELS, bins=0), "bins must be"),
        (lambda: metrics.auroc(torch.tensor([NAN, 1.0]), torch.ones(2)), "1 of 2 rows"),
        (lambda: metrics.auroc(torch.ones(0), torch.ones(2)), "at least one score"),
        (lambda: metrics.mean_sem(torch.tensor([1.0, math.inf])), "1 of 2 rows"),
        (lambda: metrics.mean_sem(torch.ones(0)), "no examples"),
        (lambda: metrics.crps(torch.zeros(3, 4, 1), 1.0, torch.zeros(4)), "y.reshape"),
        (lambda: metrics.crps(torch.zeros(3, 2), 1.0, torch.tensor([NAN, 0])), "1 of 2 rows"),
        (lambda: metrics.pit(torch.full((3, 2), NAN), 1.0, torch.zeros(2)), "2 of 2 rows"),
        (lambda: metrics.crps(torch.zeros(3, 2), -1.0, torch.zeros(2)), "nowhere negative"),
        (lambda: metrics.coverage(*2 * [torch.zeros(4, 1)], torch.zeros(4)), "all pairs"),
        (lambda: metrics.coverage(*3 * [torch.tensor([NAN])]), "1 of 1 rows"),
    ],
)
def test_impossible_requests_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()

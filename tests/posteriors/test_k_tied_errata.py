"""What the k-tied paper and its supplement print, and the evidence that it cannot be meant so.

Each test is one entry of the list in docs/papers/k-tied.md.
"""

import math

import pytest
import torch

import kasuri
from experiments.catalog import variants
from kasuri.diagnostics import spectrum
from kasuri.posteriors.mean_field import MeanFieldPosterior

torch.manual_seed(0)


def two_tied(outs=30, ins=40):
    return kasuri.KTied(rank=2, noise=1.0)(torch.zeros(outs, ins))


def usual(gradients):
    return (gradients.mean(0).square() / gradients.var(0)).median()


def printed(gradients):
    return (gradients.square().mean(0) / gradients.square().var(0)).median()


def test_the_printed_signal_to_noise_ratio_depends_on_the_unit_of_the_loss():
    gradients = 1.0 + torch.randn(10, 5000, dtype=torch.float64)
    for ratio, factor in ((usual, 1.0), (printed, 1e4)):
        assert ratio(0.01 * gradients) / ratio(gradients) == pytest.approx(factor, rel=1e-9)


def test_the_printed_ratio_falls_where_tying_makes_gradients_better():
    noise = torch.randn(10, 400, 100, dtype=torch.float64)
    single = 1.0 + noise
    tied = single.sum(1)  # the gradient of one factor of 400 entries: 400 times the signal
    assert usual(tied) > 100 * usual(single)
    assert printed(tied) < 1e-2 * printed(single)


def test_a_large_first_share_is_no_structure():
    net = kasuri.bayesianize(torch.nn.Linear(400, 300), kasuri.MeanField(noise=0.1), bias=False)
    (found,) = spectrum(net).values()
    assert found.scale.share[0] == pytest.approx(1 / (1 + 0.1**2), abs=1e-3)
    assert found.constant == pytest.approx(float(found.scale.share[0]), abs=1e-3)
    assert found.shuffled.share[0] == pytest.approx(float(found.scale.share[0]), abs=1e-4)


def test_the_share_of_one_value_is_not_that_of_the_approximation():
    net = kasuri.bayesianize(torch.nn.Linear(40, 30), kasuri.KTied(rank=3, noise=1.0), bias=False)
    (found,) = spectrum(net).values()
    assert found.scale.cumulative[1] == pytest.approx(float(found.scale.share[:2].sum()))
    assert found.scale.cumulative[1] > found.scale.share[1]


def test_the_variance_of_a_two_tied_posterior_has_rank_three():
    q = two_tied().double()
    assert torch.linalg.matrix_rank(q.scale) == 2
    assert torch.linalg.matrix_rank(q.variance) == 3


def test_a_floor_of_zero_makes_the_kl_infinite():
    scale = torch.full((4, 5), 0.1)
    scale[0, 0] = 0.0
    q = MeanFieldPosterior(torch.zeros(4, 5), scale.log())
    assert q.kl(kasuri.Normal(0.2)) == math.inf


def test_rank_one_needs_no_floor_and_rank_two_does():
    torch.manual_seed(1)
    for _ in range(20):
        scale = torch.randn(20, 30, dtype=torch.float64).exp()
        u, s, v = torch.linalg.svd(scale)
        assert (s[0] * torch.outer(u[:, 0], v[0])).min() > 0
        assert ((u[:, :2] * s[:2]) @ v[:2]).min() < 0


def test_annealing_is_not_over_after_300_epochs():
    for batches, fast, slow in ((49, 0.73, 0.073), (40, 0.60, 0.060)):
        for rate, weight in ((5e-5, fast), (5e-6, slow)):
            told = kasuri.schedules.LinearPerBatch(rate, every=100)(300 * batches)
            assert told == pytest.approx(weight, rel=0.01)


def test_the_diagonal_matrix_normal_is_the_one_of_the_parameter_table():
    m, n, k = 40, 30, 1
    tied = sum(p.numel() for p in kasuri.KTied(rank=k)(torch.zeros(n, m)).parameters())
    assert tied == m * n + m + n
    full = m * n + m * (m + 1) // 2 + n * (n + 1) // 2 - 1
    assert full > tied


def test_the_start_gives_a_kl_that_a_negative_elbo_of_42_cannot_come_from():
    for prior, printed in ((0.2, 24.3), (0.3, 28.0)):
        experiment = variants("k-tied/mnist-mlp")["mean-field"]
        torch.manual_seed(0)
        layers = [torch.zeros(400, 784), torch.zeros(400, 400), torch.zeros(10, 400)]
        posteriors = [experiment.family(layer) for layer in layers]
        kl = kasuri.Normal(prior).kl(*posteriors).item() / 50_000
        assert kl == pytest.approx(printed, rel=0.03)


def test_a_step_of_adam_moves_tied_scales_twice_as_far():
    moved = {}
    for family in (kasuri.MeanField(), kasuri.KTied(rank=1)):
        torch.manual_seed(0)
        q = family(torch.zeros(20, 30))
        before = q.scale.detach().log()
        optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
        q.kl(kasuri.Normal(1.0)).backward()
        optimizer.step()
        moved[type(q).__name__] = (q.scale.log() - before).mean().item()
    ratio = moved["KTiedPosterior"] / moved["MeanFieldPosterior"]
    assert ratio == pytest.approx(2.0, rel=1e-3)

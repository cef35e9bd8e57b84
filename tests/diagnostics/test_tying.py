"""Tied fits of free standard deviations: optimality, recovery of known ranks, use afterwards."""

import copy
import math
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import distributions as td

import kasuri
from kasuri.diagnostics import choose_rank, factors, tie
from kasuri.posteriors.k_tied import KTiedPosterior
from tests.diagnostics.networks import (
    INPUTS,
    Plain,
    dense,
    low_rank,
    mean_field_with,
    randomised,
)


def kl(tied, given):
    """KL(tied ‖ given) by torch.distributions, in nats."""
    pair = [td.Normal(q.mean.double(), q.scale.double()) for q in (tied, given)]
    return td.kl_divergence(*pair).sum().item()


def weight_of(bnn):
    return bnn.posteriors.weight


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("shape", [(30, 20), (60, 90)])
def test_exact_low_rank_is_recovered(rank, shape):
    scale = low_rank(rank, *shape)
    fit = next(islice(factors.growing(scale, 2000), rank - 1, None))
    assert fit.rows.shape == (rank, shape[0])
    assert ((fit.rows.T @ fit.columns / scale).log().square().mean().sqrt() < 2e-3).item()


def test_rank_one_is_the_global_optimum():
    scale = low_rank(3, 7, 5, noise=0.3)

    def loss(logs):
        ratio = np.exp(logs[:7, None] + logs[None, 7:]) / scale.numpy()
        return (ratio**2 / 2 - np.log(ratio) - 0.5).mean()

    found = weight_of(tie(mean_field_with(scale), 1)).scale
    expected = minimize(loss, np.full(12, -2.0), method="BFGS", options={"gtol": 1e-9})
    mine = next(factors.growing(scale)).loss
    assert float(mine) == pytest.approx(expected.fun, rel=1e-6)
    tau = np.exp(expected.x[:7, None] + expected.x[None, 7:])
    np.testing.assert_allclose(found.detach(), tau, rtol=1e-3)
    # at the optimum the ratios (τ/σ)² average to 1 in every row and column
    ratios = (found.detach() / scale).square()
    torch.testing.assert_close(ratios.mean(0), torch.ones(5).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(ratios.mean(1), torch.ones(7).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_every_update_lowers_the_loss_and_more_rank_never_fits_worse(seed):
    torch.manual_seed(seed)
    scale = torch.distributions.LogNormal(-3.0, 1.0).sample((12, 17)).double()
    losses = []
    for fit in islice(factors.growing(scale, 40), 6):
        losses.append(fit.loss)
        rows, columns, before = fit.rows * 1.3, fit.columns * 0.9, math.inf
        for _ in range(5):
            rows, columns, now = factors.improved(scale, rows, columns, 1)
            assert now < before + 1e-14
            before = now
    assert all(b <= a + 1e-12 for a, b in pairwise(losses))
    assert losses[5] < 0.8 * losses[0]


def test_losses_are_the_kl_of_what_tie_makes():
    bnn = mean_field_with(low_rank(3, 20, 15, noise=0.2))
    for rank, fit in enumerate(islice(factors.growing(weight_of(bnn).scale.detach()), 4), 1):
        q = weight_of(tie(bnn, rank))
        assert kl(q, weight_of(bnn)) / q.numel() == pytest.approx(fit.loss, rel=1e-5, abs=1e-9)


def test_loss_is_what_tying_takes_from_a_quadratic_elbo():
    """At the optimum of E[-h w²/2] - KL(q ‖ N(0, p²)) the loss is the fall of the ELBO."""
    sharpness, prior = torch.rand(6, 5).double() * 50, 0.7
    scale = (sharpness + 1 / prior**2).rsqrt()
    bnn = mean_field_with(scale)
    tied = weight_of(tie(bnn, 1))

    def elbo(s):
        return (-(sharpness + prior**-2) * s.square() / 2 + s.log()).sum()

    fall = elbo(weight_of(bnn).scale) - elbo(tied.scale)
    assert fall.item() == pytest.approx(kl(tied, weight_of(bnn)), rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_known_ranks_are_found(rank, noise, seed):
    torch.manual_seed(seed)
    for shape in ((30, 20), (64, 100)):
        bnn = mean_field_with(low_rank(rank, *shape, noise=noise))
        assert choose_rank(bnn) == {"weight": rank}


def test_choice_stops_at_the_largest_rank():
    torch.manual_seed(1)
    bnn = randomised(dense(), kasuri.MeanField(), spread=1.0)
    assert choose_rank(bnn, tolerance=10.0) == {"0.weight": 1, "2.weight": 1}
    assert choose_rank(bnn, tolerance=1e-12) == {"0.weight": 7, "2.weight": 3}  # full rank
    wide = mean_field_with(torch.distributions.LogNormal(-3.0, 1.0).sample((20, 20)).double())
    assert choose_rank(wide, tolerance=1e-12) == {"weight": 8}


def test_a_mapping_ties_what_it_names():
    net = randomised(dense(), kasuri.MeanField())
    tied = tie(net, {"2.weight": 2})
    assert [type(q).__name__ for _, q in kasuri.named_posteriors(tied)] == [
        "MeanFieldPosterior",
        "MeanFieldPosterior",
        "KTiedPosterior",
        "MeanFieldPosterior",
    ]
    ranks = choose_rank(net, tolerance=0.2)
    tied = tie(net, ranks)
    assert {n: q.rank for n, q in kasuri.named_posteriors(tied) if n in ranks} == ranks


@pytest.mark.parametrize("make", INPUTS)
def test_result_trains_further_and_goes_through_a_file(make, tmp_path):
    bnn = randomised(make(), kasuri.MeanField(), blocks=True, spread=0.3)
    before = copy.deepcopy(bnn.state_dict())
    tied = tie(bnn, 2)
    assert all(torch.equal(before[key], value) for key, value in bnn.state_dict().items())
    for name, q in kasuri.named_posteriors(tied):
        old = dict(kasuri.named_posteriors(bnn))[name]
        assert torch.equal(q.mean, old.mean)
        if len(q.shape) > 1:
            assert isinstance(q, KTiedPosterior)
            assert q.rank == min(2, *q.shape[-2:])
            assert q.scale.dtype == torch.float32
            assert ((q.scale / old.scale).log().abs() < 1.5).all()
    x, y = INPUTS[make](), torch.randint(3, (8,))
    kasuri.save(tied, tmp_path / "tied.safetensors")
    again = kasuri.load(tmp_path / "tied.safetensors", make())
    for a, b in zip(tied.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    fitted = kasuri.fit(tied, (x, y), temperature=1.0, epochs=2, seed=0, show=False)
    assert math.isfinite(fitted.history[-1]["loss"])
    assert kasuri.predict(tied, x, samples=3).mean.shape == (8, 3)


def test_other_elementwise_families_can_be_tied():
    for family in (Plain(), kasuri.KTied(rank=3)):
        tied = tie(kasuri.bayesianize(dense(), family, bias=False), 1)
        assert {q.rank for _, q in kasuri.named_posteriors(tied)} == {1}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda bnn: tie(bnn, 0), "at least 1, got 0"),
        (lambda bnn: tie(bnn, 1.5), "at least 1, got 1.5"),
        (lambda bnn: tie(bnn, {"0.wieght": 1}), r"did you mean '0\.weight'"),
        (lambda bnn: tie(bnn, {"0.weight": 0}), "at least 1, got 0"),
        (lambda bnn: choose_rank(bnn, tolerance=0.0), "above 0"),
        (
            lambda bnn: tie(kasuri.bayesianize(dense(), kasuri.MatrixNormal(), bias=False), 1),
            "independent",
        ),
        (
            lambda bnn: choose_rank(kasuri.bayesianize(dense(), kasuri.Point())),
            "independent random weights",
        ),
        (lambda bnn: tie(dense(), 1), "bayesianize"),
    ],
)
def test_impossible_ties_are_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act(kasuri.bayesianize(dense(), kasuri.MeanField()))


def test_scales_that_are_zero_are_refused():
    bnn = kasuri.bayesianize(dense(), kasuri.MeanField())
    with torch.no_grad():
        bnn[2].posteriors.weight.log_scale[0, 0] = -200.0
    with pytest.raises(ValueError, match=r"'2\.weight' are 0"):
        tie(bnn, 1)

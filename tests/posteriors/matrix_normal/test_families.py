"""Scaled and full normals, what contains what, and the fit of every family to one hard target."""

import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.numerics.triangular import fold
from kasuri.testing import randomised
from tests.posteriors.matrix_normal.oracles import (
    assert_bounded,
    covariance,
    dense_normal,
    randomised_linear,
)

FAMILIES = {
    "rank-1 diagonal": kasuri.MatrixNormalDiagonal(),
    "rank-1 diagonal, bounded": kasuri.MatrixNormalDiagonal(rows=1, columns=1, max_scale=1.5),
    "scaled": kasuri.ScaledMatrixNormal(),
    "scaled, bounded": kasuri.ScaledMatrixNormal(columns=1, max_scale=1.5),
    "scaled, diagonal": kasuri.ScaledMatrixNormal(rows="diagonal"),
    "full": kasuri.FullNormal(),
    "full, bounded": kasuri.FullNormal(max_scale=1.5),
}
each = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@each
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2), (5, 1), (1, 1)])
def test_moments_entropy_and_kl_are_those_of_the_dense_normal(family, shape):
    q, close = randomised(family, shape), dict(rtol=1e-9, atol=1e-9)
    dense = dense_normal(q)
    torch.testing.assert_close(q.variance.reshape(-1), dense.variance, **close)
    torch.testing.assert_close(q.entropy(), dense.entropy(), **close)
    square = (dense.mean.square() + dense.variance).sum()
    torch.testing.assert_close(q.squared_norm(), square, **close)
    prior = td.MultivariateNormal(
        torch.zeros_like(dense.mean), 0.49 * torch.eye(q.numel()).double()
    )
    torch.testing.assert_close(q.kl(kasuri.Normal(0.7)), td.kl_divergence(dense, prior), **close)


@each
def test_draws_have_the_dense_covariance(family):
    """40,000 draws: every entry within six standard errors."""
    q, n = randomised(family, (3, 4)), 40_000
    dense = covariance(q).detach()
    with torch.no_grad():
        draws = torch.vmap(lambda _: q.rsample(), randomness="different")(torch.zeros(n))
    variance = dense.diagonal()
    error = ((torch.outer(variance, variance) + dense.square()) / n).sqrt()
    assert ((torch.cov(draws.reshape(n, -1).T) - dense).abs() / error).max() < 6


@pytest.mark.parametrize("diagonal", ["rank1", "free"])
def test_local_outputs_have_the_covariance_of_weight_times_input(diagonal):
    family = kasuri.MatrixNormalDiagonal(diagonal=diagonal, scale=0.5)
    bnn, q, b, x = randomised_linear(family)
    mix = torch.kron(torch.eye(3, dtype=torch.float64), x)
    expected = (mix @ covariance(q) @ mix.T + torch.diag(b.variance)).detach()
    n = 40_000
    with torch.no_grad():
        y = torch.cat([bnn(x.expand(200, 4))[::16] for _ in range(n // 13)])
    error = expected.diagonal().max() * (2 / n) ** 0.5
    assert (torch.cov(y.T) - expected).abs().max() < 6 * error


def test_full_normal_has_the_log_density_of_the_dense_normal():
    q, weight = randomised(kasuri.FullNormal(), (2, 3, 2)), torch.randn(2, 3, 2).double()
    torch.testing.assert_close(q.log_prob(weight), dense_normal(q).log_prob(weight.reshape(-1)))


@pytest.mark.parametrize("name", ["rank-1 diagonal", "scaled", "full"])
def test_marginal_standard_deviations_stay_below_the_bound(name):
    family = {
        "rank-1 diagonal": kasuri.MatrixNormalDiagonal(max_scale=0.2),
        "scaled": kasuri.ScaledMatrixNormal(max_scale=0.2),
        "full": kasuri.FullNormal(max_scale=0.2),
    }[name]
    q = family(torch.zeros(6, 5))
    assert abs(q.variance.sqrt().mean() - 0.01) < 1e-3
    assert_bounded(q, 0.2)


@pytest.mark.parametrize("family", [kasuri.ScaledMatrixNormal(), kasuri.FullNormal()], ids=type)
def test_local_is_refused_where_weights_must_be_drawn(family):
    with pytest.raises(ValueError, match=r'cannot draw an output.*estimator="shared"'):
        kasuri.bayesianize(nn.Linear(3, 2), family, estimator="local")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: kasuri.FullNormal()(torch.zeros(50, 50)), "3,126,250 numbers"),
        (lambda: kasuri.FullNormal()(torch.zeros(5)), "MeanField"),
        (lambda: kasuri.FullNormal(limit=0), "limit"),
        (lambda: kasuri.MatrixNormalDiagonal(diagonal="rank2"), 'diagonal="free"'),
        (lambda: kasuri.MatrixNormalDiagonal()(torch.zeros(5)), "MeanField"),
        (lambda: kasuri.ScaledMatrixNormal(rows=-1), "rows=-1"),
    ],
)
def test_impossible_options_are_refused_with_a_sentence(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_wide_layers_are_affordable():
    for family in (kasuri.MatrixNormalDiagonal(), kasuri.ScaledMatrixNormal()):
        q = family(torch.zeros(4, 5000))
        assert torch.isfinite(q.entropy())
        q.rsample()
    assert kasuri.FullNormal(limit=2500)(torch.zeros(50, 50)).numel() == 2500


def copied(family, q):
    """A posterior of this family with the sides of another."""
    twin = family(q.mean.detach())
    twin.rows.load_state_dict(q.rows.state_dict())
    twin.columns.load_state_dict(q.columns.state_dict())
    return twin


def test_the_scaled_matrix_normal_contains_the_others():
    q = randomised(kasuri.MatrixNormalDiagonal(), (4, 3))
    scaled = kasuri.ScaledMatrixNormal()(q.mean.detach())
    with torch.no_grad():  # S² = D, and U, V in units of its factors
        scaled.log_scale.copy_(q.extra_scale.log())
        for side, source, logs in (
            (scaled.rows, q.rows, q.log_rows),
            (scaled.columns, q.columns, q.log_columns),
        ):
            factor = source.factor() / logs.exp().unsqueeze(-1)
            side.log_scale.copy_(factor.diagonal().log())
            side.lower.copy_(fold(factor / factor.diagonal()))
    torch.testing.assert_close(covariance(scaled), covariance(q))
    torch.testing.assert_close(scaled.entropy(), q.entropy())


def test_the_diagonal_variants_contain_the_matrix_normal():
    q = randomised(kasuri.MatrixNormal(), (4, 3))
    for diagonal in ("rank1", "free"):
        twin = copied(kasuri.MatrixNormalDiagonal(diagonal=diagonal), q)
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                if name in ("log_rows", "log_columns", "log_extra"):
                    parameter.fill_(-9.0 if diagonal == "rank1" else -18.0)
        torch.testing.assert_close(twin.variance, q.variance)
        torch.testing.assert_close(twin.entropy(), q.entropy(), rtol=1e-3, atol=1e-3)


def softmax_curvature(ins: int, outs: int) -> torch.Tensor:
    """Inverse covariance of the weights of a softmax regression (Laplace): no Kronecker product."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(60, ins, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(ins, ins, generator=generator, dtype=torch.float64)
    logits = x @ torch.randn(ins, outs, generator=generator, dtype=torch.float64)
    p = torch.softmax(logits / 2, -1)
    curvature = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    dense = torch.einsum("bok,bi,bj->oikj", curvature, x, x).reshape(outs * ins, outs * ins)
    return dense + torch.eye(outs * ins, dtype=torch.float64)


@pytest.mark.slow
def test_families_rank_as_they_should_on_a_target_that_is_no_kronecker_product():
    """KL(q ‖ p) of the best fit to a 40-dimensional normal: each superset is strictly better."""
    precision = softmax_curvature(8, 5)
    log_det = -torch.logdet(precision)

    def divergence(q) -> torch.Tensor:
        dense = (
            torch.diag(q.variance.reshape(-1))
            if isinstance(q, kasuri.Elementwise)
            else covariance(q)
        )
        trace = (precision * dense).sum()
        half_log_det = q.entropy() - q.numel() * 0.5 * (1 + math.log(2 * math.pi))
        return 0.5 * (trace - q.numel() + log_det) - half_log_det

    def fit(family) -> float:
        torch.manual_seed(0)
        q = family(torch.zeros(5, 8, dtype=torch.float64))
        optimiser = torch.optim.LBFGS(
            [p for n, p in q.named_parameters() if n != "loc"],
            max_iter=600,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            loss = divergence(q)
            loss.backward()
            return loss

        optimiser.step(closure)
        return divergence(q).item()

    independent = fit(kasuri.MeanField(scale=0.3))
    matrix = fit(kasuri.MatrixNormal(scale=0.3))
    rank_one = fit(kasuri.MatrixNormalDiagonal(scale=0.3))
    scaled = fit(kasuri.ScaledMatrixNormal(scale=0.3))
    full = fit(kasuri.FullNormal(scale=0.3))
    exact = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision))
    assert independent == pytest.approx(exact.item(), rel=1e-6)
    assert independent > 1.5 * matrix
    assert matrix > rank_one + 0.01
    assert rank_one > scaled + 0.05
    assert full == pytest.approx(0, abs=1e-5)

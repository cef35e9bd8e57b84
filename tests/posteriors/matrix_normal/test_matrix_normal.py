"""Matrix normals and the full normal against dense ones; what contains what."""

import copy

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.numerics.triangular import fold
from kasuri.posteriors.matrix_normal import MatrixNormalPosterior
from kasuri.posteriors.sides import DiagonalSide, FullSide, LowRankSide
from kasuri.testing import randomised
from tests.posteriors.matrix_normal.oracles import (
    assert_bounded,
    covariance,
    dense_normal,
    randomised_linear,
    side_covariance,
)

MATRIX = {
    "full": kasuri.MatrixNormal(),
    "bounded": kasuri.MatrixNormal(max_scale=1.5),
    "diagonal": kasuri.MatrixNormal(rows="diagonal", columns="diagonal"),
    "rank 1": kasuri.MatrixNormal(rows=1, columns=1),
    "rank 2, bounded": kasuri.MatrixNormal(rows=2, columns=2, max_scale=1.5),
    "mixed": kasuri.MatrixNormal(rows=1, columns="full"),
}
ALL = MATRIX | {
    "rank-1 diagonal": kasuri.MatrixNormalDiagonal(),
    "rank-1 diagonal, bounded": kasuri.MatrixNormalDiagonal(rows=1, columns=1, max_scale=1.5),
    "scaled": kasuri.ScaledMatrixNormal(),
    "scaled, bounded": kasuri.ScaledMatrixNormal(columns=1, max_scale=1.5),
    "scaled, diagonal": kasuri.ScaledMatrixNormal(rows="diagonal"),
    "any covariance": kasuri.FullNormal(),
    "any covariance, bounded": kasuri.FullNormal(max_scale=1.5),
}
FREE = {"free diagonal": kasuri.MatrixNormalDiagonal(diagonal="free", scale=0.5)}
DRAWN = {name: family for name, family in ALL.items() if "scaled" not in name and "any" not in name}


def families(chosen):
    return pytest.mark.parametrize("family", chosen.values(), ids=chosen)


@families(ALL)
@pytest.mark.parametrize("shape", [(3, 4), (7, 6), (2, 5, 4), (6, 1), (1, 6), (1, 1)])
def test_moments_entropy_and_kl_are_those_of_the_dense_normal(family, shape):
    q, close = randomised(family, shape), dict(rtol=1e-9, atol=1e-9)
    dense = dense_normal(q)
    torch.testing.assert_close(q.variance.reshape(-1), dense.variance, **close)
    torch.testing.assert_close(q.entropy(), dense.entropy(), **close)
    entropy, square = q.entropy_and_square()
    torch.testing.assert_close(entropy, dense.entropy(), **close)
    torch.testing.assert_close(square, (dense.mean.square() + dense.variance).sum(), **close)
    prior = td.MultivariateNormal(
        torch.zeros_like(dense.mean), 0.49 * torch.eye(q.numel()).double()
    )
    torch.testing.assert_close(q.kl(kasuri.Normal(0.7)), td.kl_divergence(dense, prior), **close)


@families(ALL | FREE)
def test_draws_have_the_dense_covariance(family):
    """40,000 draws: every entry within six standard errors."""
    q, n = randomised(family, (3, 4)), 40_000
    dense = covariance(q).detach()
    with torch.no_grad():
        draws = torch.vmap(lambda _: q.rsample(), randomness="different")(torch.zeros(n))
    variance = dense.diagonal()
    error = ((torch.outer(variance, variance) + dense.square()) / n).sqrt()
    assert ((torch.cov(draws.reshape(n, -1).T) - dense).abs() / error).max() < 6


@families(DRAWN | FREE)
def test_local_outputs_have_the_covariance_of_weight_times_input(family):
    """W x + b: over outputs, not only their variances, in eager mode and inside vmap."""
    bnn, q, b, x = randomised_linear(family)
    mix = torch.kron(torch.eye(3, dtype=torch.float64), x)
    expected = (mix @ covariance(q) @ mix.T + torch.diag(b.variance)).detach()
    with torch.no_grad():  # examples 16 windows apart share no noise
        y = torch.cat([bnn(x.expand(16 * 4000, 4))[::16].detach() for _ in range(10)])
    error = expected.diagonal().max() * (2 / len(y)) ** 0.5
    assert (torch.cov(y.T) - expected).abs().max() < 6 * error
    assert (y.mean(0) - (q.loc @ x + b.loc)).abs().max() < 6 * error**0.5 * (len(y) ** -0.25)
    inside = torch.vmap(lambda _: bnn(x[None])[0], randomness="different")(
        torch.zeros(40_000)
    ).detach()
    assert (torch.cov(inside.T) - expected).abs().max() < 6 * error


def test_convolution_positions_have_the_right_covariance_over_channels():
    """Per position, groups included: N(·, (pᵀ V p) U) for the patch p."""
    torch.manual_seed(1)
    layer = nn.Conv1d(4, 6, 2, groups=2, bias=False).double()
    bnn = kasuri.bayesianize(layer, kasuri.MatrixNormal(scale=0.5), estimator="local")
    q = bnn.posteriors.weight
    with torch.no_grad():
        for parameter in q.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    x, n = torch.randn(1, 4, 2, dtype=torch.float64), 20_000
    with torch.no_grad():
        y = bnn(x.expand(n, 4, 2)).squeeze(-1)
    u, v = side_covariance(q.rows), side_covariance(q.columns)
    expected = torch.block_diag(
        *(x[0, 2 * g : 2 * g + 2].reshape(-1) @ v[g] @ x[0, 2 * g : 2 * g + 2].reshape(-1) * u[g]
          for g in range(2))
    ).detach()  # fmt: skip
    assert (torch.cov(y.T) - expected).abs().max() < 6 * expected.max() * (2 / n) ** 0.5


def test_two_diagonal_sides_are_the_1_tied_normal():
    q = randomised(kasuri.MatrixNormal(rows="diagonal", columns="diagonal"), (5, 4))
    tied = kasuri.KTied(rank=1)(torch.zeros(5, 4, dtype=torch.float64))
    with torch.no_grad():
        tied.loc.copy_(q.loc)
        tied.log_rows.copy_(q.rows.log_scale[None])
        tied.log_columns.copy_(q.columns.log_scale[None])
    for value in ("mean", "variance"):
        torch.testing.assert_close(getattr(q, value), getattr(tied, value))
    torch.testing.assert_close(q.entropy(), tied.entropy())
    torch.testing.assert_close(q.kl(kasuri.HeNormal()), tied.kl(kasuri.HeNormal()))


def test_the_gauge_changes_nothing():
    q = randomised(kasuri.MatrixNormal(), (5, 4))
    twin = copy.deepcopy(q)
    with torch.no_grad():
        twin.rows.log_scale += 1.3
        twin.columns.log_scale -= 1.3
    torch.testing.assert_close(twin.variance, q.variance)
    torch.testing.assert_close(twin.kl(kasuri.Normal(1.0)), q.kl(kasuri.Normal(1.0)))


@families(
    {
        "full": kasuri.MatrixNormal(max_scale=0.2),
        "diagonal": kasuri.MatrixNormal(rows="diagonal", columns="diagonal", max_scale=0.2),
        "rank 2": kasuri.MatrixNormal(rows=2, columns=2, max_scale=0.2),
        "rank-1 diagonal": kasuri.MatrixNormalDiagonal(max_scale=0.2),
        "scaled": kasuri.ScaledMatrixNormal(max_scale=0.2),
        "any covariance": kasuri.FullNormal(max_scale=0.2),
    }
)
def test_marginal_standard_deviations_stay_below_the_bound(family):
    q = family(torch.zeros(9, 8))
    assert abs(q.variance.sqrt().mean() - 0.01) < 1e-3
    assert_bounded(q, 0.2)
    logs = [p for name, p in q.named_parameters() if name.endswith("log_scale")]
    assert all((gradient > 0).all() for gradient in torch.autograd.grad(q.variance.sum(), logs))


def test_auto_is_full_for_ordinary_layers_and_affordable_for_wide_ones():
    q = kasuri.MatrixNormal()(torch.zeros(1, 1024))
    assert isinstance(q.rows, DiagonalSide)  # one row has nothing to correlate with
    assert isinstance(q.columns, FullSide)
    q = kasuri.MatrixNormal()(torch.zeros(10, 20_000))
    assert isinstance(q.rows, FullSide)
    assert isinstance(q.columns, LowRankSide)
    assert sum(p.numel() for p in q.parameters()) < 5 * q.numel()
    assert isinstance(kasuri.MatrixNormal(columns="full")(torch.zeros(1, 1500)).columns, FullSide)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: kasuri.MatrixNormal(rows=0), "rows=0"),
        (lambda: kasuri.MatrixNormal(columns=True), "columns=True"),
        (lambda: kasuri.MatrixNormal(columns="cholesky"), "cholesky"),
        (lambda: kasuri.MatrixNormal(scale=-1), "-1"),
        (lambda: kasuri.ScaledMatrixNormal(rows=-1), "rows=-1"),
        (lambda: kasuri.MatrixNormalDiagonal(diagonal="rank2"), "rank2"),
        (lambda: kasuri.FullNormal()(torch.zeros(50, 50)), "3,126,250"),
        (lambda: kasuri.FullNormal(limit=0), "limit"),
        *(
            (lambda family=family: family(torch.zeros(3)), "MeanField")
            for family in (
                kasuri.MatrixNormal(),
                kasuri.MatrixNormalDiagonal(),
                kasuri.FullNormal(),
            )
        ),
        (lambda: bayesian(kasuri.MatrixNormal(), "flipout"), "MatrixNormalPosterior"),
        (lambda: bayesian(kasuri.ScaledMatrixNormal(), "local"), "shared"),
        (lambda: bayesian(kasuri.FullNormal(), "local"), "shared"),
    ],
)
def test_what_cannot_be_is_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def bayesian(family, estimator):
    return kasuri.bayesianize(nn.Linear(3, 2), family, estimator=estimator)


def test_every_parameter_is_free():
    """No number above a diagonal, none without gradient: n(n+1)/2 a side."""
    q = kasuri.MatrixNormal()(torch.randn(6, 5))
    assert sum(p.numel() for p in q.parameters()) == 30 + 21 + 15
    (q.entropy() + q.rsample().square().sum()).backward()
    assert all((p.grad != 0).all() for p in q.parameters())


def test_gates_and_groups_have_covariances_of_their_own():
    bnn = kasuri.bayesianize(nn.LSTM(5, 4), kasuri.MatrixNormal(), blocks=True)
    ((_, q), *_) = kasuri.named_posteriors(bnn)
    assert isinstance(q, MatrixNormalPosterior)
    assert q.rows.log_scale.shape == (4, 4)
    assert q.columns.log_scale.shape == (4, 5)
    bnn(torch.randn(3, 2, 5))[0].sum().backward()
    assert q.rows.lower.grad.abs().sum() > 0


@pytest.mark.parametrize("estimator", ["local", "shared"])
def test_autocast_draws_in_half_precision(estimator):
    bnn = kasuri.bayesianize(nn.Linear(8, 6), kasuri.MatrixNormal(), estimator=estimator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = bnn(torch.randn(4, 8))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in bnn.parameters())


@families(DRAWN)
@pytest.mark.parametrize("shape", [(6,), (0, 6), (2, 3, 6)])
def test_local_takes_inputs_of_any_shape(family, shape):
    bnn = kasuri.bayesianize(nn.Linear(6, 5), family, estimator="local")
    assert bnn(torch.randn(shape)).shape == (*shape[:-1], 5)
    across = torch.randn(6, 4).T  # not contiguous
    assert bnn(across).shape == (4, 5)


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

"""What the matrix normal paper prints, and the evidence that it cannot be meant so.

In its layout W is (inputs n, outputs m), U = A Aᵀ belongs to inputs and V = B Bᵀ to outputs.
"""

import math

import pytest
import torch

import kasuri
from kasuri.testing import randomised
from tests.posteriors.matrix_normal.oracles import side_covariance


@pytest.fixture
def q():
    torch.manual_seed(2)
    return randomised(kasuri.MatrixNormal(), (5, 7))


def printed_kl(q, sigma: float) -> torch.Tensor:
    """Algorithm 1 to the letter, for a prior N(0, σ²) on every weight."""
    a, b = q.columns.factor(), q.rows.factor()
    n, m = len(a), len(b)
    log_det_prior = n * m * 2 * math.log(sigma)
    log_det_posterior = 2 * (m * a.diagonal().log().sum() + n * b.diagonal().log().sum())
    trace = (a @ a.T).trace() * (b @ b.T).trace() / sigma
    return 0.5 * (log_det_prior - log_det_posterior + trace + sigma**2 * q.mean.square().sum())


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_algorithm_1_is_not_the_divergence(q, sigma):
    """Three slips: Σ_prior for its inverse, σ⁻¹ for σ⁻², no -nm; corrected, it is exact."""
    a, b = q.columns.factor(), q.rows.factor()
    trace, square, nm = a.square().sum() * b.square().sum(), q.mean.square().sum(), q.numel()
    true = q.kl(kasuri.Normal(sigma))
    printed = printed_kl(q, sigma)
    assert (printed - true).abs() > 1
    corrected = printed + 0.5 * (
        trace / sigma**2 - trace / sigma + square / sigma**2 - square * sigma**2 - nm
    )
    torch.testing.assert_close(corrected, true)


def test_the_printed_divergence_is_not_zero_at_the_prior():
    """At σ = 1 only the missing -nm matters: nm/2 nats for two equal distributions."""
    q = kasuri.MatrixNormal(scale=1.0, noise=0.0)(torch.zeros(4, 3, dtype=torch.float64))
    assert q.kl(kasuri.Normal(1.0)).abs() < 1e-12
    torch.testing.assert_close(printed_kl(q, 1.0).item(), 4 * 3 / 2)


def test_the_printed_local_reparameterisation_takes_roots_of_negative_numbers(q):
    """√(xᵀAx) with the Cholesky factor A; what is meant is √(xᵀAAᵀx) = ‖Aᵀx‖."""
    with torch.no_grad():
        q.columns.lower *= 4  # correlations need not be extreme for it, but not faint either
    a = q.columns.factor().detach()
    x = torch.randn(2000, 7, dtype=torch.float64)
    printed = torch.einsum("bi,ij,bj->b", x, a, x).sqrt()
    assert printed.isnan().any()
    right = torch.einsum("bi,ij,bj->b", x, a @ a.T, x).sqrt()
    assert right.isfinite().all()
    torch.testing.assert_close(right, (x @ a).norm(dim=1))


def test_the_printed_noise_has_another_variance_even_where_it_exists(q):
    """And εBᵀ must be read as Bε: the covariance of the outputs is B Bᵀ, not BᵀB."""
    a, b = q.columns.factor().detach(), q.rows.factor().detach()
    v = side_covariance(q.rows).detach()
    torch.testing.assert_close(b @ b.T, v)
    assert not torch.allclose(b.T @ b, v, rtol=0.1)
    x = torch.randn(2000, 7, dtype=torch.float64)
    printed = torch.einsum("bi,ij,bj->b", x, a, x)
    right = (x @ a).square().sum(1)
    assert (printed / right - 1).abs().median() > 0.1


def test_the_count_of_parameters_is_that_of_two_triangles():
    """Another paper's table has mn + m + n for the matrix normal: that is two diagonal sides."""
    n, m = 30, 20
    count = {
        name: sum(p.numel() for p in family(torch.zeros(m, n)).parameters())
        for name, family in (
            ("full", kasuri.MatrixNormal()),
            ("diagonal", kasuri.MatrixNormal(rows="diagonal", columns="diagonal")),
        )
    }
    assert count["full"] == n * m + n * (n + 1) // 2 + m * (m + 1) // 2
    assert count["diagonal"] == n * m + n + m

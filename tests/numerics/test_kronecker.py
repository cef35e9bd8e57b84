"""Log-determinants of K + D: bounds stay below, and are exact where they should be."""

import math

import pytest
import torch

import kasuri
from kasuri.numerics import kronecker
from kasuri.testing import randomised
from tests.posteriors.matrix_normal.oracles import dense_normal

FREE = kasuri.MatrixNormalDiagonal(diagonal="free")


def spd(blocks: int, size: int, strength: float) -> torch.Tensor:
    """Random covariances: identity at strength 0, close to singular at large strengths."""
    factor = torch.randn(blocks, size, size, dtype=torch.float64) * strength / size**0.5
    deviations = torch.randn(blocks, size, 1, dtype=torch.float64).mul(strength / 2).exp()
    factor = (factor + torch.eye(size)) * deviations
    return factor @ factor.mT


def bound(u, v, logs) -> torch.Tensor:
    """The preconditioned bound, from dense U, V."""
    a, b = kronecker.balance(logs)
    sides = []
    for dense, weights in ((u, a), (v, b)):
        w = (-weights / 2).exp()
        values, vectors = torch.linalg.eigh(w.unsqueeze(-1) * dense * w.unsqueeze(-2))
        sides.append((values.clamp(min=0), vectors.detach()))
    rest = logs - a.unsqueeze(-1) - b.unsqueeze(-2)
    return logs.sum((-2, -1)) + kronecker.log_det_bound(*sides, rest)


def exact(u, v, logs) -> torch.Tensor:
    dense = torch.einsum("...ik,...jl->...ijkl", u, v).flatten(-2).flatten(-3, -2)
    return torch.logdet(dense + torch.diag_embed(logs.exp().flatten(-2)))


@pytest.mark.parametrize("ratio", [1e-4, 0.01, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("strength", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 2.0, 4.0])
def test_bound_is_never_above_the_exact_value(ratio, strength, spread):
    """60 instances in each of 75 regimes; exact where D is a Kronecker product (spread 0)."""
    count, n, m = 60, 5, 4
    u, v = spd(count, n, strength), spd(count, m, strength)
    rows, columns = torch.randn(count, n, 1), torch.randn(count, 1, m)
    logs = (math.log(ratio) + rows + columns + spread * torch.randn(count, n, m)).double()
    below, true = bound(u, v, logs), exact(u, v, logs)
    assert (below <= true + 1e-8 * (1 + true.abs())).all()
    if spread == 0:
        torch.testing.assert_close(below, true, rtol=1e-8, atol=1e-8)
    else:
        assert (below < true).any()


def test_bound_is_exact_for_independent_weights_and_any_diagonal():
    u, v = (torch.diag_embed(torch.rand(7, size).double()) for size in (5, 4))
    logs = 3 * torch.randn(7, 5, 4).double()
    torch.testing.assert_close(bound(u, v, logs), exact(u, v, logs))


def test_gradient_is_that_of_the_bound_at_fixed_eigenvectors():
    """An independent form: 1 / qᵀK⁻¹q in the place of eigenvalues, differentiated by autograd."""
    torch.manual_seed(3)
    u, v = spd(1, 5, 1.0)[0].requires_grad_(), spd(1, 4, 1.0)[0].requires_grad_()
    logs = (0.3 * torch.randn(5, 4).double()).requires_grad_()

    def fixed() -> torch.Tensor:
        a, b = kronecker.balance(logs)
        parts, frames = [], []
        for dense, weights in ((u, a), (v, b)):
            w = (-weights / 2).exp()
            scaled = w.unsqueeze(-1) * dense * w
            q = torch.linalg.eigh(scaled.detach()).eigenvectors
            parts.append(1 / torch.einsum("ki,kl,li->i", q, torch.linalg.inv(scaled), q))
            frames.append(q.square())
        inverse = frames[0].T @ (-(logs - a.unsqueeze(-1) - b)).exp() @ frames[1]
        return logs.sum() + torch.log(torch.outer(*parts) + 1 / inverse).sum()

    torch.testing.assert_close(fixed(), bound(u, v, logs))  # the harmonic bound is the better here
    expected = torch.autograd.grad(fixed(), (u, v, logs))
    found = torch.autograd.grad(bound(u, v, logs), (u, v, logs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close((one + one.mT) if one.shape[0] == one.shape[1] else one,
                                   (other + other.mT) if one.shape[0] == one.shape[1] else other)  # fmt: skip


def test_either_bound_can_be_the_better_one():
    """Fiedler's where D is far from rank one, the harmonic one where it is close."""
    better = set()
    for spread in (0.2, 3.0):
        u, v = spd(1, 20, 0.5)[0], spd(1, 31, 0.5)[0]
        logs = spread * torch.randn(20, 31, dtype=torch.float64)
        logs = logs - logs.mean(-1, keepdim=True) - logs.mean(-2) + logs.mean()
        products = torch.outer(torch.linalg.eigvalsh(u), torch.linalg.eigvalsh(v)).flatten()
        fiedler = (products.sort().values + logs.flatten().sort().values.exp()).log().sum()
        better.add(bool(bound(u, v, logs) > fiedler + 1e-6))
    assert better == {True, False}


@pytest.mark.parametrize("spread", [0.2, 0.6, 1.0, 1.5, 3.0])
def test_one_matrix_has_the_bound_of_many(spread):
    """Of one matrix Fiedler's bound is ruled out before anything is sorted, where it is plainly lower."""
    u, v = spd(10, 20, 0.5), spd(10, 31, 0.5)
    logs = spread * torch.randn(10, 20, 31, dtype=torch.float64)
    together = bound(u, v, logs)
    for number, value in enumerate(together):
        torch.testing.assert_close(bound(u[number], v[number], logs[number]), value)


@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (30, 41)])
def test_log_det_plus_identity(shape):
    rows, columns = (torch.randn(n, dtype=torch.float64).exp().requires_grad_() for n in shape)
    found = kronecker.log_det_plus_identity(rows, columns)
    dense = torch.kron(torch.diag(rows), torch.diag(columns))
    torch.testing.assert_close(found, torch.logdet(dense + torch.eye(len(dense))))


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4), (6, 1)])
@pytest.mark.parametrize("options", [{}, {"rows": "diagonal", "max_scale": 2.0}], ids=str)
def test_entropy_of_the_free_diagonal_is_below_the_dense_one(shape, options):
    q = randomised(kasuri.MatrixNormalDiagonal(diagonal="free", **options), shape)
    assert q.entropy() <= dense_normal(q).entropy() + 1e-9

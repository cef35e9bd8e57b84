"""Low-rank products against the dense formulas."""

import pytest
import torch

from kasuri.numerics import low_rank


def factors(rank, out, inn, blocks=(), dtype=torch.float64):
    rows = torch.randn(*blocks, rank, out, dtype=dtype, requires_grad=True)
    columns = torch.randn(*blocks, rank, inn, dtype=dtype, requires_grad=True)
    return rows, columns


def dense(rows, columns):
    """log S by logsumexp over the k terms: the form that cannot underflow."""
    return (rows.unsqueeze(-1) + columns.unsqueeze(-2)).logsumexp(-3)


def gradients_agree(value, oracle, leaves):
    torch.testing.assert_close(value, oracle, rtol=1e-12, atol=1e-12)
    got, want = (torch.autograd.grad(v, leaves, retain_graph=True) for v in (value, oracle))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("blocks", [(), (3,), (2, 2)])
@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_both_sums_and_their_gradients_equal_the_dense_ones(rank, blocks):
    leaves = factors(rank, 7, 5, blocks)
    log_scale = dense(*leaves)
    loc = torch.randn(log_scale.shape, dtype=torch.float64, requires_grad=True)
    logs, squares = low_rank.normal_sums(loc, *leaves)
    gradients_agree(logs, log_scale.sum(), leaves)
    gradients_agree(squares, loc.square().sum() + (2 * log_scale).exp().sum(), (loc, *leaves))
    assert torch.autograd.gradcheck(low_rank.normal_sums, (loc, *leaves))
    gradients_agree(low_rank.product(*leaves).sum(), log_scale.exp().sum(), leaves)


def test_sum_log_where_the_product_underflows_float32():
    rows, columns = torch.full((2, 4), -90.0), torch.full((2, 3), -90.0)
    rows[1] -= 1
    expected = dense(rows.double(), columns.double()).sum().float()
    torch.testing.assert_close(low_rank.sum_logs(rows, columns), expected)
    inside = torch.vmap(low_rank.sum_logs)(rows.unsqueeze(0), columns.unsqueeze(0))
    torch.testing.assert_close(inside[0], expected)


@pytest.mark.parametrize("rank", [1, 2])
def test_sum_log_under_vmap(rank):
    rows, columns = factors(rank, 4, 3, (5,))
    got = torch.vmap(low_rank.sum_logs)(rows, columns)
    torch.testing.assert_close(got, dense(rows, columns).sum((-1, -2)))


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_square_has_rank_k_k_plus_1_over_2(rank):
    rows, columns = (f.exp().detach() for f in factors(rank, 20, 30))
    left, right = low_rank.square_factors(rows, columns)
    square = (rows.T @ columns).square()
    torch.testing.assert_close(left.T @ right, square, rtol=1e-13, atol=0)
    assert left.shape[0] == rank * (rank + 1) // 2 == torch.linalg.matrix_rank(square)


def test_bounded_keep_every_entry_of_the_product_positive():
    rows, columns = torch.tensor([[100.0], [-100.0]]), torch.tensor([[-100.0], [100.0]])
    r, c = low_rank.bounded(rows), low_rank.bounded(columns)
    assert torch.isfinite(low_rank.sum_logs(rows, columns))
    assert (r.exp().T @ c.exp() > 0).all()

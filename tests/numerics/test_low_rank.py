"""Low-rank products against the dense formulas."""

import pytest
import torch

from weft.numerics import low_rank


def factors(rank, out, inn, blocks=(), dtype=torch.float64):
    rows = torch.randn(*blocks, rank, out, dtype=dtype, requires_grad=True)
    columns = torch.randn(*blocks, rank, inn, dtype=dtype, requires_grad=True)
    return rows, columns


def dense(rows, columns):
    """log S by logsumexp over the k terms: the form that cannot underflow."""
    return (rows.unsqueeze(-1) + columns.unsqueeze(-2)).logsumexp(-3)


@pytest.mark.parametrize("blocks", [(), (3,), (2, 2)])
@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_sum_log_and_its_gradient_equal_the_dense_ones(rank, blocks):
    rows, columns = factors(rank, 7, 5, blocks)
    value, oracle = low_rank.sum_log(rows, columns), dense(rows, columns).sum()
    torch.testing.assert_close(value, oracle, rtol=1e-12, atol=1e-12)
    got = torch.autograd.grad(value, (rows, columns))
    want = torch.autograd.grad(oracle, (rows, columns))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_sum_log_in_several_blocks_of_rows(monkeypatch):
    monkeypatch.setattr(low_rank, "BLOCK", 20)  # 4 rows at a time, the last block shorter
    rows, columns = factors(2, 11, 5)
    value = low_rank.sum_log(rows, columns)
    torch.testing.assert_close(value, dense(rows, columns).sum(), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(low_rank.sum_log, (rows, columns))


def test_sum_log_where_the_product_underflows_float32():
    rows, columns = torch.full((2, 4), -90.0), torch.full((2, 3), -90.0)
    rows[1] -= 1
    expected = dense(rows.double(), columns.double()).sum().float()
    torch.testing.assert_close(low_rank.sum_log(rows, columns), expected)


def test_sum_log_under_vmap():
    rows, columns = factors(2, 4, 3, (5,))
    got = torch.vmap(low_rank.sum_log)(rows, columns)
    torch.testing.assert_close(got, dense(rows, columns).sum((-1, -2)))


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_square_has_rank_k_k_plus_1_over_2(rank):
    rows, columns = (f.exp().detach() for f in factors(rank, 20, 30))
    left, right = low_rank.square_factors(rows, columns)
    square = (rows.T @ columns).square()
    torch.testing.assert_close(left.T @ right, square, rtol=1e-13, atol=0)
    assert left.shape[0] == rank * (rank + 1) // 2 == torch.linalg.matrix_rank(square)


@pytest.mark.parametrize("blocks", [(), (3,)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_sum_of_squares(rank, blocks):
    rows, columns = (f.exp().detach() for f in factors(rank, 6, 9, blocks))
    expected = (rows.mT @ columns).square().sum()
    torch.testing.assert_close(low_rank.sum_of_squares(rows, columns), expected, rtol=1e-13, atol=0)


def test_bounded_logs_move_nothing_in_reasonable_range():
    logs = (torch.randn(3, 50) * 5).clamp(-14, 14)
    assert torch.equal(low_rank.bounded_logs(logs), logs)


def test_bounded_logs_keep_every_entry_of_the_product_positive():
    rows, columns = torch.tensor([[100.0], [-100.0]]), torch.tensor([[-100.0], [100.0]])
    r, c = low_rank.bounded_logs(rows), low_rank.bounded_logs(columns)
    assert torch.isfinite(low_rank.sum_log(r, c))
    assert (r.exp().T @ c.exp() > 0).all()

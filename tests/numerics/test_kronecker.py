"""Log-determinants in one autograd node are the plain formulas, which blocks and transforms take."""

import pytest
import torch

import kasuri
from kasuri.numerics import kronecker
from kasuri.numerics.kronecker import _order, _sorted_at_most
from kasuri.testing import randomised


def spectra(outs, ins, strength):
    """Leaves: eigenvalues of two sides; constants: their eigenvectors."""
    sides = []
    for size in (outs, ins):
        values = (strength * torch.randn(size, dtype=torch.float64)).exp().requires_grad_()
        vectors = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q
        sides.append((values, vectors))
    return sides


def plain(rows, columns, logs):
    """The same through a block dimension, which the fused forms do not take."""

    def block(side):
        return side[0].unsqueeze(0), None if side[1] is None else side[1].unsqueeze(0)

    return kronecker.log_det_bound(block(rows), block(columns), logs.unsqueeze(0)).squeeze(0)


@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (30, 41)])
def test_log_det_plus_identity(shape):
    (rows, _), (columns, _) = spectra(*shape, 2.0)
    found = kronecker.log_det_plus_identity(rows, columns)
    dense = torch.outer(rows, columns).reshape(-1)
    torch.testing.assert_close(found, torch.logdet(torch.diag(1 + dense)))
    assert torch.autograd.gradcheck(kronecker.log_det_plus_identity, (rows, columns))


@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (20, 31)])
@pytest.mark.parametrize(("spread", "strength"), [(0.0, 1.0), (0.2, 1.0), (1.0, 3.0), (3.0, 0.5)])
@pytest.mark.parametrize("turned", ["both", "rows", "none"])
def test_bound_and_its_gradient(shape, spread, strength, turned):
    rows, columns = spectra(*shape, strength)
    rows = rows if turned != "none" else (rows[0], None)
    columns = columns if turned == "both" else (columns[0], None)
    logs = (spread * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    leaves = (rows[0], columns[0], logs)
    found, expected = kronecker.log_det_bound(rows, columns, logs), plain(rows, columns, logs)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-9)
    if spread == 0:  # both bounds are exact and the plain form takes the mean of both gradients
        expected = kronecker.log_det_plus_identity(rows[0], columns[0]) + logs.sum() * 0
        leaves = leaves[:2]
    for one, other in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_either_bound_can_be_the_better_one():
    """Otherwise the test above would not have seen both."""
    better = set()
    for spread in (0.2, 3.0):
        rows, columns = spectra(20, 31, 0.5)
        logs = spread * torch.randn(20, 31, dtype=torch.float64)
        products = torch.outer(rows[0], columns[0]).flatten().sort().values
        fiedler = (products + logs.flatten().sort().values.exp()).log().sum()
        better.add(bool(kronecker.log_det_bound(rows, columns, logs) > fiedler + 1e-6))
    assert better == {True, False}


@pytest.mark.parametrize("size", [1, 7, 1000, 70_000])
def test_counting_bounds_the_sorted_sum_closely_from_above(size):
    a, b = 3 * torch.randn(2, size, dtype=torch.float64)
    exact = torch.logaddexp(a.sort().values, b.sort().values).sum()
    found = _sorted_at_most(a, b)
    assert found >= exact - 1e-6 * size
    assert found <= exact + 1e-3 * size


@pytest.mark.parametrize("size", [1, 50, 70_000])
def test_whole_numbers_sort_like_their_logarithms(size):
    logs = 4 * torch.randn(size, dtype=torch.float64)
    torch.testing.assert_close(logs[_order(logs)], logs.sort().values, rtol=0, atol=2e-6)


@pytest.mark.parametrize("diagonal", ["rank1", "free"])
def test_a_layer_alone_and_in_a_block_have_the_same_entropy_and_gradient(diagonal):
    """Of the whole posterior: blocks take the plain formulas."""
    family = kasuri.MatrixNormalDiagonal(diagonal=diagonal)
    alone = randomised(family, (7, 6))
    block = family(torch.zeros(1, 7, 6, dtype=torch.float64))
    block.load_state_dict({key: value.unsqueeze(0) for key, value in alone.state_dict().items()})
    torch.testing.assert_close(alone.entropy(), block.entropy(), rtol=1e-11, atol=1e-11)
    alone.entropy().backward()
    block.entropy().backward()
    for one, other in zip(alone.parameters(), block.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad.squeeze(0), rtol=1e-8, atol=1e-10)

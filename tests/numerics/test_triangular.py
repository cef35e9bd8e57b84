"""Folded triangles: exact inverses, products and gradients for every size."""

import pytest
import torch

from kasuri.numerics import triangular

sizes = pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 12, 13])


def folded(size, *blocks):
    shape = triangular.folded_shape(size)
    return torch.randn(*blocks, *shape, dtype=torch.float64, requires_grad=True)


@sizes
@pytest.mark.parametrize("blocks", [(), (2,), (2, 3)])
def test_folding_loses_nothing_and_stores_nothing_else(size, blocks):
    numbers = folded(size, *blocks)
    matrix = triangular.unfold(numbers)
    assert triangular.size_of(numbers) == size
    assert numbers[(0,) * len(blocks)].numel() == size * (size - 1) // 2
    assert torch.equal(matrix, matrix.tril())
    assert (matrix.diagonal(dim1=-2, dim2=-1) == 1).all()
    assert (matrix.tril(-1) != 0).sum() == numbers.numel()
    assert torch.equal(triangular.fold(matrix), numbers)
    if not blocks:
        assert torch.equal(torch.vmap(triangular.unfold)(numbers.unsqueeze(0))[0], matrix)


@sizes
def test_products_are_those_of_the_matrix(size):
    numbers, x = folded(size), torch.randn(4, size, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(size, dtype=torch.float64, requires_grad=True)
    dense = triangular.unfold(numbers)
    torch.testing.assert_close(triangular.times(x, numbers), x @ dense)
    torch.testing.assert_close(triangular.times(x.T.contiguous().T, numbers), x @ dense)
    torch.testing.assert_close(triangular.times_transposed(x, numbers), x @ dense.T)
    below = dense.tril(-1).square() @ weights
    torch.testing.assert_close(triangular.weighted_squares(numbers, weights), below)
    logs = torch.randn(size, dtype=torch.float64, requires_grad=True)
    total, trace = triangular.block_sums(numbers, logs, 10.0)
    torch.testing.assert_close(total, logs.sum())
    torch.testing.assert_close(trace, (dense.square() @ (2 * logs).exp()).sum())
    for function, inputs in (
        (triangular.unfold, (numbers,)),
        (triangular.times, (x, numbers)),
        (triangular.times_transposed, (x, numbers)),
        (lambda a, b: triangular.block_sums(a, b, 10.0), (numbers, logs)),
    ):
        assert torch.autograd.gradcheck(function, inputs)


@sizes
def test_fused_and_plain_forms_agree_inside_transforms(size):
    numbers, x = folded(size).detach(), torch.randn(3, 4, size, dtype=torch.float64)
    for function in (triangular.times, triangular.times_transposed):
        inside = torch.vmap(function, in_dims=(0, None))(x, numbers)
        torch.testing.assert_close(inside, torch.stack([function(one, numbers) for one in x]))

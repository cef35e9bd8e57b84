"""Folded triangles: exact inverses, products and gradients for every size."""

import pytest
import torch

from kasuri.numerics import triangular
from kasuri.numerics.local_linear import kronecker_noise

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
    total, trace = triangular.normal_sums(numbers, logs, 10.0)
    torch.testing.assert_close(total, logs.sum())
    torch.testing.assert_close(trace, (dense.square() @ (2 * logs).exp()).sum())
    for function, inputs in (
        (triangular.unfold, (numbers,)),
        (triangular.times, (x, numbers)),
        (triangular.times_transposed, (x, numbers)),
        (lambda a, b: triangular.normal_sums(a, b, 10.0), (numbers, logs)),
    ):
        assert torch.autograd.gradcheck(function, inputs)


@sizes
def test_fused_and_plain_forms_agree_inside_transforms(size):
    numbers, x = folded(size).detach(), torch.randn(3, 4, size, dtype=torch.float64)
    for function in (triangular.times, triangular.times_transposed):
        inside = torch.vmap(function, in_dims=(0, None))(x, numbers)
        torch.testing.assert_close(inside, torch.stack([function(one, numbers) for one in x]))


@pytest.mark.parametrize(("ins", "outs"), [(4, 3), (5, 2), (2, 6), (7, 7)])
def test_fused_noise_of_a_layer_is_the_plain_formula_with_its_gradients(ins, outs):
    left, right = folded(ins), folded(outs)
    logs = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (ins, outs)]
    x = torch.randn(6, ins, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(6, outs, dtype=torch.float64)

    def fused(x, left, log_left, right, log_right):
        return kronecker_noise(x, (left, log_left), (right, log_right), noise, 10.0)

    c, r = (triangular.unfold(t) * d.exp() for t, d in zip((left, right), logs, strict=True))
    plain = (x @ c).norm(dim=1, keepdim=True) * (noise @ r.T)
    inputs = (x, left, logs[0], right, logs[1])
    torch.testing.assert_close(fused(*inputs), plain)
    assert torch.autograd.gradcheck(fused, inputs)
    zero = torch.zeros_like(x, requires_grad=True)
    for gradient in torch.autograd.grad(fused(zero, *inputs[1:]).sum(), (zero, *inputs[1:])):
        assert torch.equal(gradient, torch.zeros_like(gradient)), "not NaN at x = 0"

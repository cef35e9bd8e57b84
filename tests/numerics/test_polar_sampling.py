"""The fused draw of vectors is the plain one, number by number, and so are its gradients."""

import pytest
import torch
import torch.nn.functional as F

from weft.numerics import polar_sampling, vmf_sampling


def inputs(shape, dtype):
    torch.manual_seed(0)
    loc = torch.randn(shape, dtype=dtype, requires_grad=True)
    kappa = (10 * torch.randn(shape[:-1]).double()).exp2().requires_grad_()
    radius = torch.rand(shape[:-1]).double().requires_grad_()
    return loc, kappa, radius


def plain(loc, kappa, radius):
    directions = vmf_sampling.sample(F.normalize(loc, dim=-1), kappa)
    return radius.to(loc.dtype).unsqueeze(-1) * directions


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 40), (4, 2000), (5, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_those_of_the_plain_formula(shape, dtype):
    given = inputs(shape, dtype)
    weights = torch.randn(shape, dtype=dtype)
    both = []
    for function in (polar_sampling.draw, plain):
        torch.manual_seed(1)
        value = function(*given)
        both.append((value.detach(), *torch.autograd.grad(value, given, weights)))
    for fused, written in zip(*both, strict=True):
        size = written.abs().max().item()
        tolerance = (1e-12 if dtype == torch.float64 else 3e-6) * size
        torch.testing.assert_close(fused, written, rtol=0, atol=tolerance)


def test_one_concentration_serves_several_rows():
    loc, _, radius = inputs((6, 20), torch.float32)
    kappa = torch.tensor([30.0]).double().requires_grad_()
    value = polar_sampling.draw(loc, kappa, radius)
    value[:, 0].sum().backward()
    assert kappa.grad.shape == (1,)
    torch.testing.assert_close(value.norm(dim=-1), radius.float())


def test_a_second_derivative_is_refused_rather_than_wrong():
    given = inputs((3, 10), torch.float64)
    (grad,) = torch.autograd.grad(polar_sampling.draw(*given).sum(), given[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()

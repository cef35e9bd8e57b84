"""The fused draw of vectors is the plain one, number by number, and so are its gradients."""

import pytest
import torch
import torch.nn.functional as F

from kasuri.posteriors.radial import vmf_sampling
from kasuri.posteriors.radial.vmf_sampling import sample_scaled


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
    for function in (sample_scaled, plain):
        torch.manual_seed(1)
        value = function(*given)
        both.append((value.detach(), *torch.autograd.grad(value, given, weights)))
    errors = [1e-12] * 4 if dtype == torch.float64 else [3e-6] * 4
    for fused, written, error in zip(*both, errors, strict=True):
        atol = error * written.abs().max().item()
        torch.testing.assert_close(fused, written, rtol=0, atol=atol)


def test_one_concentration_serves_several_rows():
    loc, _, radius = inputs((6, 20), torch.float32)
    kappa = torch.tensor([30.0]).double().requires_grad_()
    value = sample_scaled(loc, kappa, radius)
    value[:, 0].sum().backward()
    assert kappa.grad.shape == (1,)
    torch.testing.assert_close(value.norm(dim=-1), radius.float())


def test_a_second_derivative_is_refused_rather_than_wrong():
    given = inputs((3, 10), torch.float64)
    (grad,) = torch.autograd.grad(sample_scaled(*given).sum(), given[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


@pytest.mark.parametrize("d", [2, 5, 30])
@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 0, None), (None, None, 0), (0, None, None)])
@pytest.mark.parametrize("concentrations", [1, 3])
def test_members_of_a_vmap_are_drawn_as_more_rows(d, dims, concentrations):
    loc, kappa, radius = inputs((4, 3, d), torch.float32)
    kappa = kappa[:, :concentrations]
    stacked = [one.detach() for one in (loc, kappa, radius)]
    given = [
        (one[0] if dim is None else one.movedim(0, dim)).clone().requires_grad_()
        for one, dim in zip(stacked, dims, strict=True)
    ]
    alone = [
        one.expand(4, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip(given, dims, strict=True)
    ]
    torch.manual_seed(1)
    together = torch.vmap(sample_scaled, dims, randomness="different")(*given)
    torch.manual_seed(1)
    torch.rand(4)  # what tells members apart
    rows = sample_scaled(*alone)
    torch.testing.assert_close(together, rows)
    weights = torch.randn_like(rows)
    torch.testing.assert_close(
        torch.autograd.grad(together, given, weights), torch.autograd.grad(rows, given, weights)
    )


@pytest.mark.parametrize("d", [3, 20])
def test_members_without_parameters_of_their_own_differ_if_they_should(d):
    given = inputs((2, d), torch.float32)
    for randomness, equal in (("different", False), ("same", True)):
        drawn = torch.vmap(lambda _: sample_scaled(*given), randomness=randomness)
        first, second = drawn(torch.zeros(2))
        assert torch.equal(first, second) is equal
    twice = torch.vmap(
        torch.vmap(lambda *_: sample_scaled(*given), (0, None), randomness="different"),
        (None, 0),
        randomness="different",
    )
    drawn = twice(torch.zeros(2), torch.zeros(3))
    assert len(drawn.flatten(0, 1)[:, 0, 0].unique()) == 6

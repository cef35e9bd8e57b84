"""The KL of directions in one evaluation: value and derivatives are those of the exact functions."""

import pytest
import torch

from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.von_mises_fisher import divergence


@pytest.mark.parametrize("d", [2, 3, 20, 500, 4000])
@pytest.mark.parametrize("prior", [0.0, 3.0, 2000.0])
def test_it_is_the_kl_of_the_distributions(d, prior):
    torch.manual_seed(0)
    kappa = torch.logspace(-3, 5, 30).double().requires_grad_()
    cosine = (2 * torch.rand(30).double() - 1).requires_grad_()
    fast = divergence(kappa, cosine, prior, d)
    exact = vmf.kl(kappa, torch.full_like(kappa, prior), cosine, d)
    torch.testing.assert_close(fast, exact, rtol=1e-9, atol=1e-9)
    plain = torch.vmap(lambda k, c: divergence(k, c, prior, d))(kappa, cosine)
    torch.testing.assert_close(plain, exact, rtol=1e-9, atol=1e-9)
    grads = [
        torch.autograd.grad(value.sum(), [kappa, cosine], allow_unused=True)
        for value in (fast, exact, plain)
    ]
    for one, two, three in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10)
        if three is not None:
            torch.testing.assert_close(three, two, rtol=1e-8, atol=1e-10)


def test_it_is_zero_for_the_same_distribution():
    kappa = torch.tensor([0.5, 40.0, 3000.0]).double()
    for value in kappa.tolist():
        one = torch.tensor(value).double()
        assert divergence(one, torch.ones_like(one), value, 300).abs() < 1e-10


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 0), (0, 0)])
def test_members_of_a_batch_may_share_arguments(dims):
    torch.manual_seed(0)
    kappa, cosine = (10 * torch.rand(3, 3).double()).exp(), torch.rand(3, 3).double()
    given = [
        one if dim is not None else one[0] for one, dim in zip((kappa, cosine), dims, strict=True)
    ]
    given = [one.clone().requires_grad_() for one in given]
    together = torch.vmap(lambda k, c: divergence(k, c, 2.0, 7), dims)(*given)
    rows = [
        divergence(
            *(
                one if dim is None else one.select(dim, i)
                for one, dim in zip(given, dims, strict=True)
            ),
            2.0,
            7,
        )
        for i in range(3)
    ]
    weights = torch.rand(3, 3).double()
    torch.testing.assert_close(together, torch.stack(rows))
    torch.testing.assert_close(
        torch.autograd.grad((together * weights).sum(), given),
        torch.autograd.grad((torch.stack(rows) * weights).sum(), given),
    )


def test_second_derivatives_by_transforms_are_right():
    kappa, cosine = torch.tensor(3.0).double(), torch.tensor(0.4).double()
    found = torch.func.grad(torch.func.grad(lambda k: divergence(k, cosine, 2.0, 7)))(kappa)
    ahead, behind = (
        (kappa + step - 2.0 * cosine) * vmf.mean_resultant_slope(kappa + step, 7)
        for step in (1e-5, -1e-5)
    )
    torch.testing.assert_close(found, (ahead - behind) / 2e-5, rtol=1e-7, atol=0.0)

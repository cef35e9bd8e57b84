"""The mean of a softplus and its derivatives, against mpmath, in and out of transforms."""

import mpmath
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kasuri.posteriors.radial.softplus import mean_softplus

STDS = [0.02, 1.1999, 1.2001, 2.0, 2.9999, 3.0001, 8.0, 60.0]
MEANS = [-50.0, -2.0, 0.3, 4.0, 30.0]


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def exact(function, mean, std):
    bend = -mean / std
    places = sorted({-38.0, -8.0, 0.0, 8.0, 38.0, *([bend] if abs(bend) < 38 else [])})
    value = mpmath.quad(lambda e: function(mean + std * e, e) * mpmath.npdf(e), places)
    return float(value)


def sigmoid(u):
    return 1 / (1 + mpmath.exp(-u))


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("mean", MEANS)
def test_value_and_derivatives_are_exact(mean, std):
    given = [float64(mean).requires_grad_(), float64(std).requires_grad_()]
    value = mean_softplus(*given)
    slopes = torch.autograd.grad(value.sum(), given)
    wanted = [
        exact(lambda u, _: mpmath.log1p(mpmath.exp(u)), mean, std),
        exact(lambda u, _: sigmoid(u), mean, std),
        exact(lambda u, e: sigmoid(u) * e, mean, std),
    ]
    for found, true in zip((value, *slopes), wanted, strict=True):
        assert found.item() == pytest.approx(true, abs=1e-9, rel=1e-9)


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0)])
def test_members_of_a_batch_may_share_arguments(dims):
    torch.manual_seed(0)
    mean, std = torch.randn(4, 4).double(), 3 * torch.rand(4, 4).double().exp()
    given = [
        (one if dim is not None else one[0]).clone().requires_grad_()
        for one, dim in zip((mean, std), dims, strict=True)
    ]
    together = torch.vmap(mean_softplus, dims)(*given)
    rows = torch.stack(
        [
            mean_softplus(
                *(
                    one if dim is None else one.select(dim, i)
                    for one, dim in zip(given, dims, strict=True)
                )
            )
            for i in range(4)
        ]
    )
    weights = torch.rand(4, 4).double()
    torch.testing.assert_close(together, rows)
    torch.testing.assert_close(
        torch.autograd.grad((together * weights).sum(), given),
        torch.autograd.grad((rows * weights).sum(), given),
    )


@pytest.mark.parametrize("std", [0.5, 2.0, 5.0])
def test_transforms_have_the_same_derivatives(std):
    mean, std = float64(0.4), float64(std)
    plain = [one.clone().requires_grad_() for one in (mean, std)]
    slopes = torch.autograd.grad(mean_softplus(*plain).sum(), plain)
    transformed = torch.func.grad(lambda m, s: mean_softplus(m, s).sum(), argnums=(0, 1))
    torch.testing.assert_close(transformed(mean, std), slopes, rtol=1e-8, atol=1e-9)
    second = torch.func.grad(lambda m: transformed(m, std)[0].sum())(mean)
    true = exact(lambda u, _: sigmoid(u) * sigmoid(-u), 0.4, std.item())
    assert second.item() == pytest.approx(true, rel=1e-7)


def test_a_second_derivative_is_refused_where_it_would_be_wrong():
    mean = float64(0.4).requires_grad_()
    (slope,) = torch.autograd.grad(mean_softplus(mean, float64(1.0)).sum(), mean, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(slope.sum(), mean)


def test_it_can_be_compiled():
    mean, std = float64(0.4, -1.0), float64(0.5, 7.0)
    compiled = torch.compile(mean_softplus, backend="eager")
    torch.testing.assert_close(compiled(mean, std), mean_softplus(mean, std))
    torch.compiler.reset()


def test_parts_that_no_member_of_a_vmap_needs_are_left_out(monkeypatch):
    narrow, wide = float64(0.5, 1.0, 1.1), float64(0.5, 1.0, 5.0)
    each = torch.vmap(mean_softplus)
    torch.testing.assert_close(each(wide, wide), mean_softplus(wide, wide))

    def refuse(*args):
        raise AssertionError("nobody is wide")

    monkeypatch.setattr("kasuri.posteriors.radial.softplus._wide", refuse)
    assert each(narrow, narrow).isfinite().all()
    with pytest.raises(AssertionError, match="nobody"):
        each(wide, wide)


def test_programs_are_made_for_all_numbers():
    narrow, wide = float64(0.1, 0.2), float64(2.0, 20.0)
    graph = make_fx(mean_softplus)(narrow, narrow)
    torch.testing.assert_close(graph(wide, wide), mean_softplus(wide, wide))
    through = torch.func.functionalize(mean_softplus)(wide, wide)
    torch.testing.assert_close(through, mean_softplus(wide, wide))

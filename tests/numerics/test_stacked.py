"""A function of stacked parameters is that of every member, with its gradients and its own noise."""

import pytest
import torch
from torch import nn

from kasuri.numerics.stacked import of_parameters


class Two(nn.Module):
    """A function of two parameters, one of which it may not look at."""

    def __init__(self, looks=True):
        super().__init__()
        self.a = nn.Parameter(torch.randn(3).double())
        self.b = nn.Parameter(torch.randn(2).double())
        self.looks = looks

    def value(self, leading):
        found = self.a.square().sum(-1)
        if self.looks:
            found = found * self.b.exp().sum(-1)
        assert found.dim() == leading
        return found

    def forward(self):
        return of_parameters(self, Two.value, draws=False)


def stacked(*shape):
    return {
        name: torch.randn(*shape, *one.shape).double() for name, one in Two().named_parameters()
    }


def of_one(module, values):
    return torch.func.functional_call(module, values, ())


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("dims", [{"a": 0, "b": 0}, {"a": 1, "b": None}, {"a": None, "b": 0}])
def test_values_and_gradients_are_those_of_the_members(looks, dims):
    module, whole = Two(looks), stacked(4)
    given = {
        name: (one[0] if dims[name] is None else one.movedim(0, dims[name])).requires_grad_()
        for name, one in whole.items()
    }
    together = torch.vmap(lambda v: of_one(module, v), (dims,), randomness="different")(given)
    rows = []
    for i in range(4):
        mine = {k: v if dims[k] is None else v.select(dims[k], i) for k, v in given.items()}
        found = mine["a"].square().sum()
        rows.append(found * mine["b"].exp().sum() if looks else found)
    torch.testing.assert_close(together, torch.stack(rows))
    weights = torch.randn(4).double()
    asked = list(given.values())[: 1 + looks]
    for _ in range(2):  # what is kept for backward is kept
        torch.testing.assert_close(
            torch.autograd.grad(together, asked, weights, retain_graph=True),
            torch.autograd.grad(torch.stack(rows), asked, weights, retain_graph=True),
        )


def test_vmaps_may_be_nested():
    module, whole = Two(), stacked(3, 4)
    inner = torch.vmap(lambda v: of_one(module, v), randomness="different")
    found = torch.vmap(inner, randomness="different")(whole)
    torch.testing.assert_close(found, whole["a"].square().sum(-1) * whole["b"].exp().sum(-1))


def test_members_draw_their_own_numbers_even_of_the_same_parameters():
    module = nn.Linear(2, 3)

    def draw(layer, leading):
        return layer.weight + torch.randn_like(layer.weight)

    found = torch.vmap(lambda _: of_parameters(module, draw, draws=True), randomness="different")(
        torch.ones(4)
    )
    assert found.shape == (4, 3, 2)
    assert len(found.unique()) == 24


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        found = torch.vmap(lambda v: of_one(Two(), v), randomness="different")(stacked(4))
    assert not found.requires_grad


def test_a_second_derivative_is_refused_rather_than_wrong():
    whole = {name: one.requires_grad_() for name, one in stacked(4).items()}
    found = torch.vmap(lambda v: of_one(Two(), v), randomness="different")(whole)
    (grad,) = torch.autograd.grad(found.sum(), whole["a"], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


def test_what_draws_nothing_needs_no_random_numbers():
    module, whole = Two(), stacked(4)
    state = torch.get_rng_state()
    found = torch.vmap(lambda v: of_one(module, v))(whole)  # where random numbers are refused
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(found, whole["a"].square().sum(-1) * whole["b"].exp().sum(-1))
    same = torch.vmap(lambda s: module() + s)(torch.zeros(2).double())
    torch.testing.assert_close(same, module.value(0).expand(2))


def test_the_module_is_left_alone():
    """Other threads may look at it while the function runs."""
    module = Two()
    seen = []

    def look(other, leading):
        seen.append((other.a.dim(), module.a.dim(), type(module.a)))
        return other.value(leading)

    own = torch.vmap(lambda s: of_parameters(module, look, draws=True) * s, randomness="different")
    own(torch.ones(3).double())
    assert seen == [(2, 1, nn.Parameter)]

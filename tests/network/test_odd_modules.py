"""Modules whose parameters are reached in unusual ways: converted rightly, or refused by name."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import kasuri


class Around(nn.Module):
    """The module in question, called `odd`, and what its parent does with it."""

    def __init__(self, odd: nn.Module, use: Any = lambda odd, x: odd(x)) -> None:
        super().__init__()
        self.odd = odd
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.odd, x)


class Stack(nn.Sequential):
    """A container with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.mix = nn.Parameter(torch.randn(4, 4))


def iterate(odd: Stack, x: Tensor) -> Tensor:
    for layer in odd:
        x = layer(x)
    return x @ odd.mix * len(odd)


def widen(odd: nn.Conv1d, x: Tensor) -> Tensor:
    odd.padding = (2,)
    y = odd(x[:, None])
    odd.padding = (0,)
    return y


def old(function: Any, **options: Any) -> nn.Module:
    """A layer whose weight is computed by a hook before every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return Around(function(nn.Linear(4, 4, bias=False), **options))


ODD = {
    "weight_norm": lambda: Around(parametrizations.weight_norm(nn.Linear(4, 4))),
    "spectral_norm": lambda: Around(parametrizations.spectral_norm(nn.Linear(4, 4))),
    "orthogonal": lambda: Around(parametrizations.orthogonal(nn.Linear(4, 4))),
    "old weight_norm": lambda: old(nn.utils.weight_norm),
    "old spectral_norm": lambda: old(nn.utils.spectral_norm),
    "pruned": lambda: old(prune.l1_unstructured, name="weight", amount=0.5),
    "list": lambda: Around(
        nn.ParameterList([torch.randn(4, 4), torch.randn(4, 2)]), lambda odd, x: x @ odd[0] @ odd[1]
    ),
    "dictionary": lambda: Around(
        nn.ParameterDict({"last": torch.randn(4, 2)}), lambda odd, x: x @ odd["last"]
    ),
    "container": lambda: Around(Stack(), iterate),
    "attribute set": lambda: Around(nn.Conv1d(1, 2, 3), widen),
    "read inside": lambda: Around(
        nn.MultiheadAttention(4, 2), lambda odd, x: odd(x, x, x)[0] @ odd.out_proj.weight
    ),
    "called inside": lambda: Around(
        nn.TransformerEncoderLayer(4, 2, 8, 0.0), lambda odd, x: odd(odd.linear2(odd.linear1(x)))
    ),
}


def convert(net: nn.Module, family: kasuri.Family, **options: Any) -> nn.Module | None:
    """The converted network, or None if it was refused by name."""
    try:
        return kasuri.bayesianize(net, family, **options)
    except ValueError as error:
        refusal = str(error)
    assert "odd" in refusal
    return None


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("bias", [True, False])
def test_odd_modules_are_right_or_refused(kind: str, bias: bool) -> None:
    net, x = ODD[kind]().eval(), torch.randn(3, 4)
    with torch.no_grad():
        expected = net(x)
    bnn = convert(net, kasuri.MeanField(scale=0.3), bias=bias)
    if bnn is None:
        return
    with torch.no_grad():
        assert torch.equal(bnn.eval()(x), expected)
        assert torch.equal(kasuri.collapse(bnn)(x), expected)
    with kasuri.using(bnn, "shared"):
        out = bnn(x)
        assert not torch.equal(bnn(x), out)
        out.square().sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())


@pytest.mark.parametrize("family", [kasuri.MeanField(), kasuri.KTied()])
def test_sparse_gradients_are_right_or_refused(family: kasuri.Family) -> None:
    bnn = convert(Around(nn.Embedding(7, 4, sparse=True)), family)
    if bnn is not None:
        bnn(torch.tensor([1, 2])).square().sum().backward()
        assert all(p.grad.abs().sum() > 0 for p in bnn.parameters())


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("layer", [nn.PReLU(2), nn.Linear(2, 2), nn.Conv1d(2, 2, 1)])
def test_estimators_where_only_a_vector_is_random(layer: nn.Module, estimator: str) -> None:
    """Nothing is known about such a layer's output: draw the vector, or refuse by name."""
    if not isinstance(layer, nn.PReLU):
        layer.weight.requires_grad_(False)
    bnn = convert(Around(layer), kasuri.MeanField(), estimator=estimator)
    x = torch.randn(2, 2, 3) if isinstance(layer, nn.Conv1d) else -torch.rand(2, 2)
    if bnn is not None:
        assert not torch.equal(bnn(x), bnn(x))


def test_containers_with_parameters_of_their_own_are_read_like_plain_ones() -> None:
    class Many(nn.ModuleList):
        def __init__(self, layers: Any = ()) -> None:
            super().__init__(layers)
            self.mix = nn.Parameter(torch.randn(4, 4))

    class Named(nn.ModuleDict):
        def __init__(self) -> None:
            super().__init__({"a": nn.Tanh(), "b": nn.Linear(4, 4)})
            self.mix = nn.Parameter(torch.randn(4, 4))

    many: Any = kasuri.bayesianize(Many([nn.Linear(4, 4), nn.Tanh()]), kasuri.MeanField())
    assert len(many) == len(list(many)) == 2
    assert many[-1] is many[1]
    assert isinstance(many[1], nn.Tanh)
    assert [type(layer).__name__ for layer in many[1:]] == ["Tanh"]
    named: Any = kasuri.bayesianize(Named(), kasuri.MeanField())
    assert list(named) == list(named.keys()) == ["a", "b"]
    assert [name for name, _ in named.items()] == ["a", "b"]
    assert "a" in named
    assert "posteriors" not in named
    assert len(list(named.values())) == len(named) == 2
    assert isinstance(named["b"], nn.Linear)
    row: Any = kasuri.bayesianize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), kasuri.MeanField())
    assert type(row[:1]) is nn.Sequential

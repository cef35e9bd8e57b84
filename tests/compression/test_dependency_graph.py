"""Torch-Pruning: the private interfaces that kasuri relies on, and graphs that its own way never ends in."""

import time

import pytest
import torch
import torch_pruning
from torch import Tensor, nn

import kasuri
from kasuri.compression.coupling import find_groups
from kasuri.compression.dependency_graph import OUTPUT, coupled_units
from kasuri.compression.units import masked_net


class Concatenated(nn.Module):
    """What a layer makes, behind an input of the network that the graph does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(torch.cat([x, self.first(x)], 1)))


def test_the_private_interfaces_are_there() -> None:
    """If this fails, Torch-Pruning has changed: `kasuri.compression.dependency_graph` has to follow it."""
    from torch_pruning._helpers import _HybridIndex
    from torch_pruning.dependency.index_mapping import _ConcatIndexMapping
    from torch_pruning.dependency.shape_infer import infer_channels_between

    net = Concatenated()
    graph = torch_pruning.DependencyGraph()
    graph.build_dependency(net, torch.randn(2, 2), verbose=False)
    nodes = list(graph.module2node.values())
    (joined,) = [node for node in nodes if type(node.module) is graph.ops._ConcatOp]
    assert joined.grad_fn is not None, "concatenations are recognised by it"
    assert hasattr(joined.module, "concat_sizes")
    assert hasattr(joined.module, "offsets")
    assert any(type(node.module) is graph.ops._OutputOp for node in nodes), "outputs stay"
    assert infer_channels_between(graph, joined.inputs[0], joined) == 3
    (into,) = [one for one in joined.inputs[0].dependencies if one.target is joined]
    assert len(into.index_mapping) == 2
    assert into.is_triggered_by(into.trigger)
    assert callable(into.handler)
    index = [_HybridIndex(idx=1, root_idx=1)]
    (there,) = _ConcatIndexMapping(offset=(2, 5), reverse=False)(index)
    (back,) = _ConcatIndexMapping(offset=(2, 5), reverse=True)([there])
    assert (there.idx, there.root_idx, back.idx) == (3, 1, 1)
    pruner = graph.get_pruner_of_module(net.first)
    assert pruner.get_out_channels(net.first) == 3
    assert graph.is_out_channel_pruning_fn(pruner.prune_out_channels)


def test_units_are_followed_to_where_they_are_read() -> None:
    net = Concatenated()
    last, first = coupled_units(net, torch.randn(2, 2), lambda net, x: net(x), lambda y: [y])
    assert last.root is net.last
    assert any(member.target == OUTPUT for member in last.members)
    read = {member.target: dict(member.units) for member in first.members if not member.makes}
    assert read[net.last] == {2: 0, 3: 1, 4: 2}


class GroupedQuery(nn.Module):
    """Attention whose keys and values are shared by several heads, between residual sums."""

    def __init__(self, heads: int = 4, shared: int = 2, size: int = 3) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, size
        width = heads * size
        self.embed = nn.Embedding(11, width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, shared * size)
        self.value = nn.Linear(width, shared * size)
        self.mix = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)
        self.out = nn.Linear(width, 11)

    def forward(self, words: Tensor) -> Tensor:
        h = self.embed(words)
        batch, length, width = h.shape
        q = self.query(h).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = (
            one(h).view(batch, length, self.shared, self.size).transpose(1, 2)
            for one in (self.key, self.value)
        )
        times = self.heads // self.shared
        k, v = (
            one[:, :, None].expand(batch, self.shared, times, length, self.size).flatten(1, 2)
            for one in (k, v)
        )
        half = q.shape[-1] // 2
        q = torch.cat([-q[..., half:], q[..., :half]], -1) + q  # as rotary embeddings do
        mixed = (q @ k.mT).softmax(-1) @ v
        h = h + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        return self.out(h + self.down(torch.relu(self.up(h))))


def test_grouped_query_attention_comes_to_an_end() -> None:
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(GroupedQuery().double(), kasuri.MeanField(scale=1e-3))
    with torch.no_grad():
        bnn.up.posteriors.weight.loc[:6] *= 1e-6
    words = torch.randint(11, (2, 5))
    start = time.perf_counter()
    small, report = kasuri.compress(bnn, words, calls=0)
    assert time.perf_counter() - start < 60
    assert small.up.out_features == 10, "what is clear goes"
    masked = masked_net(kasuri.collapse(bnn), report.masks).eval()
    torch.testing.assert_close(small(words), masked(words), rtol=0, atol=1e-10)


def test_a_network_without_a_graph_is_left_alone_and_said_so() -> None:
    class Untraceable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.inner(x))).detach()

    groups, notes = find_groups(Untraceable().double().eval(), torch.randn(2, 4).double())
    assert not groups
    assert notes


def test_without_torch_pruning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch_pruning", None)
    bnn = kasuri.bayesianize(nn.Linear(4, 2), kasuri.MeanField())
    with pytest.raises(ImportError, match=r"kasuri\[compress\]"):
        kasuri.compress(bnn, torch.randn(2, 4), calls=0)

"""Which units go together: marks are followed to where units are read."""

import time

import torch
from torch import Tensor, nn

import kasuri
from kasuri.compression.coupling import find_groups
from kasuri.compression.units import masked_net


class Concatenated(nn.Module):
    """What a layer makes, behind an input of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(torch.cat([x, self.first(x)], 1)))


def test_units_are_followed_to_where_they_are_read() -> None:
    first, last = find_groups(Concatenated().double().eval(), torch.randn(2, 2).double())[0]
    assert (first.obstacle, last.obstacle) == (None, "they are outputs of the network")
    (reader,) = first.readers
    assert (reader.layer, reader.units.tolist()) == ("last", [3, 3, 0, 1, 2]), "3 is none of them"


def test_units_that_are_multiplied_with_each_other_stay() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.GLU(), nn.Linear(4, 2)).double().eval()
    group, _ = find_groups(net, torch.randn(2, 3).double())[0]
    assert "mixed" in group.obstacle


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
    small, report = kasuri.compress(bnn, words)
    assert time.perf_counter() - start < 60
    assert small.up.out_features == 10, "what is clear goes"
    masked = masked_net(kasuri.collapse(bnn), report.masks).eval()
    torch.testing.assert_close(small(words), masked(words), rtol=0, atol=1e-10)

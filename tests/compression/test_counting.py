"""Counts against torch's own counter."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kasuri.compression.counting import count, uses
from tests.compression.networks import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
def test_multiply_accumulates_are_those_of_torch(name: str) -> None:
    net, x = NETWORKS[name][0]().double().eval(), NETWORKS[name][1](4)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    found = count(net, x)
    # torch's counter does not know attention itself on the processor: 2 · 5 · 5 · 16 products
    unseen = 800 if name == "attention" else 0
    assert 4 * 2 * (found.macs - unseen) == counter.get_total_flops()
    assert found.flops == 2 * found.macs + found.biases


def test_zeros_count_in_dense_computations_only() -> None:
    layer = nn.Linear(4, 3)
    layer.weight.data[:, 2:] = 0
    found = count(layer, torch.zeros(1, 4))
    assert (found.weights, found.nonzero) == (12, 6)
    assert (found.macs, found.sparse_macs, found.flops, found.table_flops) == (12, 6, 27, 9)


def test_sequences_with_time_first():
    x = torch.zeros(7, 2, 3)
    lstm = nn.LSTM(3, 5)
    macs = 7 * 4 * 5 * (3 + 5)
    assert (count(lstm, x).macs, count(lstm, x).biases) == (macs, 7 * 2 * 4 * 5)
    assert count(nn.LSTM(3, 5, batch_first=True), x.transpose(0, 1)).macs == macs
    each = uses(lstm, x)
    assert (
        sum(each[name] * p.numel() for name, p in lstm.named_parameters() if name in each) == macs
    )


class ByHand(nn.Module):
    """Attention, a decoder tied to an embedding, a convolution and a score, without torch's layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.maps = nn.Linear(8, 24)
        self.kernel = nn.Parameter(torch.randn(8, 8, 3))
        self.score = nn.Parameter(torch.randn(8))

    def forward(self, words):
        h = self.embedding(words)
        q, k, v = self.maps(h).chunk(3, -1)
        h = (q @ k.mT / 8**0.5).softmax(-1) @ v
        h = nn.functional.conv1d(h.mT, self.kernel, self.score, padding=1).mT
        h = h * (h @ self.score).softmax(-1).unsqueeze(-1)
        return nn.functional.linear(h, self.embedding.weight)


def test_products_of_a_networks_own_code():
    net, words = ByHand().double(), torch.randint(11, (4, 5))
    found = count(net, words)
    attention, kernel, score, decoder = 2 * 5 * 5 * 8, 5 * 8 * 8 * 3, 5 * 8, 5 * 8 * 11
    assert found.macs == 5 * 8 * 24 + attention + kernel + score + decoder
    assert found.biases == 5 * 24 + 5 * 8
    each = uses(net, words)
    assert each == {"embedding.weight": 5.0, "maps.weight": 5.0, "kernel": 5.0}
    net.embedding.weight.data[:, 3:] = 0
    assert count(net, words).macs - count(net, words).sparse_macs == 5 * 5 * 11


def test_attention_by_function_counts_like_that_by_hand():
    class Fast(ByHand):
        def forward(self, words):
            q, k, v = self.maps(self.embedding(words)).unsqueeze(1).chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    for net in (Fast(), Fast().double()):
        assert count(net, torch.randint(11, (4, 5))).macs == 5 * 8 * 24 + 2 * 5 * 5 * 8


class Made(nn.Module):
    """A function of inputs and one matrix (and one vector) as a network."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.randn(*shape))
        self.b = nn.Parameter(torch.randn(shape[-1]))

    def forward(self, x):
        return self.function(x, self.w, self.b)


def in_inference_mode(x, w, b):
    with torch.inference_mode():
        return nn.functional.linear(x, w.mT, b)


@pytest.mark.parametrize(
    ("function", "shape", "macs", "biases", "times"),
    [
        (lambda x, w, b: x @ w + b, (3, 4), 12 * 5, 4 * 5, 5),
        (lambda x, w, b: torch.addmm(b, x[:, 0], w), (3, 4), 12, 4, 1),
        (lambda x, w, b: torch.addmm(x[:, 0, :1], x[:, 0], w), (3, 4), 12, 0, 1),
        (lambda x, w, b: nn.functional.linear(x.flip(1).mT.mT, w.mT, b), (3, 4), 60, 20, 5),
        (in_inference_mode, (3, 4), 60, 20, 5),
        (lambda x, w, b: torch.einsum("bti,hio->bhto", x, w), (2, 3, 4), 24 * 5, 0, 5),
        (lambda x, w, b: x @ w.clone(), (3, 4), 60, 0, 5),
    ],
)
def test_products_whatever_they_are_called(function, shape, macs, biases, times):
    net, x = Made(function, *shape), torch.randn(2, 5, 3)
    found = count(net, x)
    assert (found.macs, found.biases, found.sparse_macs) == (macs, biases, macs)
    assert uses(net, x) == {"w": times}
    net.w.data[..., 2:] = 0
    assert 2 * count(net, x).sparse_macs == macs

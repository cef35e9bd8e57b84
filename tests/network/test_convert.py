"""Conversion and its inverse, for every kind of layer and every constructor option."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import kasuri

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]


class Raw(nn.Module):
    """Parameters of every rank, under names that a ModuleDict or a wrapper may use itself."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(4, 3))
        self.values = nn.Parameter(torch.randn(3))
        self.layer = nn.Parameter(torch.randn(2, 3, 3))
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.einsum("bi,hij->bhj", x @ self.keys + self.values, self.layer)


class Nested(nn.Module):
    """A raw parameter beside a block with another one and ordinary layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Raw()))
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(torch.cat([self.token, x])))


class Loop(nn.Module):
    """A cell stepped by the user."""

    def __init__(self, kind: type[nn.RNNCellBase], **options: Any) -> None:
        super().__init__()
        self.cell = kind(3, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs)


class Packed(nn.Module):
    """A recurrent layer fed sequences of different lengths."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = layer

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([3, 5]), enforce_sorted=False)
        out, state = self.rnn(packed)
        return pad_packed_sequence(out)[0], state


def rand(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*shape),)


def tokens(*rest: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(7, (3, 5)), *rest)


def pads() -> Tensor:
    """A mask that hides the end of the first sequence of two."""
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    return mask


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)


def decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.TransformerDecoder(layer, 2, nn.LayerNorm(4))


def seq() -> Tensor:
    return torch.randn(2, 5, 4)


CONV, DECONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d), nn.ConvTranspose2d
AFFINE: dict[str, Case] = {  # layers on which every estimator works
    "linear": (lambda: nn.Linear(4, 3), rand(2, 4)),
    "linear-no-bias": (lambda: nn.Linear(4, 3, bias=False), rand(2, 5, 4)),
    "linear-1d": (lambda: nn.Linear(4, 3), rand(4)),
    **{
        f"conv{d}d-{name}": (
            lambda d=d, o=options: CONV[d - 1](4, 6 if o.get("groups") != 4 else 8, 3, **o),
            rand(2, 4, *[7] * d),
        )
        for d in (1, 2, 3)
        for name, options in {
            "plain": {},
            "groups": {"groups": 2},
            "depthwise": {"groups": 4},
            "stride-dilation": {"stride": 2, "dilation": 2, "padding": 1, "bias": False},
            "same": {"padding": "same", "dilation": 2},
            **{m: {"padding": 1, "padding_mode": m} for m in ("reflect", "replicate", "circular")},
        }.items()
        if (d, name) != (3, "reflect") or hasattr(nn, "ReflectionPad3d")
    },
    "conv2d-unbatched": (lambda: nn.Conv2d(2, 3, 3), rand(2, 5, 5)),
    "deconv1d": (lambda: nn.ConvTranspose1d(4, 6, 3), rand(2, 4, 5)),
    "deconv1d-groups": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2),
        rand(2, 4, 5),
    ),
    "deconv2d": (lambda: DECONV(4, 6, 3, padding=1, dilation=2, bias=False), rand(2, 4, 5, 5)),
    "deconv2d-groups": (
        lambda: DECONV(4, 6, 3, stride=2, output_padding=1, groups=2),
        rand(2, 4, 5, 5),
    ),
    "deconv2d-output-size": (
        lambda: DECONV(4, 6, 3, stride=2),
        lambda: (torch.randn(2, 4, 5, 5), [12, 12]),
    ),
    "deconv3d-groups": (
        lambda: nn.ConvTranspose3d(4, 6, 2, stride=2, output_padding=1, groups=2),
        rand(2, 4, 3, 3, 3),
    ),
}
RECURRENT: dict[str, Case] = {
    "rnn": (lambda: nn.RNN(3, 4), rand(5, 2, 3)),
    "rnn-relu": (lambda: nn.RNN(3, 4, nonlinearity="relu", num_layers=2), rand(5, 2, 3)),
    "lstm": (lambda: nn.LSTM(3, 4), rand(5, 2, 3)),
    "lstm-deep": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), rand(5, 2, 3)),
    "lstm-projection": (lambda: nn.LSTM(3, 4, proj_size=2, num_layers=2), rand(5, 2, 3)),
    "lstm-batch-first": (lambda: nn.LSTM(3, 4, batch_first=True, bias=False), rand(2, 5, 3)),
    "lstm-state": (
        lambda: nn.LSTM(3, 4),
        lambda: (torch.randn(5, 2, 3), (torch.randn(1, 2, 4), torch.randn(1, 2, 4))),
    ),
    "lstm-packed": (lambda: Packed(nn.LSTM(3, 4, bidirectional=True)), rand(5, 2, 3)),
    "gru": (lambda: nn.GRU(3, 4, bidirectional=True, bias=False), rand(5, 2, 3)),
    "gru-state": (
        lambda: nn.GRU(3, 4, batch_first=True, num_layers=2),
        lambda: (torch.randn(2, 5, 3), torch.randn(2, 2, 4)),
    ),
    "gru-packed": (lambda: Packed(nn.GRU(3, 4)), rand(5, 2, 3)),
    "rnn-cell": (lambda: Loop(nn.RNNCell), rand(5, 2, 3)),
    "lstm-cell": (lambda: Loop(nn.LSTMCell), rand(5, 2, 3)),
    "gru-cell": (lambda: Loop(nn.GRUCell, bias=False), rand(5, 2, 3)),
}
ATTENTION: dict[str, Case] = {
    "attention": (lambda: nn.MultiheadAttention(4, 2), lambda: (seq(),) * 3),
    "attention-first": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True, bias=False),
        lambda: (seq(), seq(), seq(), pads()),
    ),
    "attention-kdim": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=6, add_bias_kv=True, add_zero_attn=True),
        lambda: (torch.randn(5, 2, 4), torch.randn(6, 2, 3), torch.randn(6, 2, 6)),
    ),
    "encoder": (encoder, lambda: (seq(),)),
    "encoder-mask": (encoder, lambda: (seq(), None, pads())),
    "encoder-norm-first": (lambda: encoder(norm_first=True, bias=False), lambda: (seq(),)),
    "decoder": (decoder, lambda: (seq(), seq(), None, None, None, pads())),
    "transformer": (
        lambda: nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True),
        lambda: (seq(), seq(), None, nn.Transformer.generate_square_subsequent_mask(5)),
    ),
}
OTHER: dict[str, Case] = {
    "bilinear": (lambda: nn.Bilinear(3, 4, 2), lambda: (torch.randn(2, 3), torch.randn(2, 4))),
    "bilinear-no-bias": (
        lambda: nn.Bilinear(3, 4, 2, bias=False),
        lambda: (torch.randn(2, 3), torch.randn(2, 4)),
    ),
    "embedding": (lambda: nn.Embedding(7, 4), tokens()),
    "embedding-padding": (lambda: nn.Embedding(7, 4, padding_idx=0), tokens()),
    "embedding-max-norm": (lambda: nn.Embedding(7, 4, max_norm=0.5), tokens()),
    "bag-mean": (lambda: nn.EmbeddingBag(7, 4), tokens()),
    "bag-sum": (
        lambda: nn.EmbeddingBag(7, 4, mode="sum", padding_idx=1),
        tokens(None, torch.rand(3, 5)),
    ),
    "bag-max": (lambda: nn.EmbeddingBag(7, 4, mode="max"), tokens()),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), rand(2, 4)),
    "raw": (Raw, rand(2, 4)),
    "nested": (Nested, rand(2, 4)),
}
ALL = AFFINE | RECURRENT | ATTENTION | OTHER
FAMILIES = {"mean-field": kasuri.MeanField(scale=0.1), "k-tied": kasuri.KTied(rank=2, scale=0.1)}
each_case = pytest.mark.parametrize("name", ALL)
pytestmark = [  # torch's own, about its own kernels
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


def make(name: str, dtype: torch.dtype | None = None) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(3)
    build, inputs = ALL[name]
    net, args = build(), inputs()
    if dtype is not None:
        net, args = net.to(dtype), cast(args, dtype)
    return net, args


def cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, tuple):
        return tuple(cast(one, dtype) for one in x)
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def leaves(x: Any) -> list[Tensor]:
    """All tensors of an output."""
    if isinstance(x, tuple | list):
        return [leaf for part in x for leaf in leaves(part)]
    return [x] if isinstance(x, Tensor) else []


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit."""
    pairs = list(zip(leaves(a), leaves(b), strict=True))
    return bool(pairs) and all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs)


def silence(bnn: nn.Module) -> nn.Module:
    """Drive every standard deviation to exactly 0 (e^-1000 in either precision)."""
    with torch.no_grad():
        for name, parameter in bnn.named_parameters():
            if name.rpartition(".")[2].startswith("log_"):
                parameter.fill_(-1000.0)
    return bnn


def fingerprint(net: nn.Module) -> tuple[Any, ...]:
    """Everything a conversion must leave as it is."""
    parts = [
        (name, id(m), type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
        for name, m in net.named_modules()
    ]
    tensors = [(k, id(p), p.clone()) for k, p in net.named_parameters(remove_duplicate=False)]
    return parts, [t[:2] for t in tensors], [t[2] for t in tensors]


@each_case
@pytest.mark.parametrize("family", FAMILIES)
def test_zero_scale_is_the_layer_itself(name: str, family: str) -> None:
    net, args = make(name)
    expected = net(*args)
    for estimator in ("shared", "mean", *(("local", "flipout") if name in AFFINE else ())):
        bnn = silence(kasuri.bayesianize(net, FAMILIES[family], estimator=estimator))
        assert bnn.training
        assert same(bnn(*args), expected), estimator


@each_case
@pytest.mark.parametrize("grad", [True, False])
def test_evaluation_mode_is_the_layer_itself(name: str, grad: bool) -> None:
    net, args = make(name)
    bnn = kasuri.bayesianize(net.eval(), FAMILIES["k-tied"]).eval()
    with torch.set_grad_enabled(grad):  # without gradients attention takes its fast path
        assert same(bnn(*args), net(*args))


@each_case
def test_collapse_is_the_inverse(name: str) -> None:
    net, args = make(name)
    before = fingerprint(net)
    bnn = kasuri.bayesianize(net, FAMILIES["k-tied"])
    bnn(*args)
    again = kasuri.collapse(bnn)
    after = fingerprint(net)
    assert after[:2] == before[:2]
    assert all(map(torch.equal, after[2], before[2]))
    assert list(again.state_dict()) == list(net.state_dict())
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert all(map(torch.equal, again.state_dict().values(), net.state_dict().values()))
    assert [type(m) for m in again.modules()] == [type(m) for m in net.modules()]
    assert same(again(*args), net(*args))
    assert b"kasuri" not in pickle.dumps(again)  # no class, hook or function of kasuri anywhere
    assert list(kasuri.named_posteriors(bnn))  # collapse works on a copy


@each_case
def test_draws_differ_and_gradients_reach_every_parameter(name: str) -> None:
    net, args = make(name)
    bnn = kasuri.bayesianize(net, FAMILIES["k-tied"])
    first, second = bnn(*args), bnn(*args)
    assert not same(first, second)
    loss = sum((out * torch.randn_like(out)).sum() for out in leaves(first))
    loss.backward()
    for key, parameter in bnn.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


@each_case
def test_copies_and_state(name: str) -> None:
    net, args = make(name)
    bnn = kasuri.bayesianize(net, FAMILIES["k-tied"])
    early = copy.deepcopy(bnn)
    bnn(*args)
    late = copy.deepcopy(bnn)
    file = io.BytesIO()
    torch.save(bnn.state_dict(), file)
    file.seek(0)
    other = kasuri.bayesianize(ALL[name][0](), FAMILIES["k-tied"])
    other.load_state_dict(torch.load(file, weights_only=True))
    with kasuri.frozen(bnn, seed=5):
        expected = bnn(*args)
    for one in (early, late, other):
        with kasuri.frozen(one, seed=5):
            assert same(one(*args), expected)
        assert not {id(p) for p in one.parameters()} & {id(p) for p in bnn.parameters()}
        one(*args)


@each_case
def test_float64(name: str) -> None:
    net, args = make(name, torch.float64)
    bnn = kasuri.bayesianize(net, FAMILIES["k-tied"])
    assert {p.dtype for p in bnn.parameters()} == {torch.float64}
    assert all(out.dtype == torch.float64 for out in leaves(bnn(*args)) if out.is_floating_point())
    assert same(silence(bnn)(*args), net(*args))


@pytest.mark.parametrize("name", [*RECURRENT, *ATTENTION])
def test_blocks_change_the_posterior_not_the_layer(name: str) -> None:
    net, args = make(name)
    bnn = kasuri.bayesianize(net, FAMILIES["k-tied"], blocks=True)
    assert same(silence(bnn)(*args), net(*args))
    assert same(kasuri.collapse(bnn)(*args), net(*args))
    stacked = [q for _, q in kasuri.named_posteriors(bnn) if len(q.shape) == 3]
    assert bool(stacked) == ("rnn" not in name)


def test_hooks_of_the_user_run_once_with_the_layers_input_and_output() -> None:
    net, seen = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 2)), []
    net[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    net[0].register_forward_hook(lambda m, args, out: seen.append((args[0], out)))
    net[1].register_forward_hook(lambda m, args, out: out[0])
    net.register_forward_hook(lambda m, args, out: out * 2)
    net[0].register_full_backward_hook(lambda m, grad_in, grad_out: seen.append(grad_out[0]))
    x = torch.randn(4, 3, requires_grad=True)
    bnn = kasuri.bayesianize(net, kasuri.MeanField(), inplace=True)
    bnn(x).sum().backward()
    assert len(seen) == 2
    assert torch.equal(seen[0][0], x + 1)
    seen.clear()
    plain = kasuri.collapse(bnn)
    assert same(bnn.eval()(x), plain.eval()(x))
    assert len(seen) == 2
    assert same(seen[0][1], seen[1][1])


def test_conversion_keeps_the_mode_of_every_module() -> None:
    net = Nested()
    net.norm.eval()  # e.g. statistics frozen while fine-tuning
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    assert bnn.training
    assert not bnn.norm.training
    assert [m.training for m in kasuri.collapse(bnn).modules()] == [
        m.training for m in net.modules()
    ]

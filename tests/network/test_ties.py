"""Tied weights, shared modules, modules used several times: one posterior, one draw, one KL."""

import io
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.utils.checkpoint import checkpoint

import kasuri
from kasuri.network import calls

LOUD = kasuri.MeanField(scale=0.5)


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(x))))


class Reader(nn.Module):
    """The same without a head: the embedding's weight is read where it is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.embed(x), self.embed.weight)


class Shared(nn.Module):
    """One module under two names, the second inside a container."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Tanh(), self.first)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Repeated(nn.Module):
    """One module called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x


class Aliased(nn.Module):
    """One parameter under two names of the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.up = self.down = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.up) @ self.down.T


class Recursive(nn.Module):
    """A network that calls itself, as tree-shaped ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        here = self.layer(x)
        return torch.cat([self(x, depth - 1), here, self.layer(x)]) if depth else here


WORDS, REALS = torch.tensor([[1, 2, 3], [4, 5, 1]]), torch.randn(2, 4)
NETS: dict[str, tuple[type[nn.Module], Tensor, int]] = {  # class, input, distinct weights
    "tied": (Tied, WORDS, 7 * 4 + 4 * 4 + 4),
    "reader": (Reader, WORDS, 7 * 4),
    "shared": (Shared, REALS, 4 * 4 + 4),
    "repeated": (Repeated, REALS, 4 * 4 + 4),
    "aliased": (Aliased, REALS, 4 * 4),
    "recursive": (Recursive, REALS, 4 * 4 + 4),
}
each_net = pytest.mark.parametrize("name", NETS)


def build(name: str) -> tuple[nn.Module, Tensor]:
    kind, x, _ = NETS[name]
    return kind(), x


def identities(net: nn.Module) -> list[int]:
    """For every parameter name, the position of the first name of the same object."""
    ids = [id(p) for _, p in net.named_parameters(remove_duplicate=False)]
    return [ids.index(one) for one in ids]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records which posterior drew, at every draw."""
    record: list[int] = []
    draw = calls.draw

    def recording(posterior: kasuri.Posterior) -> Tensor:
        record.append(id(posterior))
        return draw(posterior)

    monkeypatch.setattr(calls, "draw", recording)
    return record


@each_net
def test_one_posterior_and_one_draw_per_forward(name: str, drawn: list[int]) -> None:
    net, x = build(name)
    bnn = kasuri.bayesianize(net, LOUD)
    posteriors = dict(kasuri.named_posteriors(bnn))
    assert sum(q.numel() for q in posteriors.values()) == NETS[name][2]
    assert kasuri.summary(bnn).weights == NETS[name][2]
    first = bnn(x)
    assert sorted(drawn) == sorted(id(q) for q in posteriors.values())
    assert not torch.equal(bnn(x), first)
    assert len(drawn) == 2 * len(posteriors)


@each_net
def test_a_forward_pass_is_an_ordinary_network(name: str, drawn: list[int]) -> None:
    """Whatever was drawn, there is a collapsed network that computes the same."""
    net, x = build(name)
    bnn = kasuri.bayesianize(net, LOUD)
    with kasuri.frozen(bnn, seed=4):
        out = bnn(x)
    plain = kasuri.collapse(bnn, "sample", seed=4)
    assert torch.equal(plain(x), out)
    assert identities(plain) == identities(net)


@each_net
def test_collapse_restores_the_tie(name: str) -> None:
    net, x = build(name)
    again = kasuri.collapse(kasuri.bayesianize(net, LOUD))
    assert identities(again) == identities(net)
    assert list(again.state_dict()) == list(net.state_dict())
    assert torch.equal(again(x), net(x))


@each_net
def test_kl_is_counted_once(name: str) -> None:
    bnn = kasuri.bayesianize(build(name)[0], LOUD)
    kl = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(0.3), num_data=10).kl()
    oracle = sum(
        kl_divergence(Normal(q.mean, q.variance.sqrt()), Normal(0.0, 0.3)).sum()
        for _, q in kasuri.named_posteriors(bnn)
    )
    assert torch.allclose(kl, oracle, rtol=1e-5)
    assert sum(p.numel() for p in bnn.parameters()) == 2 * NETS[name][2]


@each_net
def test_gradients_of_all_uses_add_up(name: str) -> None:
    """The mean's gradient at scale 0 is that of the ordinary tied network."""
    net, x = build(name)
    bnn = kasuri.bayesianize(net, LOUD)
    with torch.no_grad():
        for key, parameter in bnn.named_parameters():
            if key.endswith("log_scale"):
                parameter.fill_(-1000.0)
    net(x).square().sum().backward()
    bnn(x).square().sum().backward()
    names = dict(net.named_parameters())
    for key, q in kasuri.named_posteriors(bnn):
        assert torch.equal(q.loc.grad, names[key].grad), key


@each_net
def test_state_and_file_round_trips(name: str, tmp_path: Any) -> None:
    net, x = build(name)
    bnn = kasuri.bayesianize(net, LOUD)
    file = io.BytesIO()
    torch.save(bnn.state_dict(), file)
    file.seek(0)
    by_state = kasuri.bayesianize(build(name)[0], LOUD)
    by_state.load_state_dict(torch.load(file, weights_only=True))
    kasuri.save(bnn, tmp_path / "net.safetensors")
    by_file = kasuri.load(tmp_path / "net.safetensors", build(name)[0])
    for other in (by_state, by_file):
        with kasuri.frozen(bnn, seed=2), kasuri.frozen(other, seed=2):
            assert torch.equal(bnn(x), other(x))
        assert identities(kasuri.collapse(other)) == identities(net)


def test_what_other_code_reads_is_the_draw_in_use() -> None:
    bnn, read = kasuri.bayesianize(Reader(), LOUD), []
    bnn.embed.register_forward_hook(lambda m, args, out: read.append((m.weight, out)))
    bnn(WORDS)
    ((weight, out),) = read
    assert torch.equal(F.embedding(WORDS, weight), out)
    assert torch.equal(bnn.embed.weight, dict(kasuri.named_posteriors(bnn))["embed.weight"].mean)


def test_mean_is_what_is_read_in_evaluation_mode() -> None:
    net = Reader()
    assert torch.equal(kasuri.bayesianize(net, LOUD).eval()(WORDS), net(WORDS))


@pytest.mark.parametrize("where", ["head", "embed", nn.Linear, ["body", "embed"]])
def test_choosing_one_of_the_tied_is_refused(where: Any) -> None:
    net = Tied()
    with pytest.raises(ValueError, match=r"tied.*where=\['embed', 'head'\]") as error:
        kasuri.bayesianize(net, LOUD, where=where, inplace=True)
    assert "'embed.weight'" in str(error.value)
    assert "'head.weight'" in str(error.value)
    assert type(net.head) is nn.Linear
    assert net.head.weight is net.embed.weight
    bnn = kasuri.bayesianize(net, LOUD, where=["embed", "head"])  # what the message advises
    assert {name for name, _ in kasuri.named_posteriors(bnn)} == {"embed.weight"}


def tied_pair() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    return net


@pytest.mark.parametrize(("make", "why"), [(tied_pair, "tied"), (Shared, "several places")])
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_estimators_that_would_untie_are_refused(make: Any, why: str, estimator: str) -> None:
    with pytest.raises(ValueError, match=f"{estimator}.*{why}.*shared"):
        kasuri.bayesianize(make(), LOUD, estimator=estimator)
    bnn = kasuri.bayesianize(make(), LOUD)
    with (
        pytest.raises(ValueError, match=f"{estimator}.*{why}.*shared"),
        kasuri.using(bnn, estimator),
    ):
        bnn(REALS)


def test_a_use_without_gradients_does_not_take_them_from_the_others() -> None:
    class Target(Repeated):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.layer(x)
            return self.layer(x) * target

    bnn = kasuri.bayesianize(Target(), LOUD)
    bnn(REALS).sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())


class Checkpointed(Repeated):
    """Two uses of a layer, the second in a checkpoint."""

    reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x))
        if self.reentrant is None:
            return torch.tanh(self.layer(x)).sum()
        return torch.tanh(checkpoint(self.layer, x, use_reentrant=self.reentrant)).sum()


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_is_right_or_refused(reentrant: bool) -> None:
    bnn = kasuri.bayesianize(Checkpointed(), LOUD)
    grads = []
    for bnn.reentrant in (None, reentrant):
        with kasuri.frozen(bnn, seed=3):
            bnn(REALS).backward()
        grads.append([p.grad for p in bnn.parameters()])
        bnn.zero_grad()
    assert all(torch.allclose(a, b) for a, b in zip(*grads, strict=True))
    with pytest.raises(RuntimeError, match=r"checkpoint.*kasuri\.frozen"):
        bnn(REALS).backward()


# GPT-2: tied head, transposed Conv1D weights, outputs that are not tensors


@pytest.fixture(scope="module")
def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=16,
        vocab_size=50,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def prompt() -> Tensor:
    return torch.arange(2, 16).reshape(2, 7)


def test_gpt2_converts_trains_and_collapses(gpt2: nn.Module, drawn: list[int]) -> None:
    ids = prompt()
    bnn = kasuri.bayesianize(gpt2, kasuri.KTied(rank=2, scale=0.05))
    with torch.no_grad():
        assert torch.equal(bnn.eval()(ids).logits, gpt2(ids).logits)
    bnn.train()
    drawn.clear()
    first = bnn(ids, labels=ids)
    assert len(drawn) == len(set(drawn)) == len(dict(kasuri.named_posteriors(bnn)))
    assert not torch.equal(bnn(ids).logits, first.logits)
    first.loss.backward()
    assert all(p.grad is not None for p in bnn.parameters())
    assert "lm_head.weight" not in dict(kasuri.named_posteriors(bnn))  # it is the embedding's
    again = kasuri.collapse(bnn).eval()
    assert again.lm_head.weight is again.transformer.wte.weight
    assert list(again.state_dict()) == list(gpt2.state_dict())
    with torch.no_grad():
        assert torch.equal(again(ids).logits, gpt2(ids).logits)


def test_gpt2_head_alone_is_refused(gpt2: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"tied.*transformer\.wte"):
        kasuri.bayesianize(gpt2, kasuri.MeanField(), where=kasuri.last_layer(gpt2))


def test_gpt2_generates(gpt2: nn.Module) -> None:
    bnn = kasuri.bayesianize(gpt2, kasuri.KTied(rank=1, scale=0.3))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = gpt2.generate(prompt(), **options)
    assert torch.equal(kasuri.collapse(bnn).eval().generate(prompt(), **options), expected)
    texts = [
        kasuri.collapse(bnn, "sample", seed=s).eval().generate(prompt(), **options) for s in (1, 2)
    ]
    for one, two in itertools.pairwise([expected, *texts]):
        assert one.shape != two.shape or not torch.equal(one, two)
    with kasuri.frozen(bnn.eval(), seed=1):  # many calls, one function
        assert torch.equal(bnn.generate(prompt(), **options), texts[0])


def test_gpt2_state_round_trip(gpt2: nn.Module) -> None:
    bnn = kasuri.bayesianize(gpt2, kasuri.KTied(rank=2))
    other = kasuri.bayesianize(type(gpt2)(gpt2.config), kasuri.KTied(rank=2))
    file = io.BytesIO()
    torch.save(bnn.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    with kasuri.frozen(bnn, seed=2), kasuri.frozen(other, seed=2), torch.no_grad():
        assert torch.equal(bnn.eval()(prompt()).logits, other.eval()(prompt()).logits)


def test_gpt2_objective_counts_the_tied_weight_once(gpt2: nn.Module) -> None:
    bnn = kasuri.bayesianize(gpt2, kasuri.MeanField())
    elbo = kasuri.ELBO(
        bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=9, output=lambda o: o.logits
    )
    oracle = sum(
        kl_divergence(Normal(q.mean, q.scale), Normal(0.0, 1.0)).sum()
        for _, q in kasuri.named_posteriors(bnn)
    )
    loss, nll, kl = elbo(prompt(), prompt())
    assert torch.allclose(kl, oracle, rtol=1e-5)
    assert torch.allclose(loss, nll + kl / 9)
    random = sum(p.numel() for n, p in gpt2.named_parameters() if "ln_" not in n)
    assert kasuri.summary(bnn).weights == random

"""Tied weights, shared modules, modules used several times: one posterior, one draw, one KL."""

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

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
    bnn = kasuri.bayesianize(net, LOUD, estimator="shared")
    posteriors = dict(kasuri.named_posteriors(bnn))
    assert sum(q.numel() for q in posteriors.values()) == NETS[name][2]
    assert kasuri.summary(bnn).weights == NETS[name][2]
    first = bnn(x)
    assert sorted(drawn) == sorted(id(q) for q in posteriors.values())
    assert not torch.equal(bnn(x), first)
    assert len(drawn) == 2 * len(posteriors)


@each_net
def test_auto_draws_weights_that_are_used_more_than_once(name: str) -> None:
    """All uses see one draw; that there are several is found out in the first call."""
    net, x = build(name)
    bnn = kasuri.bayesianize(net, LOUD, estimator="auto")
    bnn(x)
    one = x[:1].expand(4, *x.shape[1:])
    for copied in (bnn, copy.deepcopy(bnn)):
        out = copied(one)
        torch.testing.assert_close(out, out[:1].expand_as(out))


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

"""A converted layer keeps its class and everything else but where its parameters come from."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kasuri
from kasuri.network import calls
from kasuri.network.random import random_class

LOUD = kasuri.MeanField(scale=0.5)


class Net(nn.Module):
    """A method besides forward, a hook, an option that code sets, a norm and a tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=2)
        self.body = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def features(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.body(self.embed(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


WORDS = torch.tensor([[1, 2, 3], [4, 2, 1]])


def test_class_name_repr_and_state_names() -> None:
    net = Net()
    bnn = kasuri.bayesianize(net, LOUD, bias=False)
    assert isinstance(bnn, Net)
    assert isinstance(bnn.body, nn.Linear)
    assert type(bnn).__qualname__ == Net.__qualname__
    assert bnn.body.extra_repr() == net.body.extra_repr()
    assert "BayesianLinear" in repr(bnn)
    plain = {"body.bias", "norm.weight", "norm.bias"}
    assert {name for name in bnn.state_dict() if "posteriors" not in name} == plain
    assert type(copy.deepcopy(bnn).body) is type(bnn.body) is random_class(nn.Linear)


def test_methods_besides_forward_and_hooks() -> None:
    net, seen = Net().eval(), []
    net.body.register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
    bnn = kasuri.bayesianize(net, LOUD)
    with torch.no_grad():
        assert torch.equal(bnn.eval().features(WORDS), net.features(WORDS))
        assert not torch.equal(bnn.train().features(WORDS), bnn.features(WORDS))
        with kasuri.frozen(bnn, seed=1):
            features = bnn.features(WORDS)
            assert torch.equal(bnn(WORDS), F.linear(features, bnn.head.weight))
    assert set(seen) == {"Linear"}


def test_copies_and_pickles_keep_ties_and_draws() -> None:
    bnn = kasuri.bayesianize(Net(), LOUD)
    for twin in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):
        assert twin.head.posteriors.weight is twin.embed.posteriors.weight
        with kasuri.frozen(bnn, seed=3), kasuri.frozen(twin, seed=3):
            assert torch.equal(bnn(WORDS), twin(WORDS))


def test_the_padding_row_is_the_mean_for_everyone_tied_to_it() -> None:
    bnn = kasuri.bayesianize(Net(), LOUD)
    mean = bnn.embed.weight.detach()
    with kasuri.frozen(bnn, seed=1):
        for layer in (bnn.embed, bnn.head):
            assert torch.equal(layer.weight[2], mean[2])
            assert not torch.equal(layer.weight[3], mean[3])


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_random_parameter_cannot_be_replaced_or_deleted(name: str) -> None:
    bnn = kasuri.bayesianize(nn.Linear(2, 2), LOUD)
    before = bnn.state_dict()
    with pytest.raises(AttributeError, match="bayesianize"):
        setattr(bnn, name, nn.Parameter(torch.zeros(2)))
    with pytest.raises(AttributeError, match="random"):
        delattr(bnn, name)
    with pytest.raises(KeyError):
        bnn.register_parameter(name, nn.Parameter(torch.zeros(2)))
    assert bnn.state_dict().keys() == before.keys()


class Peek(nn.Module):
    """Reads a weight before (or after) the layer is called, as adapters do for its type."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.first = first

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.layer.weight if self.first else None
        y = self.layer(x)
        return y, self.layer.weight if weight is None else weight


@pytest.mark.parametrize("estimator", ["local", "flipout", "auto"])
def test_a_weight_that_is_read_is_the_one_that_is_used(estimator: str) -> None:
    bnn, x = kasuri.bayesianize(Peek(True), LOUD, estimator=estimator), torch.randn(5, 3)
    with kasuri.using(bnn, estimator):
        y, weight = bnn(x)
    difference = y - F.linear(x, weight)
    torch.testing.assert_close(difference, difference[:1].expand_as(y))  # one bias for all rows
    late = kasuri.bayesianize(Peek(False), LOUD, estimator=estimator)
    if estimator == "auto":  # finds out, and draws the weight from then on
        late(x)
        y, weight = late(x)
        difference = y - F.linear(x, weight)
        torch.testing.assert_close(difference, difference[:1].expand_as(y))
    else:
        with pytest.raises(RuntimeError, match="shared"):
            late(x)
    assert calls.state.call is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_half_precision_networks_learn_their_standard_deviations(
    dtype: torch.dtype, when: str, estimator: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    family = kasuri.KTied(rank=1, scale=1e-3)
    if when == "before":
        bnn = kasuri.bayesianize(net.to(dtype), family, estimator=estimator)
    else:
        bnn = kasuri.bayesianize(net, family, estimator=estimator).to(dtype)
    assert all(p.dtype == torch.float32 for p in bnn.parameters())
    assert bnn[0].weight.dtype == dtype
    x, y = torch.randn(64, 4, dtype=dtype), torch.randint(3, (64,))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=64)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-3)
    before = elbo.kl()
    for _ in range(20):
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()
    assert bnn(x).dtype == dtype
    assert elbo.kl() < before - 1  # steps of 1e-3 in log σ would be lost in half precision
    assert kasuri.collapse(bnn)[0].weight.dtype == dtype


class Conv1D(nn.Module):
    """The linear layer of GPT-2."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(5, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,eoi->beo", x, self.up)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv1D(2, 3), (2, 3)),
        (Experts(), (5, 2, 3)),
        (nn.Bilinear(3, 4, 2), (2, 12)),
        (nn.Conv2d(3, 2, 2), (2, 12)),
        (nn.ConvTranspose2d(3, 2, 2), (2, 12)),
        (nn.Embedding(6, 3), (6, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_last_side_of_a_posterior_is_the_fan_in(layer: nn.Module, shape: tuple) -> None:
    family = kasuri.KTied(rank=1)
    bnn = kasuri.bayesianize(layer, family, bias=False)
    ((name, q),) = kasuri.named_posteriors(bnn)
    assert tuple(q.shape) == shape
    assert torch.equal(getattr(kasuri.collapse(bnn), name), getattr(layer, name))


class TinyRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


class NormalMap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))


def test_gains_of_norm_layers_stay_fixed() -> None:
    net = nn.Sequential(nn.Linear(3, 3), TinyRMSNorm(), nn.LayerNorm(3), NormalMap())
    bnn = kasuri.bayesianize(net, LOUD)
    names = {name for name, _ in kasuri.named_posteriors(bnn)}
    assert names == {"0.weight", "0.bias", "3.weight"}
    assert "norm layer" in str(kasuri.summary(bnn))


@pytest.mark.parametrize("training", [True, False])
def test_frozen_and_using_hold_inside_an_objective(training: bool) -> None:
    bnn = kasuri.bayesianize(nn.Linear(3, 2), LOUD)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=9).train(training)
    x, y = torch.randn(4, 3), torch.randint(2, (4,))
    with kasuri.frozen(bnn, seed=5):
        nll = F.cross_entropy(bnn(x), y)
        assert torch.equal(elbo(x, y).nll, nll)
    with kasuri.using(bnn, "mean"):
        assert torch.equal(elbo(x, y).nll, F.cross_entropy(kasuri.collapse(bnn)(x), y))
    assert not torch.equal(elbo(x, y).nll, elbo(x, y).nll)


def test_collapse_draws_anew_without_a_seed_and_the_mean_needs_no_randomness() -> None:
    bnn, state = kasuri.bayesianize(Net(), LOUD), torch.get_rng_state()
    assert torch.equal(kasuri.collapse(bnn).body.weight, bnn.body.weight)
    assert torch.equal(torch.get_rng_state(), state)
    first, second = (kasuri.collapse(bnn, "sample").body.weight for _ in range(2))
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="draw='draw'"):
        kasuri.collapse(bnn, "draw")


class Interrupted(nn.Module):
    """A network that can fail after its first layer, as real ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.error is not None:
            raise self.error
        return self.layer(x)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("around", ["nothing", "frozen", "using"])
def test_a_call_that_fails_leaves_nothing_behind(error: BaseException, around: str) -> None:
    bnn, x = kasuri.bayesianize(Interrupted(), LOUD), torch.ones(2, 3)
    keys = list(bnn.state_dict())
    contexts = {"frozen": kasuri.frozen(bnn, seed=1), "using": kasuri.using(bnn, "local")}
    bnn.error = error
    with contexts.get(around, nullcontext()), pytest.raises(type(error)):
        bnn(x)
    bnn.error = None
    assert list(bnn.state_dict()) == keys
    assert calls.state.call is None
    assert not calls.state.overrides
    assert not torch.equal(bnn(x), bnn(x))
    assert torch.equal(copy.deepcopy(bnn).eval()(x), bnn.eval()(x))


class Mixed(nn.Module):
    """Two precisions, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2).double()
        self.idle = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).double())


@pytest.mark.parametrize("where", [None, ["first", "second"]])
def test_mixed_precisions_and_unused_parameters(where: list[str] | None) -> None:
    bnn = kasuri.bayesianize(Mixed(), kasuri.KTied(), where=where)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(0.3), num_data=50)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.01)
    elbo(torch.ones(1, 3), torch.tensor([0])).loss.backward()
    optimiser.step()
    posteriors = [q for _, q in kasuri.named_posteriors(bnn)]
    assert {q.mean.dtype for q in posteriors} == {torch.float32, torch.float64}
    exact = sum(q.kl(kasuri.Normal(0.3)).double() for q in posteriors)
    torch.testing.assert_close(elbo.kl().double(), exact, rtol=1e-5, atol=0.0)


def test_no_attribute_shadows_a_method_of_module() -> None:
    bnn = kasuri.bayesianize(Net(), kasuri.KTied())
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(0.3), num_data=50)
    methods = {name for name in dir(nn.Module) if callable(getattr(nn.Module, name))}
    for module in elbo.modules():
        assert not methods & set(vars(module))

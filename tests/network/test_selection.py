"""What a conversion chooses, refuses and counts; what it cannot do right it must refuse."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kasuri
from kasuri.network import estimators
from kasuri.network.random import Random, conversion_of
from kasuri.posteriors.k_tied import KTiedPosterior
from kasuri.posteriors.mean_field import MeanFieldPosterior


class Net(nn.Module):
    """Names to choose from."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3))
        self.fc1 = nn.Linear(2, 4)
        self.fc2 = nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(self.features(x).mean((2, 3))))) + self.shift


IMAGES = torch.randn(5, 1, 6, 6)
CONVS = {f"features.{i}.{p}" for i in (0, 2) for p in ("weight", "bias")}
DENSE = {f"fc{i}.{p}" for i in (1, 2) for p in ("weight", "bias")}


def chosen(bnn: nn.Module) -> set[str]:
    return {name for name, _ in kasuri.named_posteriors(bnn)}


def untouched(net: nn.Module) -> bool:
    """Whether nothing of a conversion is to be seen."""
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    return not any(isinstance(m, Random) for m in net.modules()) and not any(hooks)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, CONVS | DENSE | {"shift"}),
        ("*", CONVS | DENSE | {"shift"}),
        ("fc?", DENSE),
        ("fc1", {"fc1.weight", "fc1.bias"}),
        ("features", CONVS),
        ("features.2", {"features.2.weight", "features.2.bias"}),
        ("features.*", CONVS),
        (nn.Linear, DENSE),
        (nn.Sequential, CONVS),
        (nn.Module, CONVS | DENSE | {"shift"}),
        (lambda name, module: name.endswith("2") and isinstance(module, nn.Linear), {"fc2"}),
        (lambda name, module: name == "", {"shift"}),
        (["fc1", nn.Conv2d], CONVS | {"fc1.weight", "fc1.bias"}),
        (("fc2", lambda name, module: "0" in name), {"fc2", "features.0"}),
    ],
)
def test_where(where: Any, expected: set[str]) -> None:
    names = chosen(kasuri.bayesianize(Net(), kasuri.KTied(), where=where))
    full = {
        n for n in CONVS | DENSE | {"shift"} if n in expected or n.rpartition(".")[0] in expected
    }
    assert names == full


def test_last_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)))
    assert kasuri.last_layer(net) == "2.0"
    bnn = kasuri.bayesianize(net, kasuri.KTied(), where=kasuri.last_layer(net))
    assert chosen(bnn) == {"2.0.weight", "2.0.bias"}
    root = nn.Linear(2, 2)
    bnn = kasuri.bayesianize(root, kasuri.KTied(), where=kasuri.last_layer(root))
    assert chosen(bnn) == {"weight", "bias"}
    with pytest.raises(ValueError, match="no layer with parameters"):
        kasuri.last_layer(nn.Sequential(nn.ReLU(), nn.LayerNorm(2)))


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("fc3", "'fc1' or 'fc2'|'fc2' or 'fc1'"),
        ("feature", "'features'"),
        ("FC1", "'fc1'|there is"),
        (nn.ConvTranspose2d, "'Conv2d'"),
        (nn.BatchNorm2d, "norm layer"),
        ("features.1", "'features.0'|norm"),
        ([], "there is"),
        (lambda name, module: False, "there is"),
        (["fc1", "fc9"], "'fc9'.*fc"),  # a misspelt part must not be dropped in silence
    ],
)
def test_matching_nothing_is_refused_with_near_misses(where: Any, hint: str) -> None:
    net = Net()
    with pytest.raises(ValueError, match=f"(?s)where=.*({hint})"):
        kasuri.bayesianize(net, kasuri.KTied(), where=where, inplace=True)
    assert untouched(net)


def test_two_calls_mix_families() -> None:
    net = Net()
    bnn = kasuri.bayesianize(net, kasuri.MeanField(), where="features")
    bnn = kasuri.bayesianize(bnn, kasuri.KTied(rank=3), where="fc*", estimator="local")
    kinds = {name: type(q) for name, q in kasuri.named_posteriors(bnn)}
    tied = {name for name, kind in kinds.items() if kind is KTiedPosterior}
    assert tied == {"fc1.weight", "fc2.weight"}
    assert set(kinds) == CONVS | DENSE
    assert {conversion_of(bnn.fc1).estimator, conversion_of(bnn.features[0]).estimator} == {
        estimators.local,
        estimators.auto,
    }
    bnn = kasuri.bayesianize(bnn, kasuri.Point())  # the rest
    assert chosen(bnn) == CONVS | DENSE | {"shift"}
    assert torch.equal(bnn.eval()(IMAGES), net.eval()(IMAGES))
    assert torch.equal(kasuri.collapse(bnn)(IMAGES), net(IMAGES))
    assert not torch.equal(bnn.train()(IMAGES), bnn(IMAGES))
    with pytest.raises(ValueError, match="Bayesian already"):
        kasuri.bayesianize(bnn, kasuri.Point())


@pytest.mark.parametrize("order", [("self_attn", None), ("linear*", None), ("linear1", "self_*")])
@pytest.mark.parametrize("training", [True, False])
def test_two_calls_on_one_transformer_layer(order: tuple[Any, Any], training: bool) -> None:
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).train(training)
    bnn = kasuri.bayesianize(net, kasuri.KTied(), where=order[0])
    bnn = kasuri.bayesianize(bnn, kasuri.MeanField(), where=order[1])
    x = torch.randn(2, 3, 4)
    with torch.no_grad(), kasuri.using(bnn, "mean"):
        assert torch.equal(bnn(x), net(x))
    with torch.no_grad(), kasuri.using(bnn, "shared"):
        assert not torch.equal(bnn(x), bnn(x))
    assert list(kasuri.collapse(bnn).state_dict()) == list(net.state_dict())


def test_bias_option() -> None:
    net = Net()
    assert chosen(kasuri.bayesianize(net, kasuri.KTied(), bias=False)) == {
        name for name in CONVS | DENSE if name.endswith("weight")
    }
    bnn = kasuri.bayesianize(net, kasuri.KTied(), bias=kasuri.Point())
    kinds = {n: type(q).__name__ for n, q in kasuri.named_posteriors(bnn)}
    assert {kinds[n] for n in kinds if n.endswith("bias")} == {"PointPosterior"}
    assert kinds["fc1.weight"] == "KTiedPosterior"
    default = dict(
        kasuri.named_posteriors(kasuri.bayesianize(net, kasuri.KTied(scale=0.3, noise=0.0)))
    )
    assert isinstance(default["fc1.bias"], MeanFieldPosterior)  # a vector has nothing to tie
    assert torch.allclose(default["fc1.bias"].scale, torch.tensor(0.3))
    with pytest.raises(TypeError, match="bias=3"):
        kasuri.bayesianize(net, kasuri.KTied(), bias=3)
    with pytest.raises(ValueError, match="vector"):
        kasuri.bayesianize(net, kasuri.MeanField(), bias=kasuri.KTied())


@pytest.mark.parametrize("family", ["k-tied", None, MeanFieldPosterior, nn.ReLU(), lambda w: w])
def test_what_is_no_family_is_refused(family: Any) -> None:
    net = Net()
    with pytest.raises(TypeError, match=r"kasuri\.Posterior"):
        kasuri.bayesianize(net, family, inplace=True)
    assert untouched(net)


def test_frozen_parameters_stay() -> None:
    net = Net()
    net.features.requires_grad_(False)
    net.fc1.weight.requires_grad_(False)
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    assert chosen(bnn) == DENSE - {"fc1.weight"} | {"shift"}
    left = {row.name: (row.reason, row.parameters) for row in kasuri.summary(bnn).left}
    assert left["fc1.weight"] == left["features.0.weight"] == ("frozen", 0)
    assert left["features.1.weight"] == ("frozen", 0)
    assert not bnn.fc1.weight.requires_grad
    assert torch.equal(kasuri.collapse(bnn).eval()(IMAGES), net.eval()(IMAGES))
    with pytest.raises(ValueError, match="requires_grad=False"):
        kasuri.bayesianize(net, kasuri.MeanField(), where="features")


def test_inplace_and_its_absence() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert kasuri.bayesianize(net, kasuri.KTied()) is not net
    assert untouched(net)
    assert kasuri.bayesianize(net, kasuri.KTied(), inplace=True) is net
    assert chosen(net) == {"0.weight", "0.bias"}
    root = nn.Linear(2, 2)
    assert kasuri.bayesianize(root, kasuri.KTied(), inplace=True) is root
    assert torch.equal(kasuri.collapse(root)(torch.ones(2)), root.eval()(torch.ones(2)))


UNFIT = [nn.LSTM(2, 2), nn.GRUCell(2, 2), nn.Embedding(5, 2), nn.Bilinear(2, 2, 2)]
UNFIT += [nn.MultiheadAttention(2, 1), nn.TransformerEncoderLayer(2, 1, 4)]


@pytest.mark.parametrize("layer", UNFIT, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("estimator", ["local", "flipout", estimators.local])
def test_estimators_that_do_not_fit_are_refused(layer: nn.Module, estimator: Any) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer))
    word = estimator if isinstance(estimator, str) else estimator.__name__
    why = rf"(?s){word}.*'1\.0.*Linear and conv.*\"shared\".*where="
    with pytest.raises(ValueError, match=why):
        kasuri.bayesianize(net, kasuri.MeanField(), estimator=estimator, inplace=True)
    assert untouched(net)
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    with pytest.raises(ValueError, match=why), kasuri.using(bnn, estimator):
        pytest.fail("the context was entered")


def test_flipout_needs_independent_weights_and_unknown_estimators_near_misses() -> None:
    with pytest.raises(ValueError, match=r"flipout.*Point"):
        kasuri.bayesianize(Net(), kasuri.Point(), estimator="flipout")
    with pytest.raises(ValueError, match="'flipout'"):
        kasuri.bayesianize(Net(), kasuri.MeanField(), estimator="flip-out")


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm, nn.LayerNorm, nn.RMSNorm])
def test_norm_layers_stay_deterministic(norm: type[nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), norm(4), nn.GroupNorm(2, 4))
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    assert chosen(bnn) == {"0.weight", "0.bias"}
    assert (type(bnn[1]), type(bnn[2])) == (norm, nn.GroupNorm)


@pytest.mark.parametrize("where", ["1", nn.LayerNorm, "2", nn.ReLU])
def test_asking_for_what_cannot_be_random_says_what_it_is(where: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())
    with pytest.raises(ValueError, match=r"'[12]' \((LayerNorm|ReLU)\) is a norm layer.*or has no"):
        kasuri.bayesianize(net, kasuri.MeanField(), where=where)


@pytest.mark.parametrize("family", [kasuri.MeanField(), kasuri.KTied(3)])
def test_the_summary_counts_parameters_and_says_why_some_are_left(family: kasuri.Family) -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(20, 8), "lstm": nn.LSTM(8, 8)})
    net["lstm"].bias_hh_l0.requires_grad_(False)
    bnn = kasuri.bayesianize(net, family, where="lstm", bias=False)
    summary = kasuri.summary(bnn)
    assert summary.parameters == sum(p.numel() for p in bnn.parameters() if p.requires_grad)
    assert summary.weights == 2 * 32 * 8
    reasons = {row.name: row.reason for row in summary.left}
    assert reasons["lstm.bias_ih_l0"] == "bias=False"
    assert reasons["lstm.bias_hh_l0"] == "frozen"
    assert reasons["embed.weight"] == "not chosen"


def test_the_printed_summary_has_every_parameter_and_the_total() -> None:
    text = str(kasuri.summary(kasuri.bayesianize(Net(), kasuri.KTied(), where="fc*")))
    for name, _ in Net().named_parameters():
        assert re.search(rf"^{re.escape(name)} ", text, re.MULTILINE), name
    assert "norm layer" in text

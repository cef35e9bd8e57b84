"""Predictions without draws: exact where possible, linear for small noise, close to draws elsewhere."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

import kasuri
from kasuri.prediction.moments.moment_network import MomentNetwork
from tests.laws.families import FAMILIES
from tests.prediction.moments.nets import NAMES, make

CORRELATED = [name for name in FAMILIES if "radial" not in name and not name.startswith("point")]


def randomise(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize("name", CORRELATED)
def test_pull_is_a_root_of_the_covariance(name):
    posterior = FAMILIES[name](torch.randn(2, 3)).double()
    randomise(posterior)
    with torch.no_grad():
        draw = torch.vmap(lambda _: posterior.rsample(), randomness="different")
        draws = draw(torch.empty(20_000)).flatten(1)
        pulled = posterior.pull(torch.eye(6, dtype=torch.float64).reshape(6, 2, 3))
    full = pulled @ pulled.T
    scale = full.diagonal().sqrt()
    assert torch.allclose(full.diagonal(), posterior.variance.flatten())
    found = torch.cov(draws.T)
    assert ((found - full) / (scale[:, None] * scale)).abs().max() < 0.05


def test_pull_of_blocks_and_masks():
    q = kasuri.MatrixNormal(scale=0.5)(torch.randn(2, 3, 4)).double()
    randomise(q)
    pulled = q.pull(torch.eye(24, dtype=torch.float64).reshape(24, 2, 3, 4))
    full = pulled @ pulled.T
    assert torch.allclose(full.diagonal(), q.variance.flatten())
    assert torch.equal(full[:12, 12:], torch.zeros(12, 12, dtype=torch.float64))
    from kasuri.posteriors.masked import masked

    mask = torch.rand(2, 3, 4) > 0.5
    left = masked(q, mask).pull(torch.eye(24, dtype=torch.float64).reshape(24, 2, 3, 4))
    keep = mask.flatten().double()
    assert torch.allclose(left @ left.T, full * keep * keep[:, None])


def dense_covariance(bnn, x):
    """J Σ Jᵀ of every example, from gradients of the mean network and draws' variances."""
    net = kasuri.collapse(bnn).eval()
    spread = {name: q for name, q in kasuri.named_posteriors(bnn)}
    parameters = dict(net.named_parameters())
    found = []
    for one in x:
        out = functional_call(net, parameters, (one.unsqueeze(0),))[0]
        rows = []
        for value in out:
            slopes = torch.autograd.grad(value, [parameters[n] for n in spread], retain_graph=True)
            pieces = []
            for (name, q), slope in zip(spread.items(), slopes, strict=True):
                scale = q.variance.reshape(slope.shape).sqrt()
                if name == "embedding.weight":
                    scale = scale * (torch.arange(len(scale)) != 0).unsqueeze(1)
                pieces.append((slope * scale).flatten())
            rows.append(torch.cat(pieces))
        j = torch.stack(rows)
        found.append(j @ j.T)
    return torch.stack(found)


@pytest.mark.parametrize("name", NAMES)
def test_small_noise_is_linear(name):
    net, x = make(name)
    x = x.double() if x.is_floating_point() else x
    bnn = kasuri.bayesianize(net.double(), kasuri.MeanField(scale=1e-7, noise=0.5)).eval()
    mean, full = MomentNetwork(bnn, (x,)).moments(x)
    expected = dense_covariance(bnn, x).detach()
    largest = expected.abs().amax((1, 2), keepdim=True)
    assert ((full - expected) / largest).abs().max() < 1e-4
    assert torch.allclose(mean, bnn(x), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_close_to_draws(name):
    net, x = make(name)
    matrices = name in ("lenet", "transformer")
    family = kasuri.MatrixNormal(scale=0.05) if matrices else kasuri.KTied(rank=2, scale=0.05)
    bnn = kasuri.bayesianize(net, family)
    for posterior in dict(kasuri.named_posteriors(bnn)).values():
        for key, parameter in posterior.named_parameters():
            if "lower" in key:  # correlations, which start at 0
                nn.init.normal_(parameter, std=0.5)
    draws = kasuri.predict(bnn, x, samples=500, seed=0)
    full = kasuri.predict_moments(bnn, x)
    assert (full.std / draws.std).log().mean().abs() < 0.06
    assert (full.std / draws.std).log().std() < 0.08
    assert ((full.mean - draws.mean) / draws.std).abs().mean() < 0.15


def test_a_last_layer_is_exact():
    net, x = make("mlp")
    bnn = kasuri.bayesianize(
        net, kasuri.FullNormal(scale=0.3), where=kasuri.last_layer(net)
    ).double()
    x = x.double()
    layer = bnn[4]
    randomise(layer.posteriors)
    features = nn.Sequential(*list(bnn)[:4])(x).detach()
    weight, bias = layer.posteriors.weight, layer.posteriors.bias
    factor = weight.side.factor()
    sigma = (factor @ factor.T).reshape(3, 10, 3, 10)
    expected = torch.einsum("bi,oipj,bj->bop", features, sigma, features)
    expected = expected + torch.diag(bias.variance)
    _, full = MomentNetwork(bnn.eval(), (x,)).moments(x)
    assert torch.allclose(full, expected.detach())


def test_words_of_a_prediction(monkeypatch):
    monkeypatch.setattr(MomentNetwork, "affordable", lambda *_: 4)  # examples at once, of six
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.2))
    classes = kasuri.predict_moments(bnn, x, likelihood=kasuri.Categorical())
    draws = kasuri.predict(bnn, x, samples=2000, likelihood=kasuri.Categorical(), seed=0)
    assert torch.allclose(classes.mean, draws.mean, atol=0.02)
    assert torch.allclose(classes.mutual_information, draws.mutual_information, atol=0.02)
    assert torch.allclose(classes.mean.sum(-1), torch.ones(6))
    real = kasuri.predict_moments(bnn, x, likelihood=kasuri.Gaussian(0.5))
    plain = kasuri.predict_moments(bnn, x)
    assert torch.allclose(real.std.square(), plain.std.square() + 0.25, rtol=1e-4)
    low, high = real.interval(0.9)
    normal = torch.distributions.Normal(real.mean, real.std)
    assert torch.allclose(normal.cdf(high) - normal.cdf(low), torch.full((6, 3), 0.9), atol=5e-3)


def test_the_network_and_the_generator_stay_as_they_are():
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MeanField()).train()
    before = copy.deepcopy(bnn.state_dict())
    state = torch.get_rng_state()
    one, two = (kasuri.predict_moments(bnn, x).mean for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), state)
    assert bnn.training
    assert all(torch.equal(value, before[key]) for key, value in bnn.state_dict().items())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.dense = nn.Linear(4, 2)

    def forward(self, x):
        return self.dense(x * self.gain).sort(-1).values


def test_refusals_are_sentences():
    x = torch.randn(5, 4)
    bnn = kasuri.bayesianize(Scaled(), kasuri.MeanField())
    with pytest.raises(ValueError, match=r"gain is used by aten\.mul.*kasuri\.predict with draws"):
        kasuri.predict_moments(bnn, x)
    with pytest.raises(ValueError, match="no Bayesian layer"):
        kasuri.predict_moments(Scaled(), x)


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.above, self.below = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.above(x) / 2 / (self.below(x).sigmoid() + 1)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (Ratio, (20, 4)),
        (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.MaxPool1d(4, ceil_mode=True)), (9, 1, 7)),
    ],
)
def test_what_has_no_rule_is_taken_at_the_mean(net, shape):
    """A random divisor, and windows that stick out: close to draws where there is little noise."""
    torch.manual_seed(0)
    bnn, x = kasuri.bayesianize(net(), kasuri.MeanField(scale=0.003)), torch.randn(shape)
    drawn = kasuri.predict(bnn, x, samples=4000, seed=0).std
    found = kasuri.predict_moments(bnn, x).std
    assert (found / drawn).log().mean().abs() < 0.05


def test_many_outputs_have_their_own_standard_deviations():
    """More outputs than the points can be stretched for."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 100))
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.1, noise=0.0)).double().eval()
    x = torch.randn(20, 3).double()
    _, covariance = MomentNetwork(bnn, (x,)).moments(x)
    wanted = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    torch.testing.assert_close(kasuri.predict_moments(bnn, x).std, wanted)

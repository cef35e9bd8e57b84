"""Defects reproduced in other libraries, one test each, by number.

Without a test, because there is nothing here in which they could occur:
20 (compression of convolutional networks crashes): no compression yet. The second half, an
   attribute that shadows a method of Module, is tested.
21 (the package does not import): every test file imports kasuri.
22 (von Mises-Fisher entropy not finite in high dimension): no such family yet.
23 (dense default covariance): no family with a dense covariance; that the parameters of every
   family grow with rows plus columns or with weights is tested under 16.
"""

import copy
import io
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as td

import kasuri

FAMILIES = [kasuri.MeanField(scale=0.1), kasuri.KTied(rank=2, scale=0.1)]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for ins, outs in itertools.pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def elbo_of(bnn: nn.Module, num_data: int = 50, scale: float = 0.3) -> kasuri.ELBO:
    return kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(scale), num_data=num_data)


def exact_kl(bnn: nn.Module, scale: float = 0.3) -> Tensor:
    prior = td.Normal(0.0, scale)
    posteriors = [q for _, q in kasuri.named_posteriors(bnn)]
    return sum(
        td.kl_divergence(td.Normal(q.mean, q.variance.sqrt()), prior).sum() for q in posteriors
    )


def silence(bnn: nn.Module, value: float = -1000.0) -> nn.Module:
    """Set every raw parameter of a scale."""
    with torch.no_grad():
        for name, parameter in bnn.named_parameters():
            if name.rpartition(".")[2].startswith("log_"):
                parameter.fill_(value)
    return bnn


@each_family
def test_kl_is_a_sum_and_does_not_depend_on_the_batch(family: kasuri.Family) -> None:
    """peer defect #1: the KL was averaged over weights and then divided by the batch size."""
    bnn = kasuri.bayesianize(mlp(20, 30, 5), family)
    elbo = elbo_of(bnn)
    for batch in (2, 7):
        loss, nll, kl = elbo(torch.randn(batch, 20), torch.randint(5, (batch,)))
        assert torch.allclose(kl, exact_kl(bnn), rtol=1e-5)
        assert torch.allclose(loss, nll + kl / 50)
    with kasuri.frozen(bnn, seed=1):
        x, y = torch.randn(3, 20), torch.randint(5, (3,))
        once, twice = elbo(x, y), elbo(torch.cat([x, x]), torch.cat([y, y]))
    assert torch.allclose(once.loss, twice.loss, rtol=1e-6)


@each_family
@pytest.mark.parametrize("wrap", [False, True])
def test_attention_converts(family: kasuri.Family, wrap: bool) -> None:
    """peer defect #2: attention failed, its output projection being matched by class name."""
    net = nn.TransformerEncoderLayer(8, 2, 16, 0.0) if wrap else nn.MultiheadAttention(8, 2)
    x = torch.randn(5, 3, 8)
    args = (x,) if wrap else (x, x, x)
    bnn = kasuri.bayesianize(net, family)
    out, again = bnn(*args), bnn(*args)
    assert not torch.equal(out if wrap else out[0], again if wrap else again[0])
    names = [name for name, _ in kasuri.named_posteriors(bnn)]
    assert any(name.endswith("out_proj.weight") for name in names)


def test_lstm_options_are_kept() -> None:
    """peer defect #3: layers, directions, batch_first and dropout of an LSTM were dropped."""
    net = nn.LSTM(4, 8, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
    bnn = kasuri.bayesianize(net, kasuri.KTied())
    x = torch.randn(3, 5, 4)
    expected, (h, c) = net(x)
    out, (h_drawn, c_drawn) = bnn(x)
    assert (out.shape, h_drawn.shape, c_drawn.shape) == (expected.shape, h.shape, c.shape)
    silence(bnn)
    assert not torch.equal(bnn(x)[0], bnn(x)[0])  # dropout is the only randomness left
    assert torch.equal(bnn.eval()(x)[0], net.eval()(x)[0])


def test_an_lstm_has_one_draw_per_sequence_and_one_kl() -> None:
    """peer defect #4: weights were drawn at every time step, the KL counted twice."""
    bnn = kasuri.bayesianize(nn.LSTM(3, 4), kasuri.MeanField(scale=0.5))
    with torch.no_grad():
        bnn.posteriors.weight_hh_l0.loc.zero_()
        bnn.posteriors.weight_hh_l0.log_scale.fill_(-1000.0)
        bnn.posteriors.bias_ih_l0.loc[4:8] = -1e4  # the forget gate is shut: no memory is left
        bnn.posteriors.bias_ih_l0.log_scale.fill_(-1000.0)
    x = torch.randn(1, 2, 3).expand(6, 2, 3)
    out, _ = bnn(x)
    assert torch.allclose(out, out[:1].expand_as(out))  # equal inputs, equal weights
    assert not torch.allclose(bnn(x)[0], out)
    kl = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(0.3), num_data=1).kl()
    exact = sum(q.kl(kasuri.Normal(0.3)) for _, q in kasuri.named_posteriors(bnn))
    assert torch.allclose(kl, exact)
    assert len(list(kasuri.named_posteriors(bnn))) == 4


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
@pytest.mark.parametrize(
    "net",
    [
        nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    ],
    ids=["output_padding", "circular", "reflect"],
)
def test_convolution_options_are_kept(net: nn.Module, estimator: str) -> None:
    """peer defect #5: output_padding and padding_mode were lost."""
    bnn = kasuri.bayesianize(net, kasuri.KTied(), estimator=estimator)
    x = torch.randn(2, 2, 8, 8)
    assert bnn(x).shape == net(x).shape
    assert torch.equal(silence(bnn)(x), net(x))


@pytest.mark.parametrize("learn", ["gradient", "closed form", None])
def test_a_learned_prior_survives_saving(learn: str | None, tmp_path: Path) -> None:
    """peer defect #6: an empirical prior was neither moved nor saved."""
    net = mlp(3, 4, 2)
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    means = [q.mean for _, q in kasuri.named_posteriors(bnn)]
    assert all(map(torch.equal, means, net.parameters()))  # pretrained weights are the start
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(0.7, learn=learn), num_data=9)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.1)
    elbo(torch.randn(4, 3), torch.tensor([0, 1, 1, 0])).loss.backward()
    optimiser.step()
    if learn == "gradient":
        assert elbo.priors[0].scale != pytest.approx(0.7)
    path = tmp_path / "net.safetensors"
    kasuri.save(bnn, path, objective=elbo)
    again = kasuri.load_objective(path, kasuri.load(path, mlp(3, 4, 2)))
    assert torch.equal(again.kl(), elbo.kl())
    assert again.priors[0].scale == pytest.approx(elbo.priors[0].scale, rel=1e-6)
    assert again.priors[0].learn == learn


def test_ties_roots_precision_and_extremes() -> None:
    """peer defect #7: ties undone, a bare Linear skipped, float64 broken, rho = 100 infinite."""
    shared = nn.Linear(3, 3)
    bnn = kasuri.bayesianize(nn.Sequential(shared, nn.Tanh(), shared), kasuri.MeanField())
    assert bnn[0] is bnn[2]
    root = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    assert not torch.equal(root(torch.ones(3)), root(torch.ones(3)))
    double = kasuri.bayesianize(mlp(3, 4, 2).double(), kasuri.KTied())
    assert double(torch.ones(1, 3, dtype=torch.float64)).dtype == torch.float64
    single = kasuri.bayesianize(mlp(3, 4, 2), kasuri.KTied()).double()
    assert elbo_of(single)(torch.ones(1, 3).double(), torch.tensor([0])).loss.dtype == torch.float64
    for family in FAMILIES:
        for raw in (100.0, -100.0):
            loud = silence(kasuri.bayesianize(mlp(3, 4, 2), family), raw)
            loss, _, kl = elbo_of(loud)(torch.ones(1, 3), torch.tensor([0]))
            (loss + kl).backward()
            assert kl.isfinite()
            assert all(p.grad.isfinite().all() for p in loud.parameters())


def test_evaluation_mode_is_deterministic_and_exports() -> None:
    """peer defect #8: eval() still sampled; vmap and torch.export failed."""
    net, x = mlp(3, 4, 2), torch.randn(5, 3)
    bnn = kasuri.bayesianize(net, kasuri.KTied(scale=0.5)).eval()
    assert torch.equal(bnn(x), net(x))
    exported = torch.export.export(bnn, (x,)).module()
    assert torch.equal(exported(x), net(x))
    bnn.train()
    draw = torch.vmap(lambda i: bnn(x) + 0 * i, randomness="different")
    draws = draw(torch.arange(4.0))
    assert draws.shape == (4, 5, 2)
    assert len({float(one.sum()) for one in draws.detach()}) == 4


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


@pytest.mark.parametrize("error", [None, ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_copies_after_a_forward_pass(error: BaseException | None, estimator: str) -> None:
    """peer defect #9, #15: deepcopy raised after a forward pass; here also after a failed one."""
    bnn = kasuri.bayesianize(Interrupted(), kasuri.MeanField(scale=0.5), estimator=estimator)
    bnn.error = error
    if error is None:
        bnn(torch.ones(2, 3))
    else:
        with pytest.raises(type(error)):
            bnn(torch.ones(2, 3))
    bnn.error = None
    twin = copy.deepcopy(bnn)
    assert torch.equal(twin.eval()(torch.ones(2, 3)), bnn.eval()(torch.ones(2, 3)))
    assert torch.equal(bnn.layer.weight, bnn.layer.posteriors.weight.mean)


@pytest.mark.parametrize("prior", [kasuri.Normal(0.1), kasuri.HeNormal(gain=0.01, bias_scale=0.1)])
def test_prior_density_has_no_floor(prior: kasuri.Prior) -> None:
    """peer defect #10: a floor under the density switched the prior off for large weights."""
    w = torch.tensor([0.0, 1.0, -5.0, 50.0], requires_grad=True)
    density = prior.log_prob(w)
    assert torch.allclose(density, td.Normal(0.0, 0.1).log_prob(w))
    density.sum().backward()
    assert torch.allclose(w.grad, -w.detach() / 0.01)


@each_family
def test_flipout_has_no_noise_without_scale(family: kasuri.Family) -> None:
    """peer defect #11: flipout perturbed by mean + scale·noise instead of scale·noise."""
    net, x = mlp(6, 5, 4), torch.randn(7, 6)
    bnn = silence(kasuri.bayesianize(net, family, estimator="flipout"))
    assert torch.equal(bnn(x), net(x))


@each_family
def test_state_holds_every_number_once(family: kasuri.Family) -> None:
    """peer defect #12: bias=False still had biases; tensors were stored twice, noise as well."""
    bnn = kasuri.bayesianize(nn.Linear(20, 30, bias=False), family)
    bnn(torch.ones(20))
    state = bnn.state_dict()
    assert not any("bias" in key for key in state)
    extra = 600 if isinstance(family, kasuri.MeanField) else 2 * (20 + 30)
    assert sum(value.numel() for value in state.values()) == 600 + extra


@each_family
def test_kl_is_not_divided_by_layers_and_has_no_stray_constants(family: kasuri.Family) -> None:
    """peer defect #13: KL divided by the number of layers, plus ½ per weight."""
    bnn = kasuri.bayesianize(mlp(10, 10, 10, 10, 10), family)
    parts = [kasuri.bayesianize(mlp(10, 10), family) for _ in range(4)]
    for part, layer in zip(parts, (0, 2, 4, 6), strict=True):
        part[0].load_state_dict(bnn[layer].state_dict())
    total = elbo_of(bnn).kl()
    assert torch.allclose(total, sum(elbo_of(part).kl() for part in parts), rtol=1e-5)
    assert torch.allclose(total, exact_kl(bnn), rtol=1e-5)
    at_prior = silence(kasuri.bayesianize(mlp(4, 4), kasuri.MeanField()), 0.0)
    with torch.no_grad():
        for _, q in kasuri.named_posteriors(at_prior):
            q.loc.zero_()
    assert elbo_of(at_prior, scale=1.0).kl().abs() < 1e-4


def test_samples_are_different_networks() -> None:
    """peer defect #14: n samples were n references to one."""
    bnn = kasuri.bayesianize(mlp(3, 4, 2), kasuri.KTied(scale=0.3))
    x = torch.randn(5, 3)
    pred = kasuri.predict(bnn, x, samples=6)
    assert len({float(one.sum()) for one in pred.draws}) == len(set(pred.seeds)) == 6
    nets = [kasuri.collapse(bnn, "sample") for _ in range(3)]
    assert len({float(net[0].weight.detach().sum()) for net in nets}) == 3
    assert len({net[0].weight.data_ptr() for net in nets}) == 3


@each_family
def test_sizes_stay_linear_and_draws_are_functions(family: kasuri.Family) -> None:
    """peer defect #16: a covariance with 1.6e9 entries; per-example noise at test time."""
    bnn = kasuri.bayesianize(nn.Linear(200, 200), family, estimator="local")
    assert sum(p.numel() for p in bnn.parameters()) <= 2 * (200 * 200 + 200)
    x = torch.randn(1, 200).expand(4, 200)
    assert not torch.equal(bnn(x)[0], bnn(x)[1])  # while training: fresh noise per example
    for draw in kasuri.predict(bnn, x, samples=3).draws:
        assert torch.equal(draw, draw[:1].expand_as(draw))
    with kasuri.frozen(bnn, seed=0):
        assert torch.equal(bnn(x)[:1].expand(4, 200), bnn(x))


def contexts(bnn: nn.Module) -> Iterator[AbstractContextManager[nn.Module]]:
    yield kasuri.frozen(bnn, seed=1)
    yield kasuri.using(bnn, "local")
    yield kasuri.using(bnn, "mean")


def test_state_of_a_frozen_network_loads() -> None:
    """peer defect #17: the state of a frozen network had keys that could not be loaded."""
    bnn = kasuri.bayesianize(mlp(3, 4, 2), kasuri.KTied())
    keys, x = list(bnn.state_dict()), torch.randn(2, 3)
    for context in contexts(bnn):
        with context:
            bnn(x)
            assert list(bnn.state_dict()) == keys
            file = io.BytesIO()
            torch.save(bnn.state_dict(), file)
            file.seek(0)
            other = kasuri.bayesianize(mlp(3, 4, 2), kasuri.KTied())
            other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.eval()(x), copy.deepcopy(bnn).eval()(x))


def test_batch_norm_in_place_operations_and_whole_graphs() -> None:
    """peer defect #18: BatchNorm in training, in-place operations, compile(fullgraph) failed."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    bnn = kasuri.bayesianize(net, kasuri.KTied(scale=0.3))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=9, samples=3)
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    elbo(x, y).loss.backward()
    assert int(bnn[1].num_batches_tracked) == 3
    statistics = bnn[1].running_mean.clone()
    kasuri.predict(bnn, x, samples=4)
    assert torch.equal(bnn[1].running_mean, statistics)
    assert bnn.training
    compiled = torch.compile(bnn, fullgraph=True, backend="eager")
    assert not torch.equal(compiled(x), compiled(x))


def test_contexts_end_well_when_their_body_fails() -> None:
    """peer defect #19: an exception inside the context left noisy weights behind."""
    bnn = kasuri.bayesianize(Interrupted(), kasuri.MeanField(scale=0.5))
    x = torch.ones(2, 3)
    before = {key: value.clone() for key, value in bnn.state_dict().items()}
    for context in contexts(bnn):
        bnn.error = ValueError("inside")
        with pytest.raises(ValueError, match="inside"), context:
            bnn(x)
        with pytest.raises(ValueError, match="inside"):
            kasuri.predict(bnn, x, samples=2)
        bnn.error = None
        assert all(module.training for module in bnn.modules())
        assert not torch.equal(bnn(x), bnn(x))
        assert torch.equal(bnn.eval()(x), bnn(x))
        bnn.train()
    assert all(torch.equal(before[key], value) for key, value in bnn.state_dict().items())


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
    """peer defect #19: mixed dtypes were rejected, a parameter without gradient crashed."""
    bnn = kasuri.bayesianize(Mixed(), kasuri.KTied(), where=where)
    elbo = elbo_of(bnn)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.01)
    elbo(torch.ones(1, 3), torch.tensor([0])).loss.backward()
    optimiser.step()
    assert torch.allclose(elbo.kl().double(), exact_kl(bnn).double(), rtol=1e-5)


def test_the_step_is_the_callers() -> None:
    """peer defect #19: a step counter was lost on resuming; here there is none to lose."""
    bnn = kasuri.bayesianize(mlp(3, 2), kasuri.MeanField())
    ramp = kasuri.schedules.LinearPerBatch(rate=0.1)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=1, kl_weight=ramp)
    args = torch.ones(1, 3), torch.tensor([0])
    loss, nll, kl = elbo(*args, step=5)
    assert torch.allclose(loss, nll + 0.5 * kl)
    with pytest.raises(ValueError, match="step"):
        elbo(*args)


def test_no_attribute_of_weft_shadows_a_method_of_module() -> None:
    """peer defect #20: an attribute called `cuda` shadowed Module.cuda()."""
    bnn = kasuri.bayesianize(mlp(3, 4, 2), kasuri.KTied())
    elbo = elbo_of(bnn)
    methods = {name for name in dir(nn.Module) if callable(getattr(nn.Module, name))}
    for module in [*elbo.modules(), *bnn.modules()]:
        assert not methods & set(vars(module))
    assert next(elbo.to(torch.float64).parameters()).dtype == torch.float64

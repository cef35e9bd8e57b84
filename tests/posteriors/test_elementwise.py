"""Mean-field and k-tied against torch.distributions and the dense formulas; refusals."""

import copy
import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.network.random import conversion_of
from kasuri.network.views import op_of
from kasuri.numerics import sampling
from kasuri.testing import randomised
from tests.laws.families import FAMILIES

RANDOM = {  # with independent weights; tests/posteriors/matrix_normal is about the others
    name: family
    for name, family in FAMILIES.items()
    if isinstance(family(torch.zeros(2, 2)), kasuri.posteriors.Elementwise)
}


def plain_run(layer):
    """A layer as a function of its input, weight and bias."""

    def run(x, weight, bias):
        plain = copy.deepcopy(layer).double()
        plain.weight = torch.nn.Parameter(weight)
        plain.bias = None if bias is None else torch.nn.Parameter(bias)
        return plain(x)

    return run


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4, 1), (1, 5)])
@pytest.mark.parametrize("family", RANDOM.values(), ids=RANDOM)
@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_kl_equals_torch_distributions(family, shape, scale):
    q = randomised(family, shape)
    prior = td.Normal(q.mean.new_zeros(()), q.mean.new_tensor(scale))  # in float64
    oracle = td.kl_divergence(td.Normal(q.mean, q.variance.sqrt()), prior).sum()
    torch.testing.assert_close(q.kl(kasuri.Normal(scale)), oracle, rtol=1e-10, atol=1e-10)


def test_k_tied_scale_is_the_product_of_its_factors():
    q = randomised(kasuri.KTied(rank=3), (4, 6))
    expected = torch.einsum("ko,ki->oi", q.log_rows.exp(), q.log_columns.exp())
    torch.testing.assert_close(q.scale, expected)


@pytest.mark.parametrize(("rank", "noise"), [(1, 0.1), (2, 0.1), (3, 0.1), (2, 0.3)])
def test_k_tied_init_has_the_stated_mean_and_variation(rank, noise):
    scales = torch.stack(
        [kasuri.KTied(rank=rank, noise=noise)(torch.zeros(60, 50)).scale for _ in range(200)]
    )
    assert abs(scales.mean() / 0.01 - 1) < 0.06 * noise  # uncorrected it is noise² off, or more
    variation = (scales.flatten(1).std(0) / 0.01).mean()  # over independent inits, per entry
    assert abs(variation / math.sqrt((math.exp(2 * noise**2) - 1) / rank) - 1) < 0.1


def test_mean_field_init_has_the_stated_mean_and_variation():
    scale = kasuri.MeanField(scale=0.05, noise=0.2)(torch.zeros(1000, 500)).scale
    assert abs(scale.mean() / 0.05 - 1) < 1e-3
    assert abs(scale.std() / 0.05 / 0.2 - 1) < 0.01


@pytest.mark.parametrize("family", [kasuri.MeanField, kasuri.KTied])
def test_max_scale_bounds_every_scale_and_keeps_gradients(family):
    q = family(scale=0.01, max_scale=0.2)(torch.zeros(5, 4))
    assert abs(q.scale.mean() - 0.01) < 0.002
    with torch.no_grad():
        for name, p in q.named_parameters():
            if name != "loc":
                p.fill_(3.0)
    assert (q.scale < 0.2).all()
    q.scale.sum().backward()
    assert all((p.grad > 0).all() for n, p in q.named_parameters() if n != "loc")


def test_means_start_at_the_weight_or_by_he():
    weight = torch.randn(2000, 50)
    assert torch.equal(kasuri.KTied()(weight).mean, weight)
    he = kasuri.KTied(mean="he")(weight).mean
    assert abs(he.std() / math.sqrt(2 / 50) - 1) < 0.02
    assert not torch.equal(he, weight)
    assert torch.equal(kasuri.MeanField(mean="he")(torch.ones(3)).mean, torch.zeros(3))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: kasuri.KTied(rank=0), "rank"),
        (lambda: kasuri.KTied(rank=1.5), "rank"),
        (lambda: kasuri.KTied(rank=True), "rank"),
        (lambda: kasuri.MeanField(scale=0.0), "kasuri.Point"),
        (lambda: kasuri.MeanField(scale=-1), "positive"),
        (lambda: kasuri.MeanField(noise=-0.1), "noise"),
        (lambda: kasuri.KTied(scale=0.3, max_scale=0.2), "max_scale"),
        (lambda: kasuri.MeanField(mean="zero"), "given"),
        (lambda: kasuri.KTied(rank=2)(torch.zeros(3)), "MeanField"),
    ],
)
def test_impossible_options_are_refused_with_a_sentence(build, words):
    with pytest.raises(ValueError, match=words):
        build()


LAYERS = [
    (nn.Linear(6, 5), (7, 6)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), (2, 4, 11)),
    (nn.Conv2d(4, 6, (3, 2), groups=2, padding="same", padding_mode="reflect"), (2, 4, 6, 5)),
    (nn.Conv2d(4, 8, 3, groups=4, padding=1, padding_mode="circular"), (2, 4, 6, 5)),
    (nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="replicate"), (4, 6, 5)),
    (nn.Conv3d(2, 4, 2, stride=(1, 2, 1), dilation=(2, 1, 1)), (2, 2, 4, 5, 3)),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 5)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, dilation=2, padding=1), (2, 4, 3, 4)),
    (nn.ConvTranspose3d(2, 4, 2, groups=2), (1, 2, 3, 2, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_local_variance_equals_the_dense_computation(layer, shape, rank, monkeypatch):
    """With noise 1, (output - centre)² is the variance: low-rank against σ² times x²."""
    monkeypatch.setattr(sampling, "normal_like", torch.ones_like)
    monkeypatch.setattr(sampling, "window_noise", torch.ones_like)
    x = torch.randn(shape, dtype=torch.float64)
    bnn = kasuri.bayesianize(copy.deepcopy(layer).double(), kasuri.KTied(rank=rank))
    q, b = bnn.posteriors.weight, bnn.posteriors.bias
    with torch.no_grad():
        for p in bnn.parameters():
            p += 0.5 * torch.rand_like(p)
    with kasuri.using(bnn, "mean"):
        centre = bnn(x)
    with kasuri.using(bnn, "local"):
        got = (bnn(x) - centre).square()
    op = op_of(bnn, conversion_of(bnn).views["weight"], None, plain_run(layer))
    dense = op(x.square(), q.scale.square())
    dense = dense + op.along_features(b.variance, dense)
    torch.testing.assert_close(got, dense, rtol=1e-12, atol=1e-12)

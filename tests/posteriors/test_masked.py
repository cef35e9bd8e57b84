"""Masked posteriors: dropped weights are exactly 0, and the rest is the posterior of the rest."""

import copy

import pytest
import torch
from torch import distributions as td
from torch import nn

import kasuri
from kasuri.posteriors.masked import Masked, MaskedCorrelated, less_each, masked
from kasuri.testing import randomised
from tests.priors.relevance_examples import POSTERIORS, dense, normal_of

INDEPENDENT = {name: build for name, build in POSTERIORS.items() if "dense" not in name}
priors = pytest.mark.parametrize(
    "prior",
    [
        kasuri.Normal(0.7),
        kasuri.HeNormal(bias_scale=0.7),
        kasuri.Normal(learn="closed form"),
        kasuri.ARD(),
        kasuri.GroupARD("rows"),
        kasuri.GroupARD("columns"),
        kasuri.GroupARD(sweeps=30),
    ],
    ids=["normal", "he", "fitted", "ard", "rows", "columns", "both"],
)


def random_mask(shape):
    mask = torch.rand(shape) < 0.6
    mask[..., 0, :] = False  # a whole row
    mask[..., 0] = False  # a whole column
    return mask


@pytest.mark.parametrize("build", POSTERIORS.values(), ids=POSTERIORS)
def test_dropped_weights_are_zero_and_the_others_as_they_were(build):
    q = build()
    mask = random_mask(q.shape)
    m = masked(q, mask)
    for value in (m.mean, m.variance, m.rsample()):
        assert (value[~mask] == 0).all()
    assert torch.equal(m.mean[mask], q.mean[mask])
    assert torch.equal(m.variance[mask], q.variance[mask])
    torch.manual_seed(3)
    draw = q.rsample()
    torch.manual_seed(3)
    assert torch.equal(m.rsample()[mask], draw[mask])
    assert m.numel() == mask.sum()
    torch.testing.assert_close(m.squared_norm(), (m.mean.square() + m.variance).sum())


@pytest.mark.parametrize("build", INDEPENDENT.values(), ids=INDEPENDENT)
@pytest.mark.parametrize(
    "prior", [kasuri.Normal(0.7), kasuri.Normal(learn="closed form"), kasuri.ARD()]
)
def test_kl_counts_the_weights_that_are_left(build, prior):
    q = build()
    mask = random_mask(q.shape)
    m = masked(q, mask)
    rest = kasuri.MeanField()(q.mean[mask].detach())  # a vector of the weights that are left
    rest.log_scale.data = q.variance[mask].detach().log() / 2
    torch.testing.assert_close(m.entropy(), rest.entropy())
    torch.testing.assert_close(prior.kl(m), prior.kl(rest))


@priors
def test_kl_of_whole_rows_and_columns_is_that_of_a_smaller_matrix(prior):
    q = randomised(kasuri.MeanField(), (4, 6))
    rows, columns = torch.tensor([True, False, True, True]), torch.rand(6) < 0.6
    mask = rows[:, None] & columns
    small = kasuri.MeanField()(q.loc.detach()[rows][:, columns])
    small.log_scale.data = q.log_scale.detach()[rows][:, columns]
    expected = prior.kl(small)
    if isinstance(prior, kasuri.HeNormal):  # its scale is that of the layer, whatever is dropped
        expected = kasuri.Normal(prior.scale_for((4, 6))).kl(small)
    torch.testing.assert_close(prior.kl(masked(q, mask)), expected)


@priors
def test_gradients_are_right_and_none_reaches_a_dropped_weight(prior):
    q = randomised(kasuri.MeanField(), (3, 4))
    mask = random_mask((3, 4))
    m = masked(q, mask)
    held = isinstance(prior, kasuri.GroupARD) and prior.groups == "both"  # at the optimum only
    assert torch.autograd.gradcheck(
        lambda *_: prior.kl(m), tuple(m.parameters()), atol=1e-4 if held else 1e-5
    )
    for value in (prior.kl(m), m.rsample().sum()):
        for grad in torch.autograd.grad(value, list(m.parameters()), allow_unused=True):
            assert grad is None or (grad[~mask] == 0).all()


def test_entropy_of_correlated_weights_is_bounded_from_below():
    """The KL is at most overestimated, and is exact if nothing or everything independent is dropped."""
    for _ in range(20):
        q, mask = dense(3, 4), torch.rand(3, 4) < 0.5
        m, flat = masked(q, mask), mask.reshape(-1)
        exact = torch.distributions.MultivariateNormal(
            q.mean.reshape(-1)[flat], normal_of(q).covariance_matrix[flat][:, flat]
        )
        assert m.entropy() <= exact.entropy() + 1e-9
        for prior in (kasuri.Normal(1.0), kasuri.ARD(), kasuri.GroupARD()):
            assert torch.isfinite(prior.kl(m))
        true = -exact.entropy() - kasuri.Normal(1.0).expected_log_prob(m)
        assert kasuri.Normal(1.0).kl(m) >= true - 1e-9
    everything = masked(q, torch.ones(3, 4, dtype=torch.bool))
    torch.testing.assert_close(everything.entropy(), q.entropy())


class EntropyOf(torch.nn.Module):
    """A posterior's entropy as a function of parameters."""

    def __init__(self, posterior):
        super().__init__()
        self.posterior = posterior

    def forward(self):
        return self.posterior.entropy()

    @classmethod
    def call(cls, posterior, parameters):
        named = {f"posterior.{name}": one for name, one in parameters.items()}
        return torch.func.functional_call(cls(posterior), named, ())


CORRELATED = {
    "matrix normal": kasuri.MatrixNormal(),
    "bounded": kasuri.MatrixNormal(max_scale=2.0),
    "low rank and diagonal": kasuri.MatrixNormal(rows=1, columns="diagonal"),
    "rank one": kasuri.MatrixNormalDiagonal(),
    "free": kasuri.MatrixNormalDiagonal(diagonal="free"),
    "scaled": kasuri.ScaledMatrixNormal(),
    "scaled, bounded": kasuri.ScaledMatrixNormal(max_scale=2.0),
    "full": kasuri.FullNormal(),
}
correlated = pytest.mark.parametrize("family", CORRELATED.values(), ids=CORRELATED)


@pytest.mark.parametrize("family", [kasuri.MeanField(), *CORRELATED.values()])
def test_nothing_left_costs_nothing(family):
    q = randomised(family, (3, 4))
    m = masked(q, torch.zeros(3, 4, dtype=torch.bool))
    assert m.rsample().abs().sum() == 0
    for prior in (kasuri.Normal(0.7), kasuri.ARD(), kasuri.GroupARD()):
        kl = prior.kl(m)
        assert float(kl.detach()) == pytest.approx(0, abs=1e-9)
        for one in torch.autograd.grad(kl, list(m.parameters()), allow_unused=True):
            assert one is None or float(one.abs().max()) < 1e-9


@correlated
@pytest.mark.parametrize("shape", [(5, 6), (2, 4, 3)])
def test_whole_rows_and_columns_leave_the_entropy_of_the_rest(family, shape):
    q = randomised(family, shape)
    size = torch.Size(shape).numel()
    factor = q.pull(torch.eye(size, dtype=torch.float64).reshape(size, *shape)).detach()
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 1, :] = mask[..., 2] = False
    if len(shape) == 3:
        mask[0, 2] = False  # blocks may lose different numbers
    scattered = mask.clone()
    scattered[..., 0, 0] = False
    for kept, exact in ((mask, family.__class__), (scattered, kasuri.FullNormal)):
        left = factor[kept.flatten()]
        want = td.MultivariateNormal(torch.zeros(len(left)).double(), left @ left.mT).entropy()
        found = masked(q, kept).entropy().detach()
        assert found <= want + 1e-8
        if isinstance(family, exact) and family != CORRELATED["free"]:
            torch.testing.assert_close(found, want, atol=1e-8, rtol=0)
    # no looser than a bound that takes all of the covariance and each dropped weight off
    bare = less_each(q.entropy(), q.variance, ~mask).detach()
    assert masked(q, mask).entropy() >= bare - 1e-9 or family == CORRELATED["free"]


@correlated
@pytest.mark.parametrize("side", ["rows", "columns", "both"])
def test_the_rest_has_the_same_entropy_and_gradient_inside_a_transform(family, side):
    m = randomised(family, (6, 7))
    mask = torch.ones(6, 7, dtype=torch.bool)
    if side != "columns":
        mask[[0, 4]] = False
    if side != "rows":
        mask[:, [1, 2, 6]] = False
    m = masked(m, mask)
    found = m.entropy()
    slopes = torch.autograd.grad(found, list(m.parameters()), allow_unused=True)

    parameters = {name: one.detach() for name, one in m.named_parameters()}
    plain, want = torch.func.grad_and_value(lambda given: EntropyOf.call(m, given))(parameters)
    torch.testing.assert_close(found, want, atol=1e-8, rtol=0)
    for (name, slope), one in zip(plain.items(), slopes, strict=True):
        one = torch.zeros_like(slope) if one is None else one
        torch.testing.assert_close(one, slope, atol=1e-8, rtol=1e-6, msg=name)


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
@pytest.mark.parametrize("family", [kasuri.MeanField(scale=0.3), kasuri.KTied(rank=2, scale=0.3)])
def test_estimators_draw_from_the_law_of_the_rest(family, estimator):
    bnn = kasuri.bayesianize(nn.Linear(4, 3), family, bias=False).double()
    q = masked(bnn.posteriors.weight, random_mask((3, 4)))
    bnn.posteriors._modules["weight"] = q
    x = torch.randn(2, 4).double()
    with kasuri.using(bnn, estimator), torch.no_grad():
        each = torch.vmap(lambda _: bnn(x), randomness="different")(torch.zeros(20_000))
    mean = x @ q.mean.T + bnn.bias
    variance = x.square() @ q.variance.T
    assert (variance[:, 0] == 0).all()
    assert (each[:, :, 0].std(0) < 1e-12).all()  # a dropped output has no noise
    assert ((each.mean(0) - mean).abs() < 6 * (variance / 20_000).sqrt() + 1e-9).all()
    assert ((each.var(0) / variance)[:, 1:] - 1).abs().nan_to_num(0).max() < 0.1


def test_copies_states_and_compilation():
    q = masked(kasuri.MeanField()(torch.randn(3, 4)), random_mask((3, 4)))
    twin = copy.deepcopy(q)
    assert torch.equal(twin.mask, q.mask)
    fresh = Masked(family=kasuri.MeanField())(torch.zeros(3, 4))
    assert fresh.numel() == 12
    fresh.load_state_dict(q.state_dict())
    assert fresh.numel() == q.numel()
    assert torch.equal(fresh.mean, q.mean)
    value = torch.compile(lambda: q.kl(kasuri.Normal(1.0)), fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(value, q.kl(kasuri.Normal(1.0)))
    torch.compiler.reset()
    assert q.double().mean.dtype == q.variance.dtype == q.rsample().dtype == torch.float64
    assert q.mask.dtype == torch.bool


def test_masks_are_joined_and_checked():
    q = kasuri.MeanField()(torch.ones(2))
    twice = masked(masked(q, torch.tensor([True, False])), torch.tensor([False, True]))
    assert twice.base is q
    assert twice.numel() == 0
    assert isinstance(masked(dense(2, 2), torch.ones(2, 2, dtype=torch.bool)), MaskedCorrelated)
    with pytest.raises(ValueError, match="shape"):
        masked(q, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="shape"):
        masked(q, torch.ones(2))

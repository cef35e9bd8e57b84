"""GroupARD against L-BFGS and dense normals; sweeps; gauge; files."""

import copy

import pytest
import torch
from torch import nn

import kasuri
from kasuri.numerics.precisions import fitted
from kasuri.storage import build
from kasuri.testing import randomised
from tests.priors.relevance_examples import dense_kl, every_posterior

GROUPS = ("rows", "columns", "both")


def alphas(prior, q):
    rows, columns = prior.precisions(q)
    return rows.unsqueeze(-1) * columns.unsqueeze(-2)


def best_by_lbfgs(q, groups):
    """The smallest dense KL over log-precisions of rows and columns, each block its own."""
    *blocks, outs, ins = q.shape
    rows = torch.zeros(*blocks, outs, dtype=torch.float64, requires_grad=groups != "columns")
    columns = torch.zeros(*blocks, ins, dtype=torch.float64, requires_grad=groups != "rows")
    free = [t for t in (rows, columns) if t.requires_grad]
    opt = torch.optim.LBFGS(
        free, max_iter=500, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        opt.zero_grad()
        loss = dense_kl(q, (rows.unsqueeze(-1) + columns.unsqueeze(-2)).exp())
        loss.backward(inputs=free)
        return loss

    opt.step(closure)
    return closure().detach()


@pytest.mark.parametrize("groups", GROUPS)
@every_posterior
def test_kl_is_the_optimum_and_that_of_dense_normals(build, groups):
    q = build()
    prior = kasuri.GroupARD(groups, sweeps=40)
    torch.testing.assert_close(prior.kl(q), dense_kl(q, alphas(prior, q)), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(prior.kl(q), best_by_lbfgs(q, groups), rtol=1e-8, atol=1e-8)
    assert kasuri.ARD().kl(q) <= prior.kl(q)
    torch.testing.assert_close(q.kl(prior), -q.entropy() - prior.expected_log_prob(q))


@pytest.mark.parametrize("groups", GROUPS)
@every_posterior
def test_gradient_is_that_through_the_optimum(build, groups):
    """Precisions are held; differentiating through enough sweeps gives the same."""
    q = build()
    parameters = list(q.parameters())
    got = torch.autograd.grad(kasuri.GroupARD(groups, sweeps=40).kl(q), parameters)
    rows, columns = fitted(q.mean.square() + q.variance, groups, 40)  # nothing detached
    want = torch.autograd.grad(dense_kl(q, rows * columns), parameters)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def excess(moments, sweeps):
    """What precisions of so many sweeps cost above the optimum, in nats."""

    def cost(sweeps):
        rows, columns = fitted(moments, "both", sweeps)
        return 0.5 * (rows * columns * moments - (rows * columns).log()).sum()

    return (cost(sweeps) - cost(300)).item()


def test_few_sweeps_are_enough_for_lognormal_moments():
    for _ in range(8):
        moments = (1.5 * torch.randn(30, 20, dtype=torch.float64)).exp()
        gaps = [excess(moments, sweeps) for sweeps in (1, 2, 3, 5, 8)]
        assert gaps == sorted(gaps, reverse=True)
        assert all(gap < most for gap, most in zip(gaps, (5, 0.5, 0.05, 1e-3, 1e-5), strict=True))


@pytest.mark.parametrize("low", [1e-2, 1e-4])
def test_few_sweeps_are_enough_where_most_groups_are_noise(low):
    """Plain sweeps are still thousands of nats away after 9 here."""
    for rows, columns in ((0.2, 0.3), (0.5, 0.5), (0.9, 0.9), (0.05, 0.9)):
        alive = (torch.rand(100, 1) < rows) & (torch.rand(1, 200) < columns)
        moments = torch.where(alive, 1.0, low).double() * torch.randn(100, 200).double().exp()
        assert -1e-8 < excess(moments, 8) < 0.5


def test_blocks_and_posteriors_have_their_own_groups():
    q = randomised(kasuri.MeanField(), (2, 3, 5))
    prior = kasuri.GroupARD(sweeps=30)
    each = []
    for block in range(2):
        one = kasuri.MeanField()(torch.zeros(3, 5, dtype=torch.float64))
        one.loc.data, one.log_scale.data = q.loc.data[block], q.log_scale.data[block]
        each.append(prior.kl(one))
    torch.testing.assert_close(prior.kl(q), sum(each))
    torch.testing.assert_close(prior.kl(q, q), 2 * prior.kl(q))


@pytest.mark.parametrize("groups", GROUPS)
def test_units_of_inputs_and_outputs_do_not_matter(groups):
    """Rescaled rows and columns: the same KL, precisions scaled the other way, the same products."""
    q = randomised(kasuri.MeanField(), (3, 5))
    other = copy.deepcopy(q)
    by_row = torch.rand(3, 1).double().exp() if groups != "columns" else torch.ones(3, 1).double()
    by_column = torch.rand(1, 5).double().exp() if groups != "rows" else torch.ones(1, 5).double()
    with torch.no_grad():
        other.loc.mul_(by_row * by_column)
        other.log_scale.add_((by_row * by_column).log())
    prior = kasuri.GroupARD(groups, sweeps=40)
    torch.testing.assert_close(prior.kl(other), prior.kl(q))
    want = alphas(prior, q) / (by_row * by_column) ** 2
    torch.testing.assert_close(alphas(prior, other), want)
    columns = prior.precisions(q)[1]
    if groups == "both":
        torch.testing.assert_close(columns.log().mean(), torch.zeros(()).double())


def elbo_with(prior, net):
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.1))
    return kasuri.ELBO(bnn, kasuri.Gaussian(1.0), prior, num_data=10)


def test_several_layers_copies_and_files(tmp_path):
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1))
    prior = {
        "0": kasuri.GroupARD(),
        "*": kasuri.GroupARD("rows", vectors=kasuri.ARD()),
    }
    elbo = kasuri.ELBO(
        bnn,
        kasuri.Categorical(),
        prior,
        num_data=10,
        kl_weight=kasuri.schedules.HoldThenRamp(2, 3, steps_per_epoch=5),
    )
    assert torch.equal(copy.deepcopy(elbo).kl(), elbo.kl())
    kasuri.save(bnn, tmp_path / "m", objective=elbo)
    again = kasuri.load_objective(tmp_path / "m", kasuri.load(tmp_path / "m", net))
    assert torch.equal(again.kl(), elbo.kl())
    assert again.kl_weight == elbo.kl_weight
    assert [one.options().keys() for one in again.priors] == [
        one.options().keys() for one in elbo.priors
    ]
    assert isinstance(again.priors[1].vectors, kasuri.ARD)


def test_compile_vmap_and_several_evaluations():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    elbo = elbo_with(kasuri.GroupARD(), net)
    parameters = list(elbo.parameters())
    plain = torch.autograd.grad(elbo.kl(), parameters)
    state = copy.deepcopy(elbo.state_dict())
    assert torch.equal(elbo.kl(), elbo.kl())
    assert all(torch.equal(state[k], v) for k, v in elbo.state_dict().items())
    compiled = torch.compile(elbo.kl, fullgraph=True, backend="aot_eager")
    for a, b in zip(plain, torch.autograd.grad(compiled(), parameters), strict=True):
        torch.testing.assert_close(a, b)
    kls = torch.vmap(lambda shift: elbo.kl() + shift)(torch.zeros(2))
    torch.testing.assert_close(kls, elbo.kl().expand(2))
    torch.compiler.reset()


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"groups": "row"}, {"sweeps": 0}, {"sweeps": 2.0}], ids=str)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        kasuri.GroupARD(**options)


def test_a_file_of_0_2_that_learned_precisions_by_gradient_is_refused():
    description = {"class": "GroupARD", "options": {"groups": "rows", "learn": "closed form"}}
    assert build(description).groups == "rows"
    description["options"]["learn"] = "gradient"
    with pytest.raises(ValueError, match="closed form"):
        build(description)

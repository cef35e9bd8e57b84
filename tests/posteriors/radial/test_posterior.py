"""Radial posteriors: densities, entropies, starts, layouts, refusals."""

import itertools
import math

import pytest
import torch
from scipy import special
from torch import nn

import kasuri
from kasuri.posteriors.mean_field import MeanFieldPosterior
from kasuri.posteriors.radial.distributions import VonMisesFisher
from kasuri.posteriors.radial.polar import to_vectors
from kasuri.posteriors.radial.posterior import RadialPosterior
from kasuri.testing import randomised

SINGLE = {
    "rows": kasuri.Radial(scale=0.2),
    "columns": kasuri.Radial(grouping="column", scale=0.2, concentration="group"),
    "kernel": kasuri.Radial(grouping="column", scale=0.2, positions=2),
}
DOUBLE = {
    "hadamard": kasuri.Radial(grouping="double", scale=0.2),
    "hadamard, own": kasuri.Radial(grouping="double", concentration="group", scale=0.2),
    "kernel, both": kasuri.Radial(grouping="double", positions=2, scale=0.2),
    "scales": kasuri.Radial(grouping="double", double="scales", scale=0.2),
    "kernel, scales": kasuri.Radial(grouping="double", double="scales", positions=2, scale=0.2),
}
ALL = SINGLE | DOUBLE


def families(chosen):
    return pytest.mark.parametrize("family", chosen.values(), ids=chosen)


def draws(q, count):
    return torch.vmap(lambda _: q.rsample(), randomness="different")(torch.zeros(count)).detach()


def log_density(q, weight):
    """Log q(W) of rows or columns alone, from its definition: p(log r) p(ξ) r^-d, log r dense normal."""
    ((side, polar),) = q.sides().items()
    vectors = to_vectors(weight, side, q.positions)
    radius = vectors.norm(dim=-1)
    directions = VonMisesFisher(polar.directions.mode(), polar.directions.concentration())
    total = directions.log_prob(vectors / radius.unsqueeze(-1)).sum()
    local, common = polar.local.law(), polar.layer.law()
    covariance = local.log_variance.exp().diag_embed() + common.log_variance.exp().unsqueeze(-1)
    radial = torch.distributions.MultivariateNormal(local.loc + common.loc, covariance)
    total = total + radial.log_prob(radius.log()).sum()
    return total - vectors.shape[-1] * radius.log().sum()


@families(SINGLE)
def test_entropy_is_the_mean_of_the_log_density(family):
    torch.manual_seed(3)
    q = randomised(family, (2, 3, 4))
    with torch.no_grad():
        values = -torch.vmap(lambda w: log_density(q, w))(draws(q, 10_000))
        error = values.std().item() / len(values) ** 0.5
        assert abs(values.mean().item() - q.entropy().item()) < 5 * error


def test_the_density_is_one():
    """One row in the plane, on a grid: this fixes the Jacobian that the entropy above takes for granted."""
    torch.manual_seed(0)
    q = randomised(kasuri.Radial(scale=0.3), (2, 2))
    ((_, polar),) = q.sides().items()
    radial = torch.distributions.Normal(
        (polar.local.law().loc + polar.layer.law().loc)[0],
        (polar.local.law().growth() + polar.layer.law().growth())[0].sqrt(),
    )
    kappa, mode = polar.directions.concentration().item(), polar.directions.mode()[0]
    grid = torch.linspace(-15, 15, 1501, dtype=torch.float64)
    points = torch.cartesian_prod(grid, grid)
    radius = points.norm(dim=-1).clamp(min=1e-9)
    log = radial.log_prob(radius.log()) - 2 * radius.log() + kappa * (points @ mode) / radius
    total = (log - math.log(2 * math.pi * special.i0(kappa))).exp().sum() * 0.02**2
    assert total.item() == pytest.approx(1.0, abs=1e-3)


@families(ALL)
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
def test_the_start_has_the_given_mean_and_scale(family, shape):
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64)
    weight[..., 2, :] *= 5
    weight[..., 1] *= 0.1
    q = family(weight)
    torch.testing.assert_close(q.mean, weight, rtol=1e-9, atol=1e-12)
    assert q.variance.mean().sqrt().item() == pytest.approx(0.2, rel=1e-6)


@families(ALL)
def test_zeros_have_a_start(family):
    for weight in (torch.zeros(5, 6), torch.randn(5, 6).index_fill(1, torch.tensor([2, 3]), 0.0)):
        q = family(weight)
        assert (q.mean - weight).abs().max() < 0.011 * 0.2
        assert all(p.isfinite().all() for p in q.parameters())


def test_concentrations_start_as_published():
    weight = torch.randn(3, 50, dtype=torch.float64)
    q = kasuri.Radial(gap=0.1)(weight)
    assert q.rows.directions.concentration().item() == pytest.approx(47 * 0.9 / (1 - 0.81))
    torch.testing.assert_close(q.mean, weight)


def test_columns_are_rows_of_the_transposed_matrix():
    torch.manual_seed(0)
    weight = torch.randn(3, 5, dtype=torch.float64)
    columns = kasuri.Radial(grouping="column", noise=0.0)(weight)
    rows = kasuri.Radial(noise=0.0)(weight.T.contiguous())
    columns.columns.load_state_dict(rows.rows.state_dict())
    torch.testing.assert_close(columns.mean, rows.mean.T)
    torch.testing.assert_close(columns.variance, rows.variance.T)
    torch.testing.assert_close(columns.entropy(), rows.entropy())


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 4, 2), nn.ConvTranspose2d(3, 4, 2), nn.Conv1d(3, 4, 5)]
)
def test_columns_of_a_convolution_are_input_channels(layer):
    bnn = kasuri.bayesianize(layer, kasuri.Radial(grouping="double"))
    q = bnn.posteriors.weight
    kernel = math.prod(layer.kernel_size)
    assert q.rows.directions.loc.shape == (4, 3 * kernel)
    assert q.columns.directions.loc.shape == (3, 4 * kernel)
    assert q.log_modes("rows").shape == (4,)
    assert q.log_modes("columns").shape == (3,)
    with torch.no_grad():
        q.columns.local.loc[..., 0] -= 100  # the first input channel goes
    weight = kasuri.collapse(bnn).weight
    channels = 0 if isinstance(layer, nn.ConvTranspose2d) else 1
    assert weight.select(channels, 0).abs().max() < 1e-20
    assert weight.select(channels, 1).abs().max() > 1e-3
    torch.testing.assert_close(
        kasuri.collapse(kasuri.bayesianize(layer, kasuri.Radial())).weight, layer.weight
    )


def test_a_layout_is_its_own_inverse():
    matrix = torch.arange(2 * 3 * 8).view(2, 3, 8)
    for side, positions in itertools.product(("rows", "columns"), (1, 2, 4)):
        vectors = to_vectors(matrix, side, positions)
        assert torch.equal(to_vectors(vectors, side, positions), matrix)
    kernel = torch.arange(5 * 2 * 3 * 3).view(5, 2, 3, 3)
    columns = to_vectors(kernel.reshape(5, -1), "columns", 9)
    assert torch.equal(columns, kernel.transpose(0, 1).reshape(2, -1))


@pytest.mark.parametrize(
    ("grouping", "layer", "falls"),
    [
        ("row", nn.Linear(5, 1), True),
        ("row", nn.Linear(1, 5), True),
        ("column", nn.Linear(1, 5), True),
        ("row", nn.Conv2d(1, 4, 3), False),  # rows of 9
        ("column", nn.Conv2d(1, 4, 3), True),  # one channel
        ("double", nn.Conv2d(1, 4, 3), True),
        ("column", nn.Conv2d(4, 1, 3), False),  # columns of 9
        ("double", nn.Conv2d(4, 4, 3, groups=4), True),
        ("double", nn.Linear(2, 2), False),
    ],
)
def test_a_side_of_length_one_falls_back_on_mean_field_and_says_so(grouping, layer, falls):
    bnn = kasuri.bayesianize(layer, kasuri.Radial(grouping=grouping, scale=0.02, noise=0.0))
    q = bnn.posteriors.weight
    kind = MeanFieldPosterior if falls else RadialPosterior
    assert type(q) is kind
    for said in (str(bnn), str(kasuri.summary(bnn))):
        assert ("instead of Radial: a side has length 1" in said) == falls
    if falls:
        torch.testing.assert_close(q.scale, torch.full_like(q.scale, 0.02))


def test_modes_are_of_one_side_and_leave_out_the_layer():
    q = kasuri.Radial(grouping="double")(torch.randn(4, 3))
    before = q.log_modes("rows"), q.log_modes("columns")
    with torch.no_grad():
        q.rows.layer.loc += 1.0
    assert torch.equal(q.log_modes("rows"), before[0])
    law = q.rows.local.law()
    torch.testing.assert_close(
        before[0].double(), (law.loc - law.log_variance.exp()), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ValueError, match=r'has "rows"$'):
        kasuri.Radial()(torch.randn(4, 3)).log_modes("columns")
    with pytest.raises(ValueError, match='"rows" or "columns"'):
        q.log_modes("row")


def test_impossible_options_are_refused():
    for options, words in (
        ({"grouping": "rows"}, "'row'"),
        ({"double": "sum"}, "'hadamard'"),
        ({"concentration": "row"}, "'group'"),
        ({"max_scale": 1.0}, "no bound of their own"),
        ({"gap": 1.5}, "between 0 and 1"),
        ({"double": "scales"}, 'belongs to grouping="double"'),
        ({"scale": math.inf}, "positive"),
        ({"gap": "a"}, "gap='a'"),
    ):
        with pytest.raises(ValueError, match=words):
            kasuri.Radial(**options)
    with pytest.raises(ValueError, match=r"kasuri\.MeanField"):
        kasuri.Radial()(torch.zeros(3))
    for far in (1e5, math.nan):
        with pytest.raises(ValueError, match="below 20,000"):
            kasuri.Radial()(far * torch.ones(3, 4))
    with pytest.raises(ValueError, match="cannot draw an output"):
        kasuri.bayesianize(nn.Linear(3, 2), kasuri.Radial(), estimator="local")
    with pytest.raises(ValueError, match="flipping signs"):
        kasuri.bayesianize(nn.Linear(3, 2), kasuri.Radial(), estimator="flipout")


def test_parameters_are_as_many_as_documented():
    n, m = 30, 20

    def count(**options):
        return sum(p.numel() for p in kasuri.Radial(**options)(torch.randn(n, m)).parameters())

    assert count() == n * m + 1 + 2 * (n + 1)
    assert count(concentration="group") == n * m + n + 2 * (n + 1)
    assert count(grouping="column") == n * m + 1 + 2 * (m + 1)
    assert count(grouping="double") == 2 * (n * m + 1) + 2 * (n + m + 2)
    assert count(grouping="double", double="scales") == n * m + 1 + 2 * (n + m + 1)


def test_files_of_version_0_2_have_another_name_for_lengths_of_columns():
    q = randomised(kasuri.Radial(grouping="double", double="scales"), (2, 3, 4))
    again = randomised(kasuri.Radial(grouping="double", double="scales"), (2, 3, 4))
    state = {
        name.replace("columns.local", "column_radii"): value
        for name, value in q.state_dict().items()
    }
    assert "column_radii.loc" in state
    nn.Sequential(again).load_state_dict({f"0.{name}": value for name, value in state.items()})
    assert torch.equal(again.mean, q.mean)

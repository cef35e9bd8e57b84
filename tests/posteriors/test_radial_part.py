"""Parts of radial posteriors keep means and second moments, and remain radial."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import kasuri
from kasuri.posteriors.radial.polar import to_vectors
from kasuri.posteriors.radial.posterior import RadialPosterior
from tests.posteriors.test_part import part_of, randomised

SINGLE = {
    "rows": kasuri.Radial(grouping="row"),
    "rows, each its own": kasuri.Radial(grouping="row", concentration="group"),
    "columns": kasuri.Radial(grouping="column"),
    "columns of a kernel": kasuri.Radial(grouping="column", positions=2),
}
DOUBLE = {
    "both": kasuri.Radial(grouping="double"),
    "both of a kernel": kasuri.Radial(grouping="double", positions=2),
    "both, published": kasuri.Radial(grouping="double", gap=0.1),
    "scales": kasuri.Radial(grouping="double", double="scales", positions=2),
}
ROWS, COLUMNS = [0, 2, 3, 5], [2, 3, 4, 5]


def cut(family, shape):
    q = randomised(family, shape)
    return q, part_of(q, ROWS, COLUMNS)


def left(matrix):
    return matrix[..., ROWS, :][..., COLUMNS]


@pytest.mark.parametrize("shape", [(6, 8), (2, 6, 8)], ids=str)
@pytest.mark.parametrize("name", SINGLE | DOUBLE)
def test_means_stay(name, shape):
    q, new = cut((SINGLE | DOUBLE)[name], shape)
    assert type(new) is type(q)
    assert new.shape == (*shape[:-2], 4, 4)
    torch.testing.assert_close(new.mean, left(q.mean), rtol=1e-8, atol=1e-12)
    draw = torch.vmap(lambda _: new.rsample(), randomness="different")
    draws = draw(torch.zeros(4000)).detach()
    error = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - new.mean).abs() < 5 * error).all())


@pytest.mark.parametrize("shape", [(6, 8), (2, 6, 8)], ids=str)
@pytest.mark.parametrize("name", SINGLE)
def test_the_second_moment_of_one_side_stays(name, shape):
    family = SINGLE[name]
    q, new = cut(family, shape)
    moments = [new.mean.square() + new.variance, left(q.mean.square() + q.variance)]
    if family.concentration == "group":  # of every row by itself
        now, before = (one.sum(-1) for one in moments)
    else:
        now, before = (one.flatten(-2).sum(-1) for one in moments)
    torch.testing.assert_close(now, before, rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", DOUBLE)
def test_the_noise_of_both_sides_is_about_the_same(name):
    q, new = cut(DOUBLE[name], (6, 8))
    ratio = (new.variance.sum() / left(q.variance).sum()).item()
    assert 0.8 < ratio < 1.2


def test_rows_of_which_nothing_is_left_are_next_to_nothing():
    weight = torch.randn(6, 8).double()
    weight[2, COLUMNS] = 0
    new = part_of(kasuri.Radial(grouping="row")(weight), ROWS, COLUMNS)
    assert all(bool(one.isfinite().all()) for one in (new.mean, new.variance, new.rsample()))
    assert new.mean[1].abs().max() < 1e-9


@pytest.mark.parametrize(("rows", "columns"), [([3], COLUMNS), (ROWS, [1]), (ROWS, [2, 3])])
def test_a_side_of_length_one_has_normal_weights(rows, columns):
    positions = 2 if len(columns) == 2 else 1
    q = randomised(kasuri.Radial(grouping="double", positions=positions), (6, 8))
    new = part_of(q, rows, columns)
    assert not isinstance(new, RadialPosterior)
    for moment in ("mean", "variance"):
        want = getattr(q, moment)[rows][:, columns]
        torch.testing.assert_close(getattr(new, moment), want)


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(80, 9), nn.ReLU(), nn.Linear(9, 4)).double()


@pytest.mark.parametrize("family", [SINGLE["columns"], DOUBLE["both"]], ids=str)
def test_a_smaller_network_is_radial_trains_and_is_saved(family, tmp_path):
    family = dataclasses.replace(family, positions=1)
    bnn = kasuri.bayesianize(network(), family)
    x = torch.randn(5, 1, 8, 8).double()
    options = {"criterion": "log_mode", "structure": "rows"}
    if family.grouping == "column":
        options["structure"] = "columns"
    _, report = kasuri.compress(bnn, x, threshold=kasuri.compression.Gap(), **options)
    middles = ((logs.amin() + logs.amax()) / 2 for logs in report.statistics.values())
    level = math.exp(sorted(middles)[1])
    plain, _ = kasuri.compress(bnn, x, threshold=level, **options)
    small, report = kasuri.compress(bnn, x, threshold=level, keep_posterior=True, **options)
    assert sum(one.after < one.before for one in report.units) >= 1
    kinds = {type(q).__name__ for name, q in kasuri.named_posteriors(small) if "weight" in name}
    assert "RadialPosterior" in kinds
    torch.testing.assert_close(kasuri.collapse(small)(x), plain(x), rtol=0, atol=1e-8)
    kasuri.save(small, tmp_path / "small.safetensors")
    again = kasuri.load(tmp_path / "small.safetensors", plain)
    torch.testing.assert_close(kasuri.collapse(again)(x), plain(x), rtol=0, atol=1e-8)
    elbo = kasuri.ELBO(small, kasuri.Categorical(), kasuri.RadialPrior(), num_data=5)
    loss = elbo(x, torch.arange(5) % 4)[0]
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in small.parameters())


def test_vectors_that_stay_whole_keep_their_law():
    q = randomised(kasuri.Radial(grouping="column", positions=2), (6, 8))
    q.columns.directions.log_concentration.data += 15
    new = part_of(q, list(range(6)), COLUMNS)
    torch.testing.assert_close(new.variance, q.variance[:, COLUMNS], rtol=1e-12, atol=0)
    vectors = to_vectors(q.mean, "columns", 2)[1:3]
    torch.testing.assert_close(to_vectors(new.mean, "columns", 2), vectors, rtol=1e-12, atol=0)


@pytest.mark.parametrize("masking", [False, True])
def test_a_network_of_single_units_still_has_a_radial_prior(masking, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    with torch.no_grad():
        net[0].weight[1:] = 0
        net[0].weight[0, 3:] = 0
        net[2].weight[:, 1:] = 0
    bnn = kasuri.bayesianize(net, kasuri.Radial(grouping="double", scale=1e-6))
    x = torch.randn(7, 6).double()
    small, report = kasuri.compress(
        bnn,
        x,
        criterion="snr",
        threshold=1e6,
        structure="both" if masking else "rows",
        keep_posterior=True,
    )
    assert [one.after for one in report.units if one.layer == "0"] == [1]
    posteriors = [q for name, q in kasuri.named_posteriors(small) if "weight" in name]
    assert not any(isinstance(q, RadialPosterior) for q in posteriors)
    assert all("instead of Radial" in repr(q) for q in posteriors)
    assert str(kasuri.summary(small)).count("instead of Radial") == 2
    elbo = kasuri.ELBO(small, kasuri.Gaussian(), kasuri.RadialPrior(), num_data=7)
    assert bool(elbo(x, torch.zeros(7, 1).double())[0].isfinite())
    kasuri.save(small, tmp_path / "small.safetensors", objective=elbo)
    network = kasuri.load(tmp_path / "small.safetensors", kasuri.collapse(small))
    again = kasuri.load_objective(tmp_path / "small.safetensors", network)
    torch.testing.assert_close(again.kl(), elbo.kl())

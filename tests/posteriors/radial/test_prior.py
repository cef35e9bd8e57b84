"""The prior of radii and directions: its KL as a sum of parts, its options, masks, files."""

import copy
from unittest.mock import ANY

import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence

import kasuri
from kasuri.network.random import conversion_of
from kasuri.posteriors.masked import masked
from kasuri.posteriors.radial import radii as radii_module
from kasuri.posteriors.radial.distributions import VonMisesFisher
from kasuri.posteriors.radial.polar import concentration_at
from kasuri.storage import build
from kasuri.testing import randomised
from tests.posteriors.radial.oracles import tensor

FAMILIES = {
    "rows": kasuri.Radial(),
    "columns": kasuri.Radial(grouping="column", concentration="group", positions=2),
    "hadamard": kasuri.Radial(grouping="double"),
    "scales": kasuri.Radial(grouping="double", double="scales"),
}
BY_NAME = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def directional(q, kappa_p):
    """By the distributions, vector by vector."""
    total = tensor(0.0)
    for _, polar in q.sides().items():
        if polar.directions is None:
            continue
        mode, kappa = polar.directions.mode(), polar.directions.concentration()
        d = mode.shape[-1]
        posterior = VonMisesFisher(mode, kappa)
        prior = VonMisesFisher(mode, tensor(kappa_p(d)))
        total = total + kl_divergence(posterior, prior).sum()
    return total


def radial(q, divergence, local, layer):
    total = tensor(0.0)
    for _, polar in q.sides().items():
        total = total + divergence(polar.local, local).sum()
        if polar.layer is not None:
            total = total + divergence(polar.layer, layer).sum()
    return total


def direct(radii, scale):
    return radii_module.kl_to_half_cauchy(radii.law(), scale)


def by_factors(radii, scale):
    return radii_module.kl_to_half_cauchy_augmented(radii.law(), scale)


@BY_NAME
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_kl_is_the_sum_over_directions_radii_and_layers(family, shape):
    q = randomised(family, shape)
    expected = directional(q, lambda d: concentration_at(d, 0.3)) + radial(q, direct, 0.2, 0.1)
    torch.testing.assert_close(q.kl(kasuri.RadialPrior(0.2, 0.1, gap=0.3)), expected)
    uniform = directional(q, lambda d: 0.0) + radial(q, direct, 1.0, 1.0)
    torch.testing.assert_close(q.kl(kasuri.RadialPrior(mean="uniform")), uniform)
    augmented = q.kl(kasuri.RadialPrior(0.2, 0.1, gap=0.3, form="augmented"))
    assert augmented > q.kl(kasuri.RadialPrior(0.2, 0.1, gap=0.3)) > 0
    parts = directional(q, lambda d: concentration_at(d, 0.3)) + radial(q, by_factors, 0.2, 0.1)
    torch.testing.assert_close(augmented, parts)


def test_options_of_older_files_are_understood():
    family = {
        "class": "Radial",
        "options": {"grouping": "column", "radius": "log-normal", "rescale": False}
        | {"factors": 2, "min_gap": None, "spread": 1e-4},
    }
    assert build(family) == kasuri.Radial(grouping="column")
    prior = {
        "class": "RadialPrior",
        "options": {"local": 0.1, "radius": "half-cauchy", "shape": 1.0},
    }
    assert build(prior).options() == kasuri.RadialPrior(0.1).options() | {"others": ANY}
    for description in (family, prior):
        description["options"]["radius"] = "weibull"
        with pytest.raises(ValueError, match="weibull"):
            build(description)


def test_other_posteriors_have_the_other_prior():
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    bnn = kasuri.bayesianize(net, kasuri.Radial())
    posteriors = dict(kasuri.named_posteriors(bnn))
    prior = kasuri.RadialPrior(others=kasuri.Normal(0.3))
    total = kasuri.ELBO(bnn, kasuri.Gaussian(), prior, num_data=10).kl()
    expected = sum(
        q.kl(prior) if name == "0.weight" else q.kl(kasuri.Normal(0.3))
        for name, q in posteriors.items()
    )
    torch.testing.assert_close(total, expected)


@BY_NAME
def test_dropped_rows_and_columns_cost_nothing(family):
    q = randomised(family, (3, 4))
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    mask[:, 2:] = False
    prior = kasuri.RadialPrior(0.5)
    rest = masked(q, mask)
    gone = copy.deepcopy(rest)
    with torch.no_grad():  # parameters of dropped groups do not matter
        for side, polar in gone.base.sides().items():
            polar.local.loc[..., 1 if side == "rows" else -1] = 7.0
    torch.testing.assert_close(gone.kl(prior), rest.kl(prior))
    assert rest.kl(prior) < q.kl(prior)
    everything = masked(q, torch.ones_like(mask))
    torch.testing.assert_close(everything.kl(prior), q.kl(prior))


@BY_NAME
@pytest.mark.parametrize("form", ["direct", "augmented"])
def test_gradients_are_right(family, form):
    q = randomised(family, (2, 4))
    prior = kasuri.RadialPrior(0.3, 0.1, form=form)
    assert torch.autograd.gradcheck(lambda *_: q.kl(prior), tuple(q.parameters()))


@BY_NAME
@pytest.mark.parametrize("mean", ["posterior", "uniform"])
def test_files_keep_family_and_prior(family, mean, tmp_path):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    bnn = kasuri.bayesianize(net, family)
    prior = kasuri.RadialPrior(
        0.2, 0.1, form="augmented", mean=mean, gap=0.1, others=kasuri.Normal(0.5)
    )
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), prior, num_data=10)
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    path = tmp_path / "model.safetensors"
    kasuri.save(bnn, path, objective=elbo)
    again = kasuri.load(path, net)
    families = [conversion_of(net[0]).families for net in (bnn, again)]
    assert families[0] == families[1]
    assert families[0]["weight"].positions == 9
    for a, b in zip(again.parameters(), bnn.parameters(), strict=True):
        assert torch.equal(a, b)
    loaded = kasuri.load_objective(path, again)
    assert repr(loaded.priors[0]) == repr(prior)
    torch.testing.assert_close(loaded.kl(), elbo.kl())
    torch.testing.assert_close(copy.deepcopy(elbo).kl(), elbo.kl())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"local": 0.0}, "local=0.0"),
        ({"layer": -1.0}, "layer=-1.0"),
        ({"local": "a"}, "local='a'"),
        ({"layer": True}, "layer=True"),
        ({"gap": 0.0}, "gap=0.0"),
        ({"gap": "a"}, "gap='a'"),
        ({"form": "exact"}, "'direct'"),
        ({"mean": "zero"}, "'uniform'"),
    ],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        kasuri.RadialPrior(**options)


def test_what_the_prior_does_not_have_is_refused():
    with pytest.raises(TypeError, match=r"prior\.kl\(posterior\)"):
        kasuri.RadialPrior().log_prob(torch.zeros(2, 2))
    with pytest.raises(TypeError, match=r"prior\.kl\(posterior\)"):
        kasuri.RadialPrior().expected_log_prob(randomised(kasuri.Radial(), (3, 4)))


def test_a_network_without_radii_is_refused_and_one_that_fell_back_is_not():
    tied = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1))
    with pytest.raises(ValueError, match=r"radii.*kasuri\.Radial"):
        kasuri.ELBO(tied, kasuri.Categorical(), kasuri.RadialPrior(), num_data=10)
    single = kasuri.bayesianize(nn.Linear(3, 1), kasuri.Radial(grouping="column"))
    elbo = kasuri.ELBO(single, kasuri.Gaussian(), kasuri.RadialPrior(), num_data=10)
    assert float(elbo.kl().detach()) > 0


@pytest.mark.parametrize("prior", [kasuri.Normal(1.0), kasuri.ARD(), kasuri.GroupARD()])
def test_a_prior_of_weights_for_rows_and_columns_together_is_refused_at_construction(prior):
    bnn = kasuri.bayesianize(torch.nn.Linear(4, 3), kasuri.Radial(grouping="double"))
    with pytest.raises(TypeError, match=r"prior=kasuri.RadialPrior\(\)"):
        kasuri.ELBO(bnn, kasuri.Gaussian(), prior, num_data=10)
    rows = kasuri.bayesianize(torch.nn.Linear(4, 3), kasuri.Radial(grouping="row"))
    assert torch.isfinite(kasuri.ELBO(rows, kasuri.Gaussian(), prior, num_data=10).kl())

"""What a mask leaves of a matrix normal varies without the noise of what is gone: the same law, cheaper."""

import copy

import pytest
import torch
from torch import nn

import kasuri
from kasuri.posteriors import sides
from kasuri.posteriors.masked import masked
from tests.posteriors.test_part import randomised

FAMILIES = {
    "matrix normal": kasuri.MatrixNormal(),
    "bounded": kasuri.MatrixNormal(max_scale=0.6, scale=0.1),
    "low rank and full": kasuri.MatrixNormal(rows=1, columns="full"),
    "rank one": kasuri.MatrixNormalDiagonal(),
    "free": kasuri.MatrixNormalDiagonal(diagonal="free"),
    "scaled": kasuri.ScaledMatrixNormal(),
}
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
shapes = pytest.mark.parametrize("shape", [(6, 7), (2, 6, 7)], ids=str)


def both(family, shape):
    """A masked posterior and one whose rest is apart."""
    q = randomised(family, shape)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 1, :] = mask[..., [0, 3]] = False
    mask[..., 0, 4] = False  # a weight of its own
    if len(shape) == 3:
        mask[0, 2] = False  # blocks lose different numbers
    before = masked(q, mask)
    after = copy.deepcopy(before)
    after.set_apart()
    return before, after


def covariance(q):
    size = q.mean.numel()
    factor = q.pull(torch.eye(size, dtype=torch.float64).reshape(size, *q.mean.shape)).detach()
    return factor @ factor.mT


@families
@shapes
def test_the_law_stays(family, shape):
    before, after = both(family, shape)
    torch.testing.assert_close(covariance(after), covariance(before))
    torch.testing.assert_close(after.variance, before.variance)
    # of a free diagonal the entropy is a bound, of another eigenbasis where eigenvalues coincide
    tolerance = {"atol": 1e-9, "rtol": 0.0}
    torch.testing.assert_close(after.entropy(), before.entropy(), **tolerance)
    for prior in (kasuri.Normal(0.7), kasuri.GroupARD()):
        torch.testing.assert_close(prior.kl(after), prior.kl(before), **tolerance)


@families
@shapes
def test_the_entropy_of_the_rest_is_right_after_steps_too(family, shape, monkeypatch):
    _, q = both(family, shape)
    optimizer = torch.optim.Adam(q.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        (kasuri.Normal(0.5).kl(q) + q.rsample().square().sum()).backward()
        optimizer.step()
    names = [name for name, _ in q.named_parameters()]
    entropies, slopes = [], []
    for quick in (False, True):
        monkeypatch.setattr(
            sides, "eager", lambda quick=quick: quick
        )  # the general formula, or a sum
        entropies.append(q.entropy())
        slopes.append(torch.autograd.grad(entropies[-1], list(q.parameters()), allow_unused=True))
    torch.testing.assert_close(*entropies, atol=1e-9, rtol=0)
    mask = q.mask
    for name, want, found in zip(names, *slopes, strict=True):
        if want is None or name.endswith("lower"):
            continue  # columns that have no part in the rest stay without
        found = torch.zeros_like(want) if found is None else found
        if name == "base.columns.log_scale":
            want = torch.where(mask.any(-2), want, 0.0)
        if name == "base.rows.log_scale":
            want = torch.where(mask.any(-1), want, 0.0)
        torch.testing.assert_close(found, want, atol=1e-7, rtol=1e-5, msg=name)


def test_a_compressed_network_is_apart_and_comes_back_from_a_file(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        net[0].weight[:, [0, 4, 7]] = 0
        net[0].weight[2] = 0
    bnn = kasuri.bayesianize(net, kasuri.MatrixNormal(scale=1e-3))
    x = torch.randn(20, 9).double()
    options = {"criterion": "snr", "threshold": 1.0}
    small, report = kasuri.compress(bnn, x, keep_posterior=True, **options)
    assert [one.after for one in report.units if one.layer == "0"] == [5]
    q = small[0].posteriors.weight
    noisy = q.base.columns.log_scale > sides.NO_NOISE / 2
    assert noisy.tolist() == [i not in (0, 4, 7) for i in range(9)]
    assert (q.base.rows.log_scale > sides.NO_NOISE / 2).all()
    kasuri.save(small, tmp_path / "small.safetensors")
    plain, _ = kasuri.compress(bnn, x, **options)
    again = kasuri.load(tmp_path / "small.safetensors", plain)
    other = again[0].posteriors.weight
    torch.testing.assert_close(covariance(other), covariance(q))
    torch.testing.assert_close(other.entropy(), q.entropy(), atol=1e-9, rtol=0)
    # cut once more, from either
    for one in (small, again):
        smaller, _ = kasuri.compress(one, x, keep_posterior=True, **options)
        assert torch.isfinite(kasuri.GroupARD().kl(smaller[0].posteriors.weight))


@families
def test_another_mask_that_is_loaded_counts(family):
    _, few = both(family, (6, 7))
    more = masked(copy.deepcopy(few.base), few.mask.clone())
    more.mask[:, 5] = False
    more.set_apart()
    alone, whole = copy.deepcopy(few), masked(randomised(family, (6, 7)), torch.ones_like(few.mask))
    for source, target in ((few, more), (whole, few)):
        target.load_state_dict(source.state_dict())
        torch.testing.assert_close(covariance(target), covariance(source))
        torch.testing.assert_close(target.entropy(), source.entropy(), atol=1e-9, rtol=0)
    torch.testing.assert_close(more.entropy(), alone.entropy(), atol=1e-9, rtol=0)

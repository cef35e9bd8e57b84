"""Spectra against numpy, and the baselines against what they are baselines of."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri.diagnostics import spectrum, spectrum_table
from tests.diagnostics.networks import (
    Plain,
    Recurrent,
    convolutional,
    dense,
    low_rank,
    mean_field_with,
    randomised,
)

FAMILIES = [
    kasuri.MeanField(),
    kasuri.MeanField(max_scale=2.0),
    kasuri.KTied(rank=3),
    kasuri.MatrixNormal(),
    Plain(),
]


def shares(matrix):
    values = np.linalg.svd(matrix.detach().numpy().astype(np.float64), compute_uv=False)
    return values, values**2 / (values**2).sum()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_values_and_shares_are_those_of_numpy(family):
    bnn = randomised(dense(), family, bias=kasuri.MeanField())
    found = spectrum(bnn)
    assert list(found) == ["0.weight", "2.weight"]
    for name, q in kasuri.named_posteriors(bnn):
        if name not in found:
            continue
        one = found[name]
        assert one.shape == tuple(q.shape)
        for spectra, matrix in ((one.mean, q.mean), (one.scale, q.variance.sqrt())):
            values, share = shares(matrix)
            np.testing.assert_allclose(spectra.values, values, rtol=1e-5, atol=1e-6 * values[0])
            np.testing.assert_allclose(spectra.share, share, rtol=1e-4, atol=1e-10)
            np.testing.assert_allclose(spectra.cumulative, share.cumsum(), rtol=1e-6)
            assert spectra.values.dtype == torch.float64


def test_baselines_of_the_scales():
    scale = low_rank(2, 40, 30, noise=0.2)
    one = spectrum(mean_field_with(scale))["weight"]
    scale = scale.numpy()
    assert one.constant == pytest.approx(scale.mean() ** 2 / (scale**2).mean(), rel=1e-10)
    # the best constant matrix in the sense of least squares, found by search
    tried = [1 - ((scale - c) ** 2).sum() / (scale**2).sum() for c in np.linspace(0, 0.2, 4001)]
    assert max(tried) == pytest.approx(one.constant, abs=1e-4)
    values, share = shares(torch.from_numpy(scale - scale.mean()))
    np.testing.assert_allclose(one.centred.values, values, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(one.centred.share, share, rtol=1e-8, atol=1e-12)
    assert one.shuffled.values.square().sum() == pytest.approx((scale**2).sum())
    assert one.shuffled.share[0] < one.scale.share[0]


def test_structure_is_told_from_triviality():
    trivial = 0.01 * (0.1 * torch.randn(200, 100, dtype=torch.float64)).exp()
    one = spectrum(mean_field_with(trivial))["weight"]
    assert one.scale.share[0] == pytest.approx(1 / 1.01, abs=2e-3)  # looks like structure
    assert one.scale.share[0] - one.constant < 1e-3
    assert one.scale.share[0] - one.shuffled.share[0] < 1e-3
    assert one.centred.share[0] < 0.1
    one = spectrum(mean_field_with(low_rank(1, 200, 100, noise=0.1)))["weight"]
    assert one.scale.share[0] - one.constant > 0.3
    assert one.scale.share[0] - one.shuffled.share[0] > 0.3
    assert one.centred.cumulative[1] > 0.95


def test_the_shuffle_is_the_same_every_time():
    bnn = randomised(dense(), kasuri.MeanField())
    state = torch.get_rng_state()
    first, again = (spectrum(bnn)["0.weight"].shuffled for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.values, again.values)


def test_a_constant_matrix_has_nothing_left_when_centred():
    one = spectrum(mean_field_with(torch.full((6, 5), 0.03, dtype=torch.float64)))["weight"]
    assert one.constant == pytest.approx(1.0)
    assert one.scale.share[0] == pytest.approx(1.0)
    assert torch.equal(one.centred.values, torch.zeros(5, dtype=torch.float64))
    assert torch.equal(one.centred.share, torch.zeros(5, dtype=torch.float64))


def test_scales_far_below_single_precision():
    scale = 1e-30 * low_rank(1, 6, 5)
    one = spectrum(mean_field_with(scale))["weight"]
    assert one.scale.share[0] == pytest.approx(1.0)
    assert 0 < one.constant < 1


def test_points_have_means_only():
    bnn = kasuri.bayesianize(dense(), kasuri.Point(), where="0")
    bnn = kasuri.bayesianize(bnn, kasuri.MeanField(), where="2")
    found = spectrum(bnn)
    assert found["0.weight"].as_dict()["scale"] is None
    assert found["2.weight"].scale is not None
    assert "-" in spectrum_table(found)


def test_blocks_have_an_entry_each():
    bnn = randomised(Recurrent(), kasuri.MeanField(), blocks=True)
    found = spectrum(bnn)
    assert [f"lstm.weight_ih_l0[{i}]" in found for i in range(5)] == [True] * 4 + [False]
    assert "embedding.weight" in found
    assert not any("bias" in name for name in found)
    q = dict(kasuri.named_posteriors(bnn))["lstm.weight_hh_l0"]
    values, _ = shares(q.scale[2])
    np.testing.assert_allclose(found["lstm.weight_hh_l0[2]"].scale.values, values, rtol=1e-5)
    found = spectrum(randomised(convolutional(), kasuri.KTied(rank=1)))
    assert found["0.weight"].shape == (6, 18)
    assert found["2.weight[1]"].shape == (2, 12)


def test_as_dict_is_json_and_cut():
    row = spectrum(randomised(nn.Linear(13, 12), kasuri.MeanField()))["weight"].as_dict()
    assert json.loads(json.dumps(row)) == row
    assert row["layer"] == "weight"
    assert row["shape"] == [12, 13]
    for part in (row["mean"], row["scale"]):
        assert {len(part[key]) for key in ("values", "share", "cumulative")} == {10}
    assert {len(row["scale"][key]) for key in ("shuffled", "centred")} == {10}
    assert 0 < row["scale"]["constant"] <= 1


def test_table_shows_cumulative_shares_in_per_cent():
    found = spectrum(mean_field_with(low_rank(2, 12, 10)))
    header, ranks, line = spectrum_table(found).splitlines()
    assert header.split() == ["means", "scales", "constant", "shuffled", "centred"]
    assert ranks.split().count("k=1") == 4
    cells = line.split()
    assert cells[:2] == ["weight", "12x10"]
    assert cells[6] == "100.00"  # rank 2 explains everything
    assert float(cells[5]) == pytest.approx(
        100 * float(found["weight"].scale.cumulative[0]), abs=0.005
    )


def test_what_cannot_be_analysed_is_refused():
    with pytest.raises(ValueError, match="bayesianize"):
        spectrum(nn.Linear(2, 2))

    class Vector(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))

    with pytest.raises(ValueError, match="vector"):
        spectrum(kasuri.bayesianize(Vector(), kasuri.MeanField()))
    bnn = randomised(dense(), kasuri.MeanField())
    with torch.no_grad():
        dict(kasuri.named_posteriors(bnn))["2.weight"].log_scale[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"2\.weight are not all finite"):
        spectrum(bnn)

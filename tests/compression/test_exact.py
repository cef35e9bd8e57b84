"""The small network gives the outputs of the masked one, whatever went and however units are coupled."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import kasuri
from kasuri.compression.units import masked_net
from tests.compression.networks import NETWORKS, bayesian

CASES = [
    *((name, structure) for name in NETWORKS for structure in ("either", "weights")),
    *(("residual", structure) for structure in ("both", "rows", "columns")),
    *(("recurrent", structure) for structure in ("both", "rows", "columns")),
]


def compressed(
    bnn: nn.Module, x: torch.Tensor, structure: str
) -> tuple[nn.Module, kasuri.compression.CompressionReport]:
    """The network at the lowest of a few thresholds at which something goes."""
    _, report = kasuri.compress(bnn, x, structure=structure, threshold=0.0)
    logs = torch.cat([values.flatten() for values in report.statistics.values()])
    for share in (0.4, 0.6, 0.8, 0.9, 0.97):
        threshold = float(logs[logs.isfinite()].quantile(share).exp())
        small, report = kasuri.compress(bnn, x, structure=structure, threshold=threshold)
        if sum(one.before - one.after for one in report.units) > 2:
            return small, report
    return small, report


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_outputs_equal_those_of_the_masked_network(name: str, structure: str) -> None:
    bnn = bayesian(name)
    make = NETWORKS[name][1]
    x = make(3)
    small, report = compressed(bnn, x, structure)
    masked = masked_net(kasuri.collapse(bnn), report.masks).eval()
    torch.manual_seed(7)
    for fresh in (x, make(2), make(5)):
        torch.testing.assert_close(small(fresh), masked(fresh), rtol=0, atol=1e-10)
    assert report.difference < 1e-10
    assert report.masks
    assert any(not mask.all() for mask in report.masks.values())
    plain = kasuri.collapse(bnn).eval()
    assert not torch.allclose(masked(x), plain(x)), "masking must matter for the comparison to"
    if structure != "weights":
        assert sum(one.before - one.after for one in report.units) > 0, report.notes
        assert report.after.parameters < report.before.parameters
        assert report.after.flops < report.before.flops


@pytest.mark.parametrize("name", ["mlp", "grouped", "recurrent", "attention"])
def test_nothing_of_kasuri_is_left(name: str) -> None:
    bnn, x = bayesian(name), NETWORKS[name][1](2)
    small, _ = compressed(bnn, x, "columns")
    assert not [m for m in small.modules() if type(m).__module__.startswith("kasuri")]
    assert not [h for m in small.modules() for h in (*m._forward_hooks, *m._forward_pre_hooks)]
    assert b"kasuri" not in pickle.dumps(small).replace(b"tests.compression", b"")
    buffer = io.BytesIO()
    torch.save(small, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    for other in (again, copy.deepcopy(small)):
        torch.testing.assert_close(other(x), small(x), rtol=0, atol=0)
    small.train()(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters() if p.requires_grad)


def test_a_threshold_of_zero_changes_nothing() -> None:
    bnn, x = bayesian("residual"), NETWORKS["residual"][1](2)
    small, report = kasuri.compress(bnn, x, threshold=0.0)
    plain = kasuri.collapse(bnn).eval()
    assert torch.equal(small(x), plain(x))
    assert report.before == report.after
    assert not report.masks


def test_the_network_given_is_not_touched() -> None:
    bnn, x = bayesian("grouped").train(), NETWORKS["grouped"][1](2)
    before = copy.deepcopy(bnn.state_dict())
    kasuri.compress(bnn, x, structure="rows", threshold=1e9)
    assert bnn.training
    for key, value in bnn.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_single_precision_comes_out_as_it_went_in() -> None:
    bnn = bayesian("residual").float()
    x = NETWORKS["residual"][1](2).float()
    small, report = kasuri.compress(bnn, x, structure="rows", threshold=1.0)
    assert {p.dtype for p in small.parameters()} == {torch.float32}
    masked = masked_net(kasuri.collapse(bnn), report.masks).eval()
    torch.testing.assert_close(small(x), masked(x), rtol=1e-4, atol=1e-4)


def test_every_layer_keeps_a_unit() -> None:
    bnn, x = bayesian("lenet"), NETWORKS["lenet"][1](2)
    small, report = kasuri.compress(bnn, x, structure="columns", threshold=1e9)
    assert {one.after for one in report.units if one.obstacle is None} == {1}
    assert small(x).shape == (2, 10)

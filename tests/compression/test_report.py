"""The report: its numbers and its words."""

import json

import torch
from torch import nn

import kasuri
from tests.compression.networks import NETWORKS, bayesian


def test_the_report_is_json_and_a_table() -> None:
    bnn, x = bayesian("recurrent"), NETWORKS["recurrent"][1](2)
    _, report = kasuri.compress(bnn, x, structure="rows", threshold=0.5)
    told = json.loads(json.dumps(report.as_dict()))
    assert told["after"]["parameters"] == report.after.parameters
    assert "masks" not in told
    assert {("lstm", "out"), ("lstm", "own"), ("words", "out")} <= report.statistics.keys()
    text = str(report)
    assert f"{report.before.parameters:,}" in text
    assert all(note in text for note in report.notes)
    bnn, x = bayesian("attention"), NETWORKS["attention"][1](2)
    assert "units of 'layer.linear2' stay: 'layer.norm2'" in str(kasuri.compress(bnn, x)[1])


def test_units_in_the_report_are_those_of_the_network() -> None:
    bnn, x = bayesian("mlp"), torch.randn(3, 6).double()
    small, report = kasuri.compress(bnn, x, structure="columns", threshold=0.5)
    units = {one.layer: one.after for one in report.units}
    assert units == {"0": small[0].out_features, "2": small[2].out_features, "5": 3}
    assert report.after.parameters == sum(p.numel() for p in small.parameters())


def test_unused_inputs_are_told_and_change_nothing() -> None:
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Linear(6, 4), kasuri.MeanField(scale=0.1)).double()
    bnn.posteriors.weight.loc.data[:, [1, 4]] = 0
    small, report = kasuri.compress(bnn, torch.randn(3, 6).double(), threshold=0.05)
    assert not report.masks["weight"][:, [1, 4]].any()
    x = torch.randn(5, 6).double()
    y = small(x)
    x[:, [1, 4]] = 100.0
    assert torch.equal(small(x), y)

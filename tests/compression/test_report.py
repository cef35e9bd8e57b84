"""The report: its numbers and its words."""

import json

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

"""The benchmarks run, and their results make a page."""

import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from benchmarks import cases, contenders, memory, results
from benchmarks.run import targets, time_case
from benchmarks.table import page
from benchmarks.timing import Plan, measure
from experiments import data as datasets

ONCE = Plan(rounds=1, warmup=1, burst=0.0)


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=results.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_a_quick_run_writes_complete_results_and_a_page(tmp_path: Path) -> None:
    names = ["step-400-batch-128", "predict-400-batch-128"]
    options = ["--quick", "--only-kasuri", "--threads", "1", "--out", str(tmp_path)]
    run("benchmarks.run", *options, "--cases", *names)
    result = json.loads((tmp_path / "step-1-thread.json").read_text())
    assert {"settings", "versions", "commit", "date", "wall_seconds", "targets"} <= result.keys()
    run("benchmarks.table", "--results", str(tmp_path), "--out", str(tmp_path / "page.md"))
    text = (tmp_path / "page.md").read_text()
    assert "kasuri KTied(rank=2) local" in text
    assert "batch 128" in text


def test_a_race_tells_who_is_where_after_how_many_seconds(tmp_path: Path) -> None:
    if "mnist" not in {source.name for source in datasets.status() if source.present}:
        pytest.skip("mnist not on this machine: set KASURI_DATA")
    out, picture = tmp_path / "race.json", tmp_path / "race.svg"
    options = ["--steps", "100", "--budget", "0.01", "--out", str(out), "--picture", str(picture)]
    run("benchmarks.race", *options)
    result = json.loads(out.read_text())
    assert {"settings", "versions", "commit", "date", "wall_seconds"} <= result.keys()
    for curve in result["contenders"].values():
        assert len(curve["step"]) == len(curve["seconds"]) == len(curve["neg_elbo"])
        assert curve["step"] == [0, 50]  # the budget is spent after one turn
        assert curve["neg_elbo"][1] < curve["neg_elbo"][0]
        assert curve["reached"]["0.7"] is None
    lines = ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == len(result["contenders"])


def test_ratios_to_further_references_are_of_the_same_round() -> None:
    """The third takes three times as long as the second, however slow the machine."""
    work = {name: (lambda n=n: time.sleep(0.004 * n)) for n, name in enumerate("abc", 1)}
    measured, _ = measure(work, "a", Plan(rounds=3, warmup=1, burst=0.0), references=["b"])
    assert measured["b"].versus == {"b": 1.0}
    assert 1.2 < measured["c"].versus["b"] < 1.8
    without, _ = measure(work, "a", ONCE)
    assert "versus" not in without["a"].as_json()


def test_peak_memory_is_what_is_alive_at_once() -> None:
    def work() -> torch.Tensor:
        first = torch.empty(1_000_000)
        second = first + 1  # 8 MB with the first
        del first
        third = second + 1  # 8 MB again
        del second
        return third

    assert 8_000_000 <= memory.peak_bytes(work) < 8_001_000  # a scalar or two besides


def test_memory_of_the_plain_network_is_its_parameters_four_times_and_little_else() -> None:
    """Values, gradients and two moments of Adam; activations of 100 examples are a few percent."""
    found = memory.of_contender("matrix-300-batch-100", "plain")
    network = contenders.NETWORKS[cases.PAPER].build()
    assert found["parameters"] == sum(p.numel() for p in network.parameters())
    assert 16 * found["parameters"] < found["peak_bytes"] < 1.15 * 16 * found["parameters"]


def page_of(kind: str, name: str, case: dict) -> str:
    """The page of one case alone."""
    about = results.about() | {"settings": {"command": "", "rounds": 1}, "wall_seconds": 0.0}
    result = {"kind": kind, "threads": 1, "cases": {name: case}, "targets": targets({name: case})}
    return page([about | result])


def test_matrix_normals_have_a_table_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all contenders, on a network that is small enough for a test."""
    small = contenders.Network(lambda: contenders.mlp(6, 5, activation=nn.ELU), (784,))
    monkeypatch.setitem(contenders.NETWORKS, cases.PAPER, small)
    monkeypatch.setattr(memory, "of_contender", memory.training)
    name = "matrix-300-batch-100"
    case = time_case(name, ONCE, only_kasuri=False)
    assert {contender.name for contender in contenders.MATRIX} == set(case["contenders"])
    (target,) = targets({name: case})
    assert target["reference"] == "kasuri MeanField() local"
    assert target["ratio"] == case["contenders"][target["contender"]]["versus"][target["reference"]]
    text = page_of("matrix", name, case)
    start = "| kasuri ScaledMatrixNormal()"
    row = next(line for line in text.splitlines() if line.startswith(start))
    shared = case["contenders"]["kasuri ScaledMatrixNormal() shared"]
    cells = row.split("|")[3:]
    assert float(cells[0]) == round(shared["versus"]["kasuri MeanField() shared"], 2)
    assert float(cells[1]) == round(shared["versus"]["kasuri MeanField() local"], 2)
    assert float(cells[3]) == round(shared["peak_bytes"] / 1e6, 2)
    assert "≤ 2 x kasuri MeanField() local" in text


def test_auto_encoders_are_timed_beside_independent_latent_variables() -> None:
    """A matrix normal and a full one, each with its target, on a page with the reference's name."""
    name, reference = "vae-9-batch-100", "kasuri.vae DiagonalLatent(z=9)"
    case = time_case(name, ONCE, only_kasuri=True)
    assert case["contenders"][reference]["versus"][reference] == 1.0
    assert {(target["contender"], target["reference"]) for target in targets({name: case})} == {
        ("kasuri.vae MatrixNormalLatent(rows=3, columns=3)", reference),
        ("kasuri.vae FullLatent(z=9)", reference),
    }
    text = page_of("vae", name, case)
    assert f"to {reference}, 1 thread" in text
    assert f"≤ 1.3 x {reference}" in text


def test_networks_trained_together_are_timed_beside_one_after_the_other(tmp_path: Path) -> None:
    out = tmp_path / "together.json"
    few = ["--rounds", "1", "--epochs", "1", "--networks", "2"]
    run("benchmarks.together", *few, "--out", str(out))
    result = json.loads(out.read_text())
    assert {"commit", "versions", "cpu", "threads"} <= result.keys()
    times = [family["one after the other"] for family in result["families"].values()]
    assert all(measured["median_ms"] > 0 for measured in times)

"""The benchmarks run, and their results make a page."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import kasuri
from benchmarks import cases, contenders, memory, race, results, run, table, timing, together
from benchmarks.run import targets, time_case
from benchmarks.timing import Plan, measure

ONCE = Plan(rounds=1, warmup=1, burst=0.0)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """784-6-5-10 in the place of the networks that are timed."""
    small = contenders.Network(lambda: contenders.mlp(6, 5, activation=nn.ELU), (784,))
    for name in (cases.SMALL, cases.PAPER):
        monkeypatch.setitem(contenders.NETWORKS, name, small)


@pytest.mark.usefixtures("small_networks")
def test_a_short_run_writes_complete_results_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Plan", partial(Plan, warmup=1, burst=0.0))
    names = ["step-400-batch-128", "predict-400-batch-128"]
    options = ["--rounds", "1", "--threads", "1", "--out", str(tmp_path)]
    run.main([*options, "--cases", *names])
    result = json.loads((tmp_path / "step-1-thread.json").read_text())
    assert {"settings", "versions", "commit", "date", "wall_seconds", "targets"} <= result.keys()
    table.main(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "kasuri KTied(rank=2) local" in text
    assert "batch 128" in text


def test_a_race_tells_who_is_where_after_how_many_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "TURN", 10)
    monkeypatch.setattr(race, "BATCH", 32)
    x = torch.rand(400, 784)
    part = SimpleNamespace(x=x, y=(x[:, :10]).argmax(1))
    monkeypatch.setattr(race.datasets, "load", lambda name: SimpleNamespace(train=part, valid=part))
    out, picture = tmp_path / "race.json", tmp_path / "race.svg"
    for name, value in {"STEPS": 20, "BUDGET": 0.01, "OUT": out, "PICTURE": picture}.items():
        monkeypatch.setattr(race, name, value)
    race.main()
    result = json.loads(out.read_text())
    assert {"settings", "versions", "commit", "date", "wall_seconds"} <= result.keys()
    for curve in result["contenders"].values():
        assert len(curve["step"]) == len(curve["seconds"]) == len(curve["neg_elbo"])
        assert curve["step"] == [0, 10]  # the budget is spent after one turn
        assert curve["neg_elbo"][1] < curve["neg_elbo"][0]
        assert curve["reached"]["0.7"] is None
    lines = ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == len(result["contenders"])


def test_ratios_to_further_references_are_of_the_same_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that only the work moves: the third takes three seconds, the second two."""
    now = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    work = {name: (lambda n=n: now.append(now.pop() + n)) for n, name in enumerate("abc", 1)}
    measured, _ = measure(work, "a", Plan(rounds=3, warmup=1, burst=0.0), references=["b"])
    assert measured["b"]["versus"] == {"b": 1.0}
    assert measured["c"]["versus"] == {"b": 1.5}
    without, _ = measure(work, "a", ONCE)
    assert "versus" not in without["a"]


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
    return table.page([about | result])


@pytest.mark.usefixtures("small_networks")
def test_matrix_normals_have_a_table_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all contenders."""
    monkeypatch.setattr(memory, "of_contender", memory.training)
    name = "matrix-300-batch-100"
    case = time_case(name, ONCE)
    assert {contender.name for contender in contenders.MATRIX} == set(case["contenders"])
    (target,) = targets({name: case})
    assert target["reference"] == "kasuri MeanField() local"
    assert target["ratio"] == case["contenders"][target["contender"]]["versus"][target["reference"]]
    text = page_of("matrix", name, case)
    start = "| kasuri ScaledMatrixNormal()"
    row = next(line for line in text.splitlines() if line.startswith(start))
    shared = case["contenders"]["kasuri ScaledMatrixNormal() shared"]
    ratios = [shared["versus"][f"kasuri MeanField() {how}"] for how in ("shared", "local")]
    cells = [float(cell) for cell in row.split("|")[3:7]]
    assert [*cells[:2], cells[3]] == [round(n, 2) for n in (*ratios, shared["peak_bytes"] / 1e6)]
    assert "≤ 2 x kasuri MeanField() local" in text


def test_auto_encoders_are_timed_beside_independent_latent_variables() -> None:
    """A matrix normal and a full one, each with its target, on a page with the reference's name."""
    name, reference = "vae-9-batch-100", "kasuri.vae DiagonalLatent(z=9)"
    case = time_case(name, ONCE)
    assert case["contenders"][reference]["versus"][reference] == 1.0
    assert {(target["contender"], target["reference"]) for target in targets({name: case})} == {
        ("kasuri.vae MatrixNormalLatent(rows=3, columns=3)", reference),
        ("kasuri.vae FullLatent(z=9)", reference),
    }
    text = page_of("vae", name, case)
    assert f"to {reference}, 1 thread" in text
    assert f"≤ 1.3 x {reference}" in text


def test_networks_trained_together_are_timed_beside_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    radial = {"Radial()": kasuri.Radial()}
    monkeypatch.setattr(together, "FAMILIES", {"MeanField()": kasuri.MeanField()} | radial)
    result = together.result_of(ONCE, epochs=1, networks=2)
    assert {"commit", "versions", "cpu", "settings"} <= result.keys()
    times = [family["one after the other"] for family in result["families"].values()]
    assert all(measured["median_ms"] > 0 for measured in times)

"""Every experiment runs, and its result file tells what was run."""

import json
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest

from experiments import catalog, results
from experiments import data as datasets
from experiments.data import pictures
from experiments.k_tied import Truncation
from experiments.networks import MLP
from experiments.report import read
from experiments.running import Plan, run_one
from experiments.spec import Experiment, Where
from experiments.uci import Splits
from experiments.vae import Generative

TINY = replace(
    catalog.variants("demo/digits")["k-tied-2"], epochs=2, limit=120, samples=3, network=MLP((8,))
)


def needs(experiment: Experiment) -> set[str]:
    """Data sets that must be on this machine."""
    if isinstance(experiment, Splits):
        return {f"uci/{experiment.table}"}
    trained = getattr(experiment, "base", experiment)
    names = {getattr(trained, "data", None), getattr(trained, "outside", None)}
    return {name for name in names if isinstance(name, str)} - {"noise", *pictures.CIFAR}


def shrunk(experiment: Experiment) -> Experiment:
    """The smoke run on fewer data."""
    smoke = experiment.smoke()
    if isinstance(smoke, Truncation):
        return replace(smoke, base=shrunk(smoke.base))
    return replace(smoke, limit=60) if hasattr(smoke, "limit") else smoke


def kind(experiment: Experiment) -> tuple[Any, ...]:
    """What a program consists of: rows with the same differ in numbers."""
    trained = getattr(experiment, "base", experiment)
    parts = (getattr(trained, name, None) for name in ("family", "latent", "criterion"))
    return type(experiment), *(part if isinstance(part, str) else type(part) for part in parts)


def cases() -> list[Any]:
    """Rows of a name (whatever its length) or of a kind that none before them has."""
    known: set[Any] = set()
    found = []
    for row in catalog.ALL:
        features = {re.sub("-(short|medium)$", "", row.name), kind(row)}
        if not features <= known:
            found.append(pytest.param(row, id=f"{row.name}/{row.variant}"))
        known |= features
    return found


@pytest.mark.parametrize("experiment", cases())
def test_smoke_run_writes_a_result_that_the_report_reads(experiment, tmp_path):
    absent = needs(experiment) - {name for name, place in datasets.status().items() if place}
    if absent:
        pytest.skip(f"{absent} not on this machine: set KASURI_DATA")
    plan = Plan(tmp_path / "results", tmp_path / "runs", smoke=True)
    path = run_one(shrunk(experiment), 3, plan)
    assert path == tmp_path / "results/smoke" / experiment.name / experiment.variant / "3.json"
    (found,), problems = read([path])
    assert not problems
    assert found.experiment == experiment.name
    content = json.loads(path.read_text())
    assert (content["seed"], content["smoke"]) == (3, True)
    assert len(content["history"]) >= 2
    score = "log_likelihood" if isinstance(experiment, Generative) else "nll"
    assert content["metrics"][score] == pytest.approx(content["metrics"][score])  # a number
    assert {"total", "train"} <= set(content["seconds"])


def test_every_stored_result_is_of_a_known_experiment():
    """Settings changed on the command line stand behind the variant's name."""
    root = results.ROOT / "results"
    stored = {path: json.loads(path.read_text()) for path in root.rglob("[0-9]*.json")}
    assert len(stored) > 300
    for path, content in stored.items():
        name, variant = content["experiment"], content["variant"]
        assert variant.partition(",")[0] in catalog.variants(name)
        assert path == root / name / variant / f"{content['seed']}.json"


def test_experiments_have_places_of_their_own_and_can_be_handed_to_another_process():
    places = [(row.name, row.variant) for row in catalog.ALL]
    assert len(set(places)) == len(places)
    for row in catalog.ALL:
        assert pickle.loads(pickle.dumps(row)).settings() == row.settings()


def test_a_result_that_is_there_is_not_made_again(tmp_path, capsys):
    plan = Plan(tmp_path / "results", tmp_path / "runs")
    path = run_one(TINY, 0, plan)
    before = path.read_bytes()
    capsys.readouterr()
    assert run_one(TINY, 0, plan).read_bytes() == before
    said = capsys.readouterr().out
    assert "is there" in said
    assert "differ" not in said
    run_one(replace(TINY, samples=4), 0, plan)
    assert "settings differ" in capsys.readouterr().out
    assert path.read_bytes() == before
    run_one(TINY, 0, replace(plan, force=True))
    assert path.read_bytes() != before  # the time at least


def test_an_interrupted_experiment_goes_on_to_the_same_result(tmp_path, monkeypatch):
    whole = TINY.run(0, Where(folder=tmp_path / "whole", show=False))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.supervised.kasuri.save", killed)
    with pytest.raises(KeyboardInterrupt):
        TINY.run(0, Where(folder=tmp_path / "half", show=False))
    monkeypatch.undo()
    assert (tmp_path / "half/checkpoint.pt").exists()
    assert TINY.run(0, Where(folder=tmp_path / "half", show=False)).metrics == whole.metrics


def test_files_of_other_versions_are_still_of_the_experiment():
    settings = TINY.settings()
    assert TINY.made(settings)
    older = {name: value for name, value in settings.items() if name != "spread_rate"}
    assert TINY.made(older | {"no longer known": 1})
    assert not replace(TINY, samples=9).made(older)


def test_a_sweep_does_not_look_at_test_data():
    found = TINY.run(0, Where(show=False, test=False))
    assert (found.metrics, found.figures) == ({}, {})
    assert found.validation["nll"] > 0


def test_a_share_of_the_data_can_be_held_out_by_the_seed():
    row = replace(TINY, held_out=0.1, limit=0)
    first, again, other = (row.load("digits", seed) for seed in (0, 0, 1))
    assert (len(first.valid), len(first.train)) == (130, 1167)
    assert first.valid.x.equal(again.valid.x)
    assert not first.valid.x.equal(other.valid.x)
    whole = datasets.load("digits").everything().train.x.sum()
    assert float(first.train.x.sum() + first.valid.x.sum()) == pytest.approx(float(whole))


def test_long_histories_are_thinned_but_keep_what_was_validated():
    history = [{"epoch": float(i), "loss": 1 / i} for i in range(1, 1001)]
    for row in history[24::25]:
        row["valid_nll"] = 0.5
    kept = results.thinned(history)
    assert [row for row in kept if "valid_nll" in row] == history[24::25]
    assert kept[-1] is history[-1]
    assert 100 <= len(kept) <= 145
    assert results.thinned(history[:50]) == history[:50]


def test_result_files_are_json_with_a_line_per_row():
    content = {"a": 1 / 3, "history": [{"x": 1}, {"x": 2}], "empty": [], "deep": {"b": [1.0]}}
    text = results.as_text(content)
    assert json.loads(text) == content | {"a": 0.3333333}
    assert len(text.splitlines()) == 9

"""Sweeps: the whole grid once, by any number of workers, best settings by validation."""

import json
from dataclasses import replace

import pytest

from experiments import catalog
from experiments.cli import main
from experiments.networks import MLP
from experiments.spec import Where
from experiments.sweeping import Sweep, run_sweep

TINY = replace(
    catalog.variants("demo/digits")["k-tied-1"],
    epochs=1,
    limit=60,
    samples=2,
    network=MLP((4,)),
    space={"learning_rate": (1e-5, 3e-2), "prior_scale": (0.2, 0.3)},
)


def run(folder, **options):
    plan = Sweep(results=folder / "results", runs=folder / "runs", threads=1, variant="", **options)
    return run_sweep(TINY, plan)


def test_whole_grid_is_tried_once_and_the_best_is_found(tmp_path):
    found = run(tmp_path)
    tried = [tuple(trial["settings"].values()) for trial in found["trials"]]
    assert tried == [(1e-5, 0.2), (1e-5, 0.3), (3e-2, 0.2), (3e-2, 0.3)]
    best = found["best"]
    assert best["value"] == min(trial["value"] for trial in found["trials"])
    assert best["settings"]["learning_rate"] == 3e-2
    (file,) = tmp_path.rglob("sweep.json")
    assert json.loads(file.read_text()) == json.loads(json.dumps(found))
    assert {"settings", "versions", "commit", "dirty", "machine"} < found.keys()
    assert all(trial["seconds"] > 0 for trial in found["trials"])
    again = replace(TINY, **best["settings"]).run(0, Where(show=False))
    assert again.validation["nll"] == best["value"], "that of a run with those settings"
    accuracy = run(tmp_path, metric="accuracy")["best"]["value"]
    assert accuracy == again.validation["accuracy"], "the highest, of the same trials"
    with pytest.raises(ValueError, match="'accuracy'"):
        run(tmp_path, metric="acuracy")


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    first = run(tmp_path, trials=1)
    assert len(first["trials"]) == 1
    whole = run(tmp_path)
    assert whole["trials"][0] == first["trials"][0]
    assert len(whole["trials"]) == 4
    assert run(tmp_path, trials=1, seed=5)["trials"] != first["trials"], (
        "another seed, other trials"
    )
    assert run(tmp_path, trials=1, force=True)["trials"] != first["trials"], "the time at least"


def test_settings_whose_loss_is_no_number_are_not_the_best(tmp_path, monkeypatch):
    real = type(TINY).run

    def run_or_fail(experiment, seed, where):
        if experiment.learning_rate == 3e-2:
            raise FloatingPointError("the loss is nan")
        return real(experiment, seed, where)

    monkeypatch.setattr(type(TINY), "run", run_or_fail)
    assert run(tmp_path)["best"]["settings"]["learning_rate"] == 1e-5


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalog, "ALL", (replace(TINY, name="tiny/digits"),))
    monkeypatch.chdir(tmp_path)
    line = "sweep tiny/digits --variant k-tied-1 --trials 2 --threads 1"
    assert main(line.split()) == 0
    assert "best validation nll" in capsys.readouterr().out
    assert len(list(tmp_path.rglob("sweep/*.json"))) == 2

"""Sweeps: the whole grid once, by any number of workers, best settings by validation."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import optuna
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
    plan = Sweep(results=folder, threads=1, **options)
    return run_sweep(TINY, plan, say=lambda text: None)


def test_whole_grid_is_tried_once_and_the_best_is_found(tmp_path):
    found = run(tmp_path)
    tried = [tuple(trial["settings"].values()) for trial in found["trials"]]
    assert sorted(tried) == [(1e-5, 0.2), (1e-5, 0.3), (3e-2, 0.2), (3e-2, 0.3)]
    best = found["best"]
    assert best["value"] == min(trial["value"] for trial in found["trials"])
    assert best["settings"]["learning_rate"] == 3e-2
    (file,) = tmp_path.rglob("sweep.json")
    assert json.loads(file.read_text()) == json.loads(json.dumps(found))
    assert {"settings", "versions", "commit", "dirty", "machine"} < found.keys()
    assert all(trial["seconds"] > 0 for trial in found["trials"])
    again = replace(TINY, **best["settings"]).run(0, Where(show=False))
    assert again.validation["nll"] == best["value"], "that of a run with those settings"


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    first = run(tmp_path, trials=1)
    assert run(tmp_path, trials=1)["trials"] == first["trials"], "nothing left to do"
    # what a killed worker leaves behind is not listed
    (database,) = tmp_path.rglob("sweep.db")
    (name,) = optuna.get_all_study_names(f"sqlite:///{database}")
    optuna.load_study(study_name=name, storage=f"sqlite:///{database}").ask()
    whole = run(tmp_path)
    assert [trial["state"] for trial in whole["trials"]] == ["COMPLETE"] * 4
    assert whole["trials"][0] == first["trials"][0]
    # another metric or seed is another study
    for other in ({"metric": "brier"}, {"seed": 5}):
        assert len(run(tmp_path, trials=1, **other)["trials"]) == 1


def test_two_workers_share_the_grid(tmp_path, monkeypatch):
    def threads(tasks, workers, threads, say):
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda task: pickle.loads(pickle.dumps(task[1]))(), tasks))

    monkeypatch.setattr("experiments.sweeping.run_tasks", threads)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    found = run(tmp_path, workers=2, storage=url)
    assert sum(trial["state"] == "COMPLETE" for trial in found["trials"]) >= 4
    assert len({tuple(trial["settings"].values()) for trial in found["trials"]}) == 4


def test_accuracy_is_maximised_and_an_unknown_metric_refused(tmp_path):
    found = run(tmp_path, metric="accuracy")
    assert found["best"]["value"] == max(trial["value"] for trial in found["trials"])
    with pytest.raises(ValueError, match="'accuracy'"):
        run(tmp_path, metric="acuracy")


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalog, "ALL", (replace(TINY, name="tiny/digits"),))
    monkeypatch.chdir(tmp_path)
    assert (
        main(["sweep", "tiny/digits", "--variant", "k-tied-1", "--trials", "2", "--threads", "1"])
        == 0
    )
    assert "best validation nll" in capsys.readouterr().out
    assert list(tmp_path.rglob("sweep.db"))

"""Sweeps: the whole grid once, by any number of workers, best settings by validation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from experiments import catalog
from experiments.cli import main
from experiments.networks import MLP
from experiments.sweeping import sweep

TINY = replace(
    catalog.variants("demo/digits")["k-tied-1"],
    epochs=1,
    limit=60,
    samples=2,
    network=MLP((4,)),
    space={"learning_rate": (1e-5, 3e-2), "prior_scale": (0.2, 0.3)},
)


def run(folder: Path, **options: Any) -> dict[str, Any]:
    given = {"trials": None, "workers": 1, "storage": None, "metric": "nll", "seed": 0}
    given |= {"smoke": False, "results": folder, "threads": 1, "say": lambda text: None}
    return sweep(TINY, **(given | options))


def test_whole_grid_is_tried_once_and_the_best_is_found(tmp_path):
    found = run(tmp_path)
    tried = [tuple(one["settings"].values()) for one in found["trials"]]
    assert sorted(tried) == [(1e-5, 0.2), (1e-5, 0.3), (3e-2, 0.2), (3e-2, 0.3)]
    values = [one["value"] for one in found["trials"]]
    assert found["best"]["value"] == min(values)
    assert found["best"]["settings"]["learning_rate"] == 3e-2
    (file,) = tmp_path.rglob("sweep.json")
    assert json.loads(file.read_text()) == json.loads(json.dumps(found))
    assert found["settings"]["epochs"] == TINY.epochs
    assert {"versions", "commit", "dirty", "machine"} < set(found)
    assert all(one["seconds"] > 0 for one in found["trials"])


def test_sweep_goes_on_where_it_stopped(tmp_path):
    assert len(run(tmp_path, trials=1)["trials"]) == 1
    first = run(tmp_path, trials=1)
    assert len(first["trials"]) == 1, "nothing left to do"
    whole = run(tmp_path)
    assert len(whole["trials"]) == 4
    assert whole["trials"][0] == first["trials"][0]


def test_trials_of_a_killed_worker_are_not_listed(tmp_path):
    run(tmp_path, trials=1)
    (database,) = tmp_path.rglob("sweep.db")
    (name,) = optuna.get_all_study_names(f"sqlite:///{database}")
    optuna.load_study(study_name=name, storage=f"sqlite:///{database}").ask()
    whole = run(tmp_path)
    assert [one["state"] for one in whole["trials"]] == ["COMPLETE"] * 4


def test_value_is_that_of_a_run_with_those_settings(tmp_path):
    from experiments.spec import Where

    best = run(tmp_path)["best"]
    again = replace(TINY, **best["settings"]).run(0, Where(show=False))
    assert again.validation["nll"] == best["value"]


@pytest.mark.slow
def test_two_workers_share_the_grid(tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    found = run(tmp_path, workers=2, storage=url)
    assert sum(one["state"] == "COMPLETE" for one in found["trials"]) >= 4
    tried = {tuple(one["settings"].values()) for one in found["trials"]}
    assert len(tried) == 4


def test_nothing_to_choose_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "demo/digits", "--variant", "plain"]) == 1
    assert "nothing to choose" in capsys.readouterr().err


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalog, "ALL", (replace(TINY, name="tiny/digits"),))
    monkeypatch.chdir(tmp_path)
    line = "sweep tiny/digits --variant k-tied-1 --trials 2 --threads 1"
    assert main(line.split()) == 0
    assert "best validation nll" in capsys.readouterr().out
    assert list(tmp_path.rglob("sweep.db"))


def test_another_metric_or_seed_is_another_study(tmp_path):
    first = run(tmp_path, trials=1)
    assert len(run(tmp_path, trials=1, metric="brier")["trials"]) == 1
    assert len(run(tmp_path, trials=1, seed=5)["trials"]) == 1
    assert run(tmp_path, trials=1)["trials"] == first["trials"]


def test_accuracy_is_maximised(tmp_path):
    found = run(tmp_path, metric="accuracy")
    assert found["best"]["value"] == max(one["value"] for one in found["trials"])


def test_unknown_metric_names_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="'accuracy'"):
        run(tmp_path, metric="acuracy")

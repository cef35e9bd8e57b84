"""Sweeps: the whole grid once, every trial a run that is kept, the best by validation."""

from dataclasses import replace

import pytest

from experiments import catalog
from experiments.cli import main
from experiments.networks import MLP
from experiments.report import read
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
    plan = Sweep(results=folder / "sweeps", runs=folder / "runs", threads=1, variant="", **options)
    best = run_sweep(TINY, plan)
    return best, read(folder / "sweeps")[0]


def test_whole_grid_is_tried_once_and_the_best_is_found(tmp_path):
    best, trials = run(tmp_path)
    tried = {(t.settings["learning_rate"], t.settings["prior_scale"]) for t in trials}
    assert tried == {(1e-5, 0.2), (1e-5, 0.3), (3e-2, 0.2), (3e-2, 0.3)}
    assert best.validation["nll"] == min(trial.validation["nll"] for trial in trials)
    assert best.settings["learning_rate"] == 3e-2
    assert best.variant.startswith("k-tied-1,learning_rate=0.03,prior_scale=")
    assert all(trial.metrics == {} for trial in trials), "the test data are left alone"
    chosen = {name: best.settings[name] for name in TINY.space}
    again = replace(TINY, **chosen).run(0, Where(show=False)).validation
    assert best.validation["nll"] == pytest.approx(again["nll"]), "of a run with those settings"
    highest = run(tmp_path, metric="accuracy")[0].validation["accuracy"]
    assert highest == max(trial.validation["accuracy"] for trial in trials)
    with pytest.raises(ValueError, match="'accuracy'"):
        run(tmp_path, metric="acuracy")


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    best, (first,) = run(tmp_path, trials=1)
    assert best == first
    _, whole = run(tmp_path)
    assert len(whole) == 4
    assert first in whole
    assert len(run(tmp_path, trials=1, seed=5)[1]) == 5, "another seed, other trials"


def test_settings_whose_loss_is_no_number_are_not_the_best(tmp_path, monkeypatch):
    real = type(TINY).run

    def run_or_fail(experiment, seed, where):
        if experiment.learning_rate == 3e-2:
            raise FloatingPointError("the loss is nan")
        return real(experiment, seed, where)

    monkeypatch.setattr(type(TINY), "run", run_or_fail)
    assert run(tmp_path)[0].settings["learning_rate"] == 1e-5


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalog, "ALL", (replace(TINY, name="tiny/digits"),))
    monkeypatch.chdir(tmp_path)
    line = "sweep tiny/digits --variant k-tied-1 --trials 2 --threads 1"
    assert main(line.split()) == 0
    assert "best validation nll" in capsys.readouterr().out
    assert len(list(tmp_path.glob("sweeps/tiny/digits/k-tied-1,*/0.json"))) == 2

"""The command line, as it is typed."""

import json
import signal
import subprocess
import sys
import time

import pytest

from experiments.cli import commands, main
from experiments.data.catalog import Status


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_lists_the_commands(capsys):
    assert main([]) == 0
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"kasuri {name}" in shown for name in ("list", "run", "sweep", "report", "compare"))


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kasuri 0.")


def test_unknown_command_names_the_nearest(capsys):
    assert main(["raport"]) == 2
    assert "did you mean 'report'" in capsys.readouterr().err


def test_unknown_experiment_names_the_nearest(capsys):
    assert main(["run", "demo/digit"]) == 1
    assert "did you mean 'demo/digits'" in capsys.readouterr().err


def test_run_without_a_name_lists_them(capsys):
    assert main(["run"]) == 1
    assert "quality/mnist" in capsys.readouterr().err


def test_unknown_option_names_the_nearest(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "demo/digits", "--epoch", "3"])
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert "--epochs" in shown.out + shown.err


def test_wrong_type_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "demo/digits", "--epochs", "many"])


def test_list_shows_experiments_and_variants(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "k-tied/mnist-mlp" in shown
    assert "plain mean-field k-tied-1" in shown


def test_run_compare_and_report(folder, capsys):
    line = ["run", "demo/digits", "--variants", "plain", "k-tied-2", "--seeds", "0", "1", "--smoke"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "k-tied-2 (smoke)" in shown
    files = sorted(str(one.relative_to(folder)) for one in folder.glob("results/**/*.json"))
    assert files == [
        f"results/smoke/demo/digits/{variant}/{seed}.json"
        for variant in ("k-tied-2", "plain")
        for seed in (0, 1)
    ]
    assert main(["compare"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["compare", "results/smoke", "--markdown"]) == 0
    assert "| k-tied-2" in capsys.readouterr().out
    assert main(["report", "results", "--output", "page.html"]) == 0
    assert "<!doctype html>" in (folder / "page.html").read_text()[:200].lower()
    assert main(line) == 0
    assert "is there" in capsys.readouterr().out


def test_overrides_reach_the_run(folder, capsys):
    line = "run demo/digits --variants plain --epochs 3 --limit 100 --samples 2 --no-falling"
    assert main(line.split()) == 0
    (path,) = folder.glob("results/demo/digits/*/0.json")
    assert path.parent.name == "plain,epochs=3,falling=False,samples=2,limit=100"
    settings = json.loads(path.read_text())["settings"]
    assert (settings["epochs"], settings["limit"], settings["falling"]) == (3, 100, False)


def test_compare_without_results_says_what_to_do(folder, capsys):
    assert main(["compare"]) == 1
    assert "kasuri run demo/digits" in capsys.readouterr().err


def test_damaged_result_is_named(folder, capsys):
    (folder / "results").mkdir()
    (folder / "results/0.json").write_text('{"experiment": "x", ')
    assert main(["compare"]) == 1
    assert "0.json" in capsys.readouterr().err


def test_data_lists_what_is_here(capsys):
    assert main(["data"]) == 0
    shown = capsys.readouterr().out
    assert "digits" in shown
    assert "uci/yacht" in shown
    assert main(["data", "digits"]) == 0


def test_module_can_be_run():
    done = subprocess.run(
        [sys.executable, "-m", "kasuri", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert done.stdout.startswith("kasuri 0.")


def test_smoke_runs_can_be_changed_too(folder):
    line = "run demo/digits --variants plain --smoke --epochs 3"
    assert main(line.split()) == 0
    (path,) = folder.glob("results/smoke/demo/digits/*/0.json")
    settings = json.loads(path.read_text())["settings"]
    assert (settings["epochs"], settings["limit"]) == (3, 200)


def test_report_links_trained_networks(folder):
    assert main(["run", "demo/digits", "--variants", "k-tied-1", "--smoke"]) == 0
    assert main(["report", "results", "--output", "page.html", "--checkpoints", "runs"]) == 0
    assert (
        "runs/smoke/demo/digits/k-tied-1/0/model.safetensors" in (folder / "page.html").read_text()
    )


def test_control_c_says_where_it_stopped(folder, capsys, monkeypatch):
    from kasuri.training.interrupts import Interrupted

    def stopped(*_: object) -> None:
        raise Interrupted("a hint for Python", "epoch 3, step 21")

    monkeypatch.setattr("kasuri.cli.commands.run_all", stopped)
    assert main(["run", "demo/digits"]) == 130
    assert "epoch 3, step 21; the same command goes on" in capsys.readouterr().err


def test_a_pattern_runs_several_experiments_side_by_side(folder, capsys):
    words = ["run", "demo/*", "--variants", "plain", "k-tied-1", "--smoke", "--workers", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "k-tied-1" in shown
    found = {p.parent.name: json.loads(p.read_text()) for p in folder.rglob("results/**/0.json")}
    assert found.keys() == {"plain", "k-tied-1"}
    assert main(["run", "demo/digits", "--variants", "plain", "--smoke", "--force"]) == 0
    alone = json.loads((folder / "results/smoke/demo/digits/plain/0.json").read_text())
    assert alone["metrics"] == pytest.approx(found["plain"]["metrics"], rel=1e-4)


def test_a_run_that_fails_does_not_take_the_others_along(folder, capsys):
    words = ["run", "demo/digits", "--variants", "plain", "--seeds", "0", "1", "--smoke"]
    place = folder / "results/smoke/demo/digits/plain/0.json"
    place.parent.mkdir(parents=True)
    (folder / "runs/smoke/demo/digits/plain").mkdir(parents=True)
    (folder / "runs/smoke/demo/digits/plain/0").write_text("a file where a folder should be")
    assert main([*words, "--workers", "2"]) == 1
    shown = capsys.readouterr()
    assert "plain seed 0 failed" in shown.out
    assert "1 of 2 runs failed" in shown.err
    assert [p.name for p in folder.rglob("results/**/*.json")] == ["1.json"]


def test_workers_are_refused_that_cannot_be(folder, capsys):
    assert main(["run", "demo/digits", "--smoke", "--workers", "0"]) == 1
    assert "workers=0" in capsys.readouterr().err


def test_a_setting_that_one_of_several_experiments_has_not_is_refused(folder, capsys):
    assert main(["run", "*/*", "--variants", "mean-field", "--smoke", "--epochs", "1"]) == 1
    assert "has no variant" in capsys.readouterr().err
    assert main(["run", "[qu]*/*c*", "--smoke", "--variants", "mean-field", "--patience", "1"]) == 1
    assert "has no setting 'patience'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_save_and_stop_with_the_process_that_started_them(folder, number):
    words = ["run", "demo/digits", "--variants", "plain", "mean-field", "--epochs", "100000"]
    running = subprocess.Popen(
        [sys.executable, "-m", "kasuri", *words, "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(600):
            if len(list(folder.rglob("history.csv"))) == 2:  # both train
                break
            time.sleep(0.1)
        else:
            pytest.fail("two runs did not begin within a minute")
        running.send_signal(number)  # to this process alone
        told = running.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
    assert running.returncode == 130
    assert "stopped in 2 of 2 runs; the same command goes on from there" in told
    assert len(list(folder.rglob("checkpoint.pt"))) == 2


def test_a_report_fetches_no_data(monkeypatch):
    def fetched(name, **options):
        raise AssertionError("a download")

    absent = [Status("mnist", False, "", 0)]
    monkeypatch.setattr(commands.datasets, "status", lambda: absent)
    monkeypatch.setattr(commands.datasets, "load", fetched)
    with pytest.raises(FileNotFoundError, match="kasuri data mnist"):
        commands._load("mnist")
    with pytest.raises(AssertionError, match="download"):
        commands._load("digits")

"""The command line, as it is typed."""

import json
import signal
import subprocess
import sys
import time

import pytest

import kasuri
from experiments import cli
from experiments.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_and_version(capsys):
    assert main([]) == main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        f"kasuri {name}" in shown for name in ("list", "run", "sweep", "report", "compare", "data")
    )
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kasuri {kasuri.__version__}\n"


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("raport", 2, "'report'"),
        ("run demo/digit", 1, "'demo/digits'"),
        ("run demo/digits --variants meanfield", 1, "'mean-field'"),
        ("run", 1, "quality/mnist"),
        ("run demo/digits --smoke --workers 0", 1, "workers=0"),
        ("run */* --variants mean-field --smoke", 1, "has no variant"),
        ("sweep demo/digits --variant plain", 1, "nothing to choose"),
        ("compare", 1, "kasuri run demo/digits"),
    ],
)
def test_lines_that_cannot_be_meant(folder, capsys, line, status, told):
    assert main(line.split()) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("run demo/digits --epoch 3", "--epochs"),
        ("run demo/digits --epochs many", "--epochs"),
        # the first of several experiments has the setting, another has not
        ("run [qu]*/*c* --smoke --variants mean-field --patience 1", "--patience"),
    ],
)
def test_options_are_checked(capsys, line, shown):
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert shown in printed.out + printed.err


def test_help_has_the_values_of_the_experiment(capsys):
    with pytest.raises(SystemExit):
        main(["run", "k-tied/mnist-mlp", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "of a normal prior; 0 for He's scaling (default: 0.2)" in shown.replace("│ │ ", "")
    assert "--family" not in shown


def test_list_shows_experiments_and_variants(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "k-tied/mnist-mlp" in shown
    assert "plain mean-field k-tied-1" in shown


def test_run_compare_and_report(folder, capsys):
    line = ["run", "demo/digits", "--variants", "plain", "k-tied-2", "--seeds", "0", "1", "--smoke"]
    assert main(line) == 0
    assert "k-tied-2 (smoke)" in capsys.readouterr().out
    files = sorted(str(path.relative_to(folder)) for path in folder.glob("results/**/*.json"))
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
    page = (folder / "page.html").read_text()
    assert "<!doctype html>" in page[:200].lower()
    capsys.readouterr()
    assert main(line) == 0
    assert "is there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "place", "expected"),
    [
        (
            "--epochs 3 --limit 100 --samples 2 --no-falling",
            "demo/digits/plain,epochs=3,falling=False,samples=2,limit=100",
            {"epochs": 3, "limit": 100, "falling": False},
        ),
        (
            "--smoke --epochs 3",
            "smoke/demo/digits/plain,epochs=3",
            {"epochs": 3, "limit": 200},
        ),
    ],
)
def test_changed_settings_reach_the_run_and_its_name(folder, more, place, expected):
    assert main(f"run demo/digits --variants plain {more}".split()) == 0
    settings = json.loads((folder / "results" / place / "0.json").read_text())["settings"]
    assert expected.items() <= settings.items()


def test_damaged_result_is_named(folder, capsys):
    (folder / "results").mkdir()
    (folder / "results/0.json").write_text('{"experiment": "x", ')
    assert main(["compare"]) == 1
    assert "0.json" in capsys.readouterr().err


def test_data_lists_what_is_here(capsys):
    assert main(["data"]) == main(["data", "digits"]) == 0
    assert "uci/yacht" in capsys.readouterr().out


def test_control_c_says_where_it_stopped(folder, capsys, monkeypatch):
    def stopped(*_: object) -> None:
        raise kasuri.training.Interrupted("a hint for Python", "epoch 3, step 21")

    monkeypatch.setattr(cli, "run_all", stopped)
    assert main(["run", "demo/digits"]) == 130
    assert "epoch 3, step 21" in capsys.readouterr().err


def test_runs_side_by_side_of_which_one_fails(folder, capsys):
    (folder / "runs/smoke/demo/digits/plain").mkdir(parents=True)
    (folder / "runs/smoke/demo/digits/plain/0").write_text("a file where a folder should be")
    assert (
        main(["run", "demo/*", "--variants", "plain", "k-tied-1", "--smoke", "--workers", "2"]) == 1
    )
    shown = capsys.readouterr()
    assert "plain seed 0 failed" in shown.out
    assert "1 of 2 runs failed" in shown.err
    (path,) = folder.rglob("results/**/*.json")
    beside = json.loads(path.read_text())
    assert main(["run", "demo/digits", "--variants", "k-tied-1", "--smoke", "--force"]) == 0
    alone = json.loads(path.read_text())
    assert alone["metrics"] == pytest.approx(beside["metrics"], rel=1e-4)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_workers_save_and_stop_with_the_process_that_started_them(folder, number):
    line = "-m kasuri run demo/digits --variants plain mean-field --epochs 100000 --workers 2"
    running = subprocess.Popen(
        [sys.executable, *line.split()],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a test run in the background of a shell would hand down that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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
    assert "stopped in 2 of 2 runs" in told
    assert len(list(folder.rglob("checkpoint.pt"))) == 2


COUNT = """
import resource, sys, torch
from experiments.workers import prepare
torch.set_num_threads(1)
if sys.argv[1] == "kept":
    prepare(1)
def step():  # as in a network: many tensors at a time, all freed at the end
    return [torch.full((2**21,), 1.0) for _ in range(20)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of Linux")
def test_freed_memory_stays_with_a_process_that_trains():
    def page_faults(how):
        command = [sys.executable, "-c", COUNT, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    if not (usual := page_faults("usual")):
        pytest.skip("a system that does not count page faults")
    assert page_faults("kept") < usual / 10

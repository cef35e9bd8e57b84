"""The command line, as it is typed."""

import json

import pytest

import kasuri
from experiments import cli
from experiments.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_version_and_lists(capsys):
    assert main([]) == main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        f"kasuri {name}" in shown for name in ("list", "run", "sweep", "report", "compare", "data")
    )
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kasuri {kasuri.__version__}\n"
    assert main(["list"]) == main(["data"]) == main(["data", "digits"]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("plain mean-field k-tied-1", "uci/yacht"))


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


def test_run_compare_and_report(folder, capsys):
    line = "run demo/digits --variants plain k-tied-2 --seeds 1 --smoke --samples 2"
    assert main(line.split()) == 0
    assert "demo/digits (smoke)" in capsys.readouterr().out
    files = sorted(str(path.relative_to(folder)) for path in folder.glob("results/**/*.json"))
    start = "results/smoke/demo/digits"
    assert files == [f"{start}/{variant},samples=2/1.json" for variant in ("k-tied-2", "plain")]
    assert main(["compare"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["compare", "results/smoke", "--markdown"]) == 0
    assert "| k-tied-2" in capsys.readouterr().out
    assert main(["report", "results", "--output", "page.html"]) == 0
    page = (folder / "page.html").read_text()
    assert "<!doctype html>" in page[:200].lower()
    capsys.readouterr()
    assert main(line.split()) == 0
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


def test_control_c_says_where_it_stopped(folder, capsys, monkeypatch):
    def stopped(*_: object) -> None:
        raise kasuri.training.Interrupted("a hint for Python", "epoch 3, step 21")

    monkeypatch.setattr(cli, "run_all", stopped)
    assert main(["run", "demo/digits"]) == 130
    assert "epoch 3, step 21" in capsys.readouterr().err

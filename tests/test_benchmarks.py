"""The benchmarks run, and the page of results is the one that the result files make."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import weft

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_a_quick_run_writes_complete_results_and_a_page(tmp_path: Path) -> None:
    cases = ["step-400-batch-128", "predict-400-batch-128"]
    options = ["--quick", "--only-weft", "--threads", "1", "--out", str(tmp_path)]
    run("benchmarks.run", *options, "--cases", *cases)
    result = json.loads((tmp_path / "step-1-thread.json").read_text())
    assert {"settings", "versions", "commit", "date", "wall_seconds", "targets"} <= result.keys()
    run("benchmarks.table", "--results", str(tmp_path), "--out", str(tmp_path / "page.md"))
    page = (tmp_path / "page.md").read_text()
    assert "weft KTied(rank=2) local" in page
    assert "batch 128" in page


def test_the_page_in_the_docs_comes_from_the_committed_results(tmp_path: Path) -> None:
    run("benchmarks.table", "--out", str(tmp_path / "page.md"))
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs/benchmarks.md").read_text()


def test_a_race_tells_who_is_where_after_how_many_seconds(tmp_path: Path) -> None:
    present = {one.name for one in weft.data.status() if one.present}
    if "mnist" not in present:
        pytest.skip("mnist not on this machine: set WEFT_DATA")
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

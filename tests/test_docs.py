"""The documentation's code runs as it is written."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["docs/guide.md", "docs/index.md"])
def test_code_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    runpy.run_path(str(script))


def test_demo_runs_and_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["digits.py", "--epochs", "2"])
    runpy.run_path(str(ROOT / "examples/digits.py"), run_name="__main__")
    table = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [line[:14].strip() for line in table[1:]] == ["plain", "mean-field", "k-tied, k = 2"]


def test_readme_shows_the_numbers_of_the_result_file():
    readme = (ROOT / "README.md").read_text()
    content = json.loads((ROOT / "results/demo/digits.json").read_text())
    assert content["settings"]["scored"] == "test"
    for row in content["results"]:
        shown = next(line for line in readme.splitlines() if line.startswith(row["name"]))
        assert shown.removeprefix(row["name"]).split() == [
            f"{row['parameters']:,}",
            f"{row['accuracy']:.1%}",
            f"{row['nll']:.3f}",
            f"{row['ece']:.3f}",
            f"{row['entropy']:.2f}",
            f"{row['entropy_noise']:.2f}",
        ]

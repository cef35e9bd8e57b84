"""The documentation's code runs as it is written."""

import re
import runpy
from math import isfinite, nan
from pathlib import Path

import pytest

from tools import tables

ROOT = Path(__file__).parent.parent


PAGES = ["docs/guide.md", "docs/index.md", *sorted((ROOT / "docs/howto").glob("*.md"))]
PAGES += [
    path for path in sorted((ROOT / "docs/papers").glob("*.md")) if "```python" in path.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
def test_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("folder", [folder for _, _, folder, _ in tables.TABLES])
def test_published_results_are_whole_runs(folder):
    found = tables.results_in(folder)
    assert all(not one.smoke for one in found)
    scores = ("nll", "log_likelihood")  # of predictions, of auto-encoders
    assert all(any(isfinite(one.metrics.get(key, nan)) for key in scores) for one in found)

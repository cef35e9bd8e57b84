"""The documentation's code runs as it is written, and the API pages list what there is."""

import ast
import importlib
import re
import runpy
from collections.abc import Iterator
from functools import partial
from math import isfinite, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import kasuri
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


def test_the_ten_lines_of_the_readme_run(tmp_path, monkeypatch):
    """Its first example, with less training than a user's."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(0))
    y = x[:, :10].argmax(1)
    names = {"x": x, "y": y, "x_valid": x[:50], "y_valid": y[:50], "x_test": x, "y_test": y}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kasuri, "fit", partial(kasuri.fit, epochs=2))
    exec(example, names)
    assert (tmp_path / "model.safetensors").is_file()
    assert names["scores"]["nll"] > 0
    assert type(names["small"]) is torch.nn.Sequential


@pytest.mark.parametrize("folder", [folder for _, _, folder, _ in tables.TABLES])
def test_published_results_are_whole_runs(folder):
    found = tables.results_in(folder)
    assert all(not one.smoke for one in found)
    scores = ("nll", "log_likelihood")  # of predictions, of auto-encoders
    assert all(any(isfinite(one.metrics.get(key, nan)) for key in scores) for one in found)


def found(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(name)


def listed() -> list[str]:
    """The names on the API page; without a list of members, all members of a module are on it."""
    names = []
    for entry in re.finditer(
        r"^::: (\S+)\n((?: +.*\n)*)", (ROOT / "docs/api.md").read_text(), re.M
    ):
        members = re.search(r"^ +members: \[(.*)\]", entry[2], re.M)
        inner = members[1].split(", ") if members else vars(found(entry[1]))
        names += [entry[1], *(f"{entry[1]}.{name}" for name in inner if name[0] != "_")]
    return names


def test_the_api_page_lists_what_exists():
    names = listed()
    assert "kasuri.training.flip" in names
    for name in names:
        found(name)


def imported(source: str) -> Iterator[str]:
    """Names that a source imports from kasuri, or writes out as kasuri.room.name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kasuri":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"kasuri(\.\w+)+", name):
                yield name


def test_what_experiments_and_pages_use_is_on_the_api_page():
    """`experiments/` is a program like those of users: it needs nothing that is not documented."""
    public = {id(found(name)) for name in listed()}
    sources = {str(file): file.read_text() for file in (ROOT / "experiments").rglob("*.py")}
    sources |= {str(file): file.read_text() for file in (ROOT / "examples").glob("*.py")}
    for page in (ROOT / page for page in ["README.md", *PAGES]):
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        sources[str(page)] = "\n".join(blocks)
    unknown = {}
    for file, source in sources.items():
        for name in imported(source):
            thing = found(name)
            if id(thing) not in public and not isinstance(thing, ModuleType | str | float):
                unknown.setdefault(name, []).append(file)
    assert not unknown

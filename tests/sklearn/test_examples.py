"""The examples behind the page on tables run, and draw and print what the page shows."""

import importlib.util
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

EXAMPLES = Path(__file__).parents[2] / "examples"
SVG = "{http://www.w3.org/2000/svg}"


def run(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_the_picture_is_well_formed_and_shows_every_row(monkeypatch, capsys, tmp_path):
    out = tmp_path / "picture.svg"
    run(monkeypatch, "tabular_interval.py", "--epochs", "2", "--output", str(out))
    root = ElementTree.fromstring(out.read_text())
    assert len(root.findall(f"{SVG}circle")) == 200
    (band,) = root.findall(f"{SVG}polygon")
    points = [tuple(map(float, one.split(","))) for one in band.get("points").split()]
    low, high = points[:181], points[:180:-1]
    assert all(a[0] == b[0] and a[1] > b[1] for a, b in zip(low, high, strict=True))
    assert root.find(f"{SVG}title").text in capsys.readouterr().out


def test_the_picture_of_the_page_is_one_of_a_whole_run():
    text = (EXAMPLES.parent / "docs/images/tabular-interval.svg").read_text()
    told = ElementTree.fromstring(text).find(f"{SVG}title").text
    assert 0.87 < float(told.partition("%")[0]) / 100 < 0.96


def printed(monkeypatch, capsys, name, arguments, **smaller):
    """Lines of the table that an example prints, with fewer models or tables."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for constant, make in smaller.items():
        monkeypatch.setattr(example, constant, make(example))
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    example.main()
    return capsys.readouterr().out.splitlines()


def test_the_table_of_coverage_has_a_row_per_model(monkeypatch, capsys):
    few = {"MODELS": lambda example: {"cold": {"temperature": 0.1}}}
    arguments = ["--epochs=1", "--folds=2", "--samples=3"]
    lines = printed(monkeypatch, capsys, "tabular_coverage", arguments, **few)
    assert [line.count("|") for line in lines] == [7] * 4
    assert all("±" in line for line in lines[2:])


def test_the_table_of_temperatures_has_a_row_per_setting(monkeypatch, capsys):
    few = {"TABLES": lambda example: [("a sine", example.sine, 20)]}
    arguments = ["--epochs=1", "--seeds=1"]
    lines = printed(monkeypatch, capsys, "tabular_temperature", arguments, **few)
    assert [line.count("|") for line in lines] == [8] * (2 + 4)

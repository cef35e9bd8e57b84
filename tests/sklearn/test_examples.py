"""The examples behind the page on tables run, and draw and print what the page shows."""

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


def test_the_table_has_a_row_per_model(monkeypatch, capsys):
    run(monkeypatch, "tabular_coverage.py", "--epochs=1", "--folds=2", "--samples=3")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 5
    assert {line.count("|") for line in lines} == {7}
    assert all("±" in line for line in lines[2:])


def test_the_table_of_temperatures_has_a_row_per_setting(monkeypatch, capsys):
    run(monkeypatch, "tabular_temperature.py", "--epochs=1", "--seeds=1")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 5 * 4
    assert {line.count("|") for line in lines} == {8}

"""The examples behind the page on tables run, and print what the page shows."""

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(monkeypatch, capsys, name, smaller, **arguments):
    """Lines of the table that an example prints, with fewer models or tables."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for constant, make in smaller.items():
        monkeypatch.setattr(example, constant, make(example))
    example.main(**arguments)
    return capsys.readouterr().out.splitlines()


def test_the_table_of_coverage_has_a_row_per_model(monkeypatch, capsys):
    few = {"MODELS": lambda example: {"cold": {"temperature": 0.1}}}
    arguments = {"epochs": 1, "folds": 2, "samples": 3}
    lines = printed(monkeypatch, capsys, "tabular_coverage", few, **arguments)
    assert [line.count("|") for line in lines] == [7] * 4
    assert all("±" in line for line in lines[2:])


def test_the_table_of_temperatures_has_a_row_per_setting(monkeypatch, capsys):
    few = {"TABLES": lambda example: [("a sine", example.sine, 20)]}
    lines = printed(monkeypatch, capsys, "tabular_temperature", few, epochs=1, seeds=1)
    assert [line.count("|") for line in lines] == [8] * (2 + 4)

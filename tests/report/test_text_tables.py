"""The comparison as plain text and as Markdown."""

import pytest

from experiments.report import Result, compare, markdown_table, text_table
from tests.report import samples


def test_plain_text_exactly():
    scores = {"accuracy": 0.91, "nll": 0.35}
    paper = {"accuracy": (0.968, 0.0018)}
    runs = [
        Result("a/b", "plain", 0, title="T.", parameters=1200, metrics=scores),
        Result("a/b", "k-tied", 0, metrics={"accuracy": 0.88, "accuracy_sem": 0.011}),
        Result(
            "a/b",
            "mean-field",
            0,
            metrics={"accuracy": 0.905, "accuracy_sem": 0.012},
            published=paper,
        ),
    ]
    expected = """\
a/b: T.

variant                seeds  parameters  accuracy (%)     NLL
plain                      1       1,200         *91.0  0.3500
k-tied                     1                88.0 ± 1.1
mean-field                 1               ~90.5 ± 1.2
mean-field, published                     96.80 ± 0.18

* best of its column; ~ within one standard error of the best.
± is the standard error over seeds; with one seed, over examples or splits."""
    assert text_table(compare(runs)) == expected


def test_markdown_marks_and_escapes():
    runs = [Result("e", name, 0, metrics={"nll": v}) for name, v in [("a|b", 1.0), ("<b>_x", 2.0)]]
    lines = markdown_table(compare(runs)).splitlines()
    assert r"| a\|b | 1 | **1.000** |" in lines
    assert r"| \<b\>\_x | 1 | 2.000 |" in lines
    assert "Bold: best of its column. Italics: within one standard error of the best." in lines


@pytest.mark.parametrize("width", [70, 120])
def test_numbers_are_whole_in_a_terminal_of_any_width(width):
    runs = samples.stored("results/k-tied/mnist-mlp", "results/quality/uci-energy")
    full = compare(map(Result.from_dict, runs))
    text = text_table(full, width)
    assert all(
        len(line) <= width for table in text.split("\n\n")[1::3] for line in table.split("\n")
    )
    for table in full:
        assert all(str(cell) in text for row in table.rows for cell in row.cells.values())

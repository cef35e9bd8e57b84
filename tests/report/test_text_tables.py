"""The comparison as plain text, Markdown and in colours."""

import pytest
from rich.cells import cell_len

from experiments.report import Result, compare, markdown_table, text_table
from tests.report import samples


@pytest.fixture(scope="module")
def full():
    runs = samples.stored("results/k-tied/mnist-mlp", "results/quality/uci-energy")
    return compare(map(Result.from_dict, runs))


def test_plain_text_exactly():
    scores = {"accuracy": 0.91, "nll": 0.35}
    paper = {"accuracy": (0.968, 0.0018)}
    runs = [
        Result("a/b", "plain", 0, title="T.", parameters=1200, metrics=scores),
        Result("a/b", "k-tied", 0, metrics={"accuracy": 0.9, "accuracy_sem": 0.011}, smoke=True),
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
k-tied (smoke)             1                90.0 ± 1.1
mean-field                 1               ~90.5 ± 1.2
mean-field, published                     96.80 ± 0.18

* best of its column; ~ within one standard error of the best.
± is the standard error over seeds; with one seed, over examples or splits.
Smoke runs only show that the program works: they are not results."""
    assert text_table(compare(runs)) == expected


def test_wide_letters_and_control_characters_do_not_break_lines():
    runs = [Result("e", name, 0, parameters=5.0) for name in ("日本", "a\nb\x1b[2J", "plain")]
    lines = text_table(compare(runs)).splitlines()[2:6]
    assert "\x1b" not in "".join(lines)
    assert len({cell_len(line) for line in lines[1:]}) == 1
    assert lines[2].startswith("a\N{REPLACEMENT CHARACTER}b")


def test_markdown_marks_and_escapes():
    runs = [Result("e", name, 0, metrics={"nll": v}) for name, v in [("a|b", 1.0), ("<b>_x", 2.0)]]
    lines = markdown_table(compare(runs)).splitlines()
    assert r"| a\|b | 1 | **1.000** |" in lines
    assert r"| \<b\>\_x | 1 | 2.000 |" in lines
    assert "Bold: best of its column. Italics: within one standard error of the best." in lines


def test_markdown_rows_have_equal_length(full):
    for block in markdown_table(full).split("### ")[1:]:
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count(" | ") for row in rows}) == 1
        assert any("published" in row for row in rows) == ("k-tied/mnist" in block)


@pytest.mark.parametrize("width", [70, 80, 120, 200])
def test_numbers_are_whole_in_a_terminal_of_any_width(full, width):
    text = text_table(full, width)
    assert all(
        len(line) <= width for table in text.split("\n\n")[1::3] for line in table.split("\n")
    )
    for table in full:
        assert all(str(cell) in text for row in table.rows for cell in row.cells.values())

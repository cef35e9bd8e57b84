"""Tables of scores as plain text and as Markdown."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from experiments.report.score_tables import Cell, ScoreTable

Shown = TypeVar("Shown")
_LEGEND = "* best of its column; ~ within one standard error of the best."
_SIGNS = {"": "{}", "best": "*{}", "tied": "~{}"}
_MARKDOWN_LEGEND = "Bold: best of its column. Italics: within one standard error of the best."
_MARKDOWN_SIGNS = {"": "{}", "best": "**{}**", "tied": "_{}_"}


def print_table(tables: Sequence[ScoreTable]) -> None:
    """Print what `compare` gives; in a terminal, no wider than that."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(text_table(tables, width))


def text_table(tables: Sequence[ScoreTable], width: int | None = None) -> str:
    """What `compare` gives as aligned plain text; tables wider than `width` continue below.

    Examples:
        >>> from experiments.report import Result, compare
        >>> runs = [Result("e", name, 0, metrics={"nll": nll}) for name, nll in [("a", 2), ("b", 1)]]
        >>> print(text_table(compare(runs)))
        e
        <BLANKLINE>
        variant  seeds     NLL
        a            1   2.000
        b            1  *1.000
        <BLANKLINE>
        * best of its column; ~ within one standard error of the best.
    """
    parts = []
    for table in tables:
        remarks = "\n".join(_remarks(table, _LEGEND))
        parts += [_heading(table), *_aligned(_marked(table, _SIGNS), width), remarks]
    return "\n\n".join(filter(None, parts))


def markdown_table(tables: Sequence[ScoreTable]) -> str:
    """What `compare` gives as Markdown: best values bold, ties in italics."""
    parts = []
    for table in tables:
        rows = [[_escaped(name), *row] for name, *row in _marked(table, _MARKDOWN_SIGNS)]
        parts += [
            f"### {_escaped(_heading(table))}",
            markdown_grid(rows),
            *map(_escaped, _remarks(table, _MARKDOWN_LEGEND)),
        ]
    return "\n\n".join(parts)


def markdown_grid(rows: Sequence[Sequence[object]], *, words: int = 1) -> str:
    """A heading and rows as a table in Markdown; all columns but the first `words` hold numbers."""
    rule = [":--"] * words + ["--:"] * (len(rows[0]) - words)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (rows[0], rule, *rows[1:]))


def score_lines(table: ScoreTable, show: Callable[[Cell], Shown]) -> Iterator[list[str | Shown]]:
    """Rows, and below a variant what is published of it."""
    for row in table.rows:
        cells = [row.cells.get(column.key, Cell(None)) for column in table.columns]
        yield [row.name, str(len(row.results)), *map(show, cells)]
        if any(cell.published for cell in cells):
            yield [f"{row.name}, published", "", *(cell.published for cell in cells)]


def _marked(table: ScoreTable, signs: Mapping[str, str]) -> list[list[str]]:
    """Heading and rows as text."""
    head = ["variant", "seeds", *(column.label for column in table.columns)]
    return [head, *score_lines(table, lambda cell: signs[cell.mark].format(cell))]


def _remarks(table: ScoreTable, legend: str) -> list[str]:
    return [*([legend] if table.is_marked else []), *table.notes]


def _aligned(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """The table, or as many as the width asks for, each with the first two columns."""
    columns = [_padded(cells, number > 0) for number, cells in enumerate(zip(*rows, strict=True))]
    blocks = [columns[:2]]
    for column in columns[2:]:
        needed = sum(len(shown[0]) + 2 for shown in [*blocks[-1], column]) - 2
        if needed > (width or needed) and len(blocks[-1]) > 2:
            blocks.append(columns[:2])
        blocks[-1] = [*blocks[-1], column]
    for block in blocks:
        yield "\n".join("  ".join(line).rstrip() for line in zip(*block, strict=True))


def _padded(cells: Sequence[str], right: bool) -> list[str]:
    width = max(map(len, cells))
    return [cell.rjust(width) if right else cell.ljust(width) for cell in cells]


def _heading(table: ScoreTable) -> str:
    return f"{table.name}: {table.title}" if table.title else table.name


def _escaped(text: str) -> str:
    """Text with everything that Markdown or HTML could take for markup made harmless."""
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", text)

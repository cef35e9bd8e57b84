"""Tables of scores in the terminal: with colours, as plain text, as Markdown."""

import io
import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments.report.score_columns import Column
from experiments.report.score_tables import Cell, ScoreTable

_SIGNS = {"": "", "best": "*", "tied": "~"}
_STYLES = {"": "", "best": "bold green", "tied": "italic green"}
_LEGEND = "* best of its column; ~ within one standard error of the best."
_MARKDOWN_LEGEND = "Bold: best of its column. Italics: within one standard error of the best."


def print_table(tables: Sequence[ScoreTable], console: Console | None = None) -> None:
    """Print a comparison: with colours in a terminal, as `text_table` anywhere else.

    Args:
        tables: from `compare`.
        console: of rich; None makes one for the standard output.
    """
    console = console or Console()
    if console.is_terminal:
        _print(tables, console)
    else:
        console.file.write(text_table(tables) + "\n")


def text_table(tables: Sequence[ScoreTable]) -> str:
    """A comparison as aligned plain text, however wide that is.

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
    text = io.StringIO()
    _print(tables, Console(file=text, width=10_000, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()


def markdown_table(tables: Sequence[ScoreTable]) -> str:
    """A comparison as Markdown: best values bold, ties in italics.

    Examples:
        >>> from experiments.report import Result, compare
        >>> runs = [Result("e", name, 0, metrics={"nll": nll}) for name, nll in [("a", 2), ("b", 1)]]
        >>> print(markdown_table(compare(runs)))
        ### e
        <BLANKLINE>
        | variant | seeds | NLL |
        | :-- | --: | --: |
        | a | 1 | 2.000 |
        | b | 1 | **1.000** |
        <BLANKLINE>
        Bold: best of its column. Italics: within one standard error of the best.
    """
    parts = []
    for table in tables:
        rows = [["variant", "seeds", *(column.label for column in table.columns)]]
        for name, seeds, cells, paper in _lines(table, table.columns):
            rows.append([_escaped(name), seeds, *(_markdown_cell(cell, paper) for cell in cells)])
        parts += [
            f"### {_escaped(_heading(table))}",
            markdown_grid(rows, "--:"),
            *([_MARKDOWN_LEGEND] if table.is_marked else []),
            *map(_escaped, table.notes),
        ]
    return "\n\n".join(parts)


def markdown_grid(rows: Sequence[Sequence[str]], align: str = "---") -> str:
    """A table in Markdown; the first row is the heading, `align` that of all columns but the first."""
    first = ":--" if align == "--:" else "---"
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, f"| {first} |" + f" {align} |" * (len(rows[0]) - 1), *body])


def _markdown_cell(cell: Cell | None, paper: bool) -> str:
    if cell is None or paper:
        return cell.published if cell else ""
    sign = {"": "", "best": "**", "tied": "_"}[cell.mark]
    return f"{sign}{cell}{sign}"


def _lines(
    table: ScoreTable, columns: Sequence[Column]
) -> Iterator[tuple[str, str, list[Cell | None], bool]]:
    """Name, number of seeds and cells of every row; True for rows of published values."""
    for row in table.rows:
        cells = [row.cells.get(column.key) for column in columns]
        yield row.name, str(len(row.scores)), cells, False
        if any(cell and cell.published for cell in cells):
            yield f"{row.name}, published", "", cells, True


def _print(tables: Sequence[ScoreTable], console: Console) -> None:
    for table in tables:
        console.print(Text(_heading(table), style="bold"), end="\n\n")
        for part in _parts(table, console):
            console.print(part)
            console.print()
        remarks = [*([_LEGEND] if table.is_marked else []), *map(printable, table.notes)]
        console.print(Text("\n".join(remarks), style="dim"), end="\n\n")


def _parts(table: ScoreTable, console: Console) -> Iterator[RichTable]:
    """The table, or as many with some of its columns as the width of the terminal asks for."""
    columns, first = table.columns, 0
    while first == 0 or first < len(columns):
        last, wide = len(columns), console.options.update(width=10_000)
        part = _rich(table, columns[first:last])
        while console.measure(part, options=wide).maximum > console.width and last > first + 1:
            last -= 1
            part = _rich(table, columns[first:last])
        yield part
        first = max(last, 1)


def _rich(table: ScoreTable, columns: Sequence[Column]) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("variant", no_wrap=True)
    shown.add_column("seeds", justify="right")
    for column in columns:
        shown.add_column(Text(column.label), justify="right", no_wrap=True)
    for name, seeds, cells, paper in _lines(table, columns):
        texts = [Text("") if cell is None else _text(cell, paper) for cell in cells]
        shown.add_row(Text("  published" if paper else printable(name)), seeds, *texts)
    return shown


def _text(cell: Cell, paper: bool) -> Text:
    if paper:
        return Text(cell.published, style="dim")
    return Text(f"{_SIGNS[cell.mark]}{cell}", style=_STYLES[cell.mark])


def _heading(table: ScoreTable) -> str:
    return printable(f"{table.name}: {table.title}" if table.title else table.name)


def _escaped(text: str) -> str:
    """Text with everything that Markdown or HTML could take for markup made harmless."""
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", printable(text))


def printable(text: str) -> str:
    """Text on one line without control characters, which could steer a terminal."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)

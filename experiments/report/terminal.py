"""A comparison in the terminal: with colours, as plain text, as Markdown."""

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.report.columns import Column
from experiments.report.results import Group, Row, Table
from experiments.report.scores import Cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_SIGNS = {"": " ", "best": "*", "tied": "~"}
_STYLES = {"": "", "best": "bold green", "tied": "green"}
_LEGEND = "* best of its column; ~ within one standard error of the best."


def print_table(table: Table, console: "Console | None" = None) -> None:
    """Print a comparison: with rich in a terminal, as `text_table` anywhere else.

    Args:
        table: from `compare`.
        console: of rich; None makes one for the standard output.

    Examples:
        >>> from experiments.report.results import Result, compare
        >>> print_table(compare([Result("e", "plain", 0, metrics={"nll": 0.5})]))
        e
        <BLANKLINE>
        variant  seeds      NLL
        plain        1  0.5000
    """
    try:
        from rich.console import Console
    except ImportError:
        raise ImportError("print_table needs rich: pip install kasuri[cli]") from None
    console = console or Console()
    if not console.is_terminal:
        console.file.write(text_table(table) + "\n")
        return
    for group in table.groups:
        _print_group(group, console)


def text_table(table: Table) -> str:
    """A comparison as aligned plain text, however wide that is.

    Examples:
        >>> from experiments.report.results import Result, compare
        >>> runs = [Result("e", name, 0, metrics={"nll": nll}) for name, nll in [("a", 2), ("b", 1)]]
        >>> print(text_table(compare(runs)))
        e
        <BLANKLINE>
        variant  seeds     NLL
        a            1  2.000
        b            1  1.000*
        <BLANKLINE>
        * best of its column; ~ within one standard error of the best.
    """
    return "\n\n\n".join(_text_group(group) for group in table.groups)


def markdown_table(table: Table) -> str:
    """A comparison as Markdown: best values bold, ties in italics.

    Examples:
        >>> from experiments.report.results import Result, compare
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
    return "\n\n".join(_markdown_group(group) for group in table.groups)


def _text_group(group: Group) -> str:
    lines = [["variant", "seeds", *(f"{column.label} " for column in group.columns)]]
    for row in group.rows:
        lines.append([row.name, str(len(row.results)), *_cells(group, row)])
        if _has_published(row):
            papers = [f"{p.published} " if p else "" for p in _picked(group, row)]
            lines.append(["  published", "", *papers])
    lines = [[_printable(entry) for entry in line] for line in lines]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    table = "\n".join(
        "  ".join(_padded(entry, widths[i], left=i == 0) for i, entry in enumerate(line)).rstrip()
        for line in lines
    )
    return "\n\n".join(filter(None, [_heading(group), table, "\n".join(_remarks(group))]))


def _cells(group: Group, row: Row) -> list[str]:
    return [f"{cell}{_SIGNS[cell.mark]}" if cell else "" for cell in _picked(group, row)]


def _picked(group: Group, row: Row) -> list[Cell | None]:
    return [row.cells.get(column.key) for column in group.columns]


def _has_published(row: Row) -> bool:
    return any(cell.published for cell in row.cells.values())


def _heading(group: Group) -> str:
    return _printable(f"{group.experiment}: {group.title}" if group.title else group.experiment)


def _remarks(group: Group) -> list[str]:
    marked = any(cell.mark for row in group.rows for cell in row.cells.values())
    return [*([_LEGEND] if marked else []), *map(_printable, group.notes)]


def _print_group(group: Group, console: "Console") -> None:
    from rich.text import Text

    console.print(Text(_heading(group), style="bold"))
    widths = [_column_width(group, column) for column in group.columns]
    names = max(_width(_printable(row.name)) for row in group.rows)
    for chosen in _parts(widths, console.width - max(names, len("  published")) - 14):
        console.print(_part(group, chosen, widths))
    for remark in _remarks(group):
        console.print(Text(remark, style="dim"))
    console.print()


def _column_width(group: Group, column: Column) -> int:
    """The longest cell, or word of the heading: headings wrap, numbers do not."""
    cells = [row.cells[column.key] for row in group.rows if column.key in row.cells]
    texts = [*(f"{cell} " for cell in cells), *(f"{cell.published} " for cell in cells)]
    return max(map(_width, [*texts, *column.label.split()]))


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Indices of columns, in as many tables as the width of the terminal asks for."""
    parts: list[list[int]] = [[]]
    left = room
    for index, width in enumerate(widths):
        if width + 3 > left and parts[-1]:
            parts.append([])
            left = room
        parts[-1].append(index)
        left -= width + 3
    return parts


def _part(group: Group, chosen: Sequence[int], widths: Sequence[int]) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD)
    shown.add_column("variant", no_wrap=True)
    shown.add_column("seeds", justify="right")
    for index in chosen:
        shown.add_column(group.columns[index].label, justify="right", width=widths[index])
    for row in group.rows:
        cells = [_picked(group, row)[index] for index in chosen]
        texts = [
            Text(f"{cell}{_SIGNS[cell.mark]}", style=_STYLES[cell.mark]) if cell else Text("")
            for cell in cells
        ]
        shown.add_row(Text(_printable(row.name)), str(len(row.results)), *texts)
        if any(cell and cell.published for cell in cells):
            papers = [Text(f"{cell.published} " if cell else "") for cell in cells]
            shown.add_row("  published", "", *papers, style="dim")
    return shown


def _markdown_group(group: Group) -> str:
    lines = [
        ["variant", "seeds", *(column.label for column in group.columns)],
        [":--", *("--:" for _ in range(1 + len(group.columns)))],
    ]
    for row in group.rows:
        cells = [_markdown_cell(cell) for cell in _picked(group, row)]
        lines.append([_markdown(row.name), str(len(row.results)), *cells])
        if _has_published(row):
            papers = [p.published if p else "" for p in _picked(group, row)]
            lines.append([f"{_markdown(row.name)}, published", "", *papers])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    legend = "Bold: best of its column. Italics: within one standard error of the best."
    remarks = [legend if remark == _LEGEND else _markdown(remark) for remark in _remarks(group)]
    return "\n\n".join([f"### {_markdown(_heading(group))}", table, *remarks])


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    sign = {"": "", "best": "**", "tied": "_"}[cell.mark]
    return f"{sign}{cell}{sign}"


def _markdown(text: str) -> str:
    """Text with everything that Markdown or HTML could take for markup made harmless."""
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", _printable(text))


def _printable(text: str) -> str:
    """Text on one line without control characters, which could steer a terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def _width(text: str) -> int:
    """Columns that a terminal gives to a text."""
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text

"""What the page is made of, and getting it out of result files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.report.panels import Panel, Series, line, mean_by
from experiments.report.reading import Result
from experiments.report.score_tables import Cell, Column, ScoreRow


@dataclass(frozen=True)
class Table:
    """A table of text, or of numbers behind the first column."""

    name: str
    head: Sequence[str | Column]
    rows: Sequence[Sequence[str | Cell]]
    numbers: bool = False
    looks: Mapping[str, int] = field(default_factory=dict)  # colours beside names


@dataclass(frozen=True)
class Picture:
    """A picture as an address that holds it, and words beside it."""

    image: str
    title: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page; one that holds nothing is not shown."""

    heading: str
    figures: Sequence[Panel] = ()
    note: str = ""  # what the reader should know
    legend: Sequence[str] = ()  # names of series with a box each that shows and hides them
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    parts: Sequence["Section"] = ()
    row: ScoreRow | None = None  # the variant that all of this is about; it can be folded
    folded: bool = False  # whether it is folded up at first

    def __bool__(self) -> bool:
        return any((self.figures, self.tables, self.pictures, self.parts))


Rows = Sequence[ScoreRow]


def stored(row: ScoreRow, key: str) -> list[tuple[Result, Any]]:
    """The seeds of a variant that store something under a key of `figures`, each with that."""
    return [(run, run.figures[key]) for run in row.results if run.figures.get(key)]


def curves(rows: Rows, key: str, x: str, y: str, **style: Any) -> list[Series]:
    """A line per variant of what its seeds store under a key: the mean of y over seeds, by x."""
    lines = []
    for row in rows:
        points = mean_by((value[x], value[y]) for _, value in stored(row, key))
        lines.append(line(row.name, *points, row.index, **style))
    return lines

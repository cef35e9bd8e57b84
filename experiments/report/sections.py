"""What the page is made of, and getting it out of result files that may hold anything."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from experiments.report.plots import Figure
from experiments.report.reading import Result
from experiments.report.score_tables import ScoreRow, ScoreTable

THICK, THIN = "3px solid var(--muted)", "1px solid var(--muted)"  # borders that look like lines
UNUSABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error)

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A table of text, or of numbers behind the first column."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture as an address that holds it ("" if there is none), and words beside it."""

    image: str
    title: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page; one that holds nothing is not shown.

    Attributes:
        heading: above it.
        figures: of it.
        missing: names of variants that store something that cannot be used.
        note: what the reader should know.
        keys: what kinds of lines mean, (border of CSS that looks like it, words).
        size: of figures: "small", "wide", or "map".
        legend: names of series with a button each that shows and hides them.
        tables: of text or of scores.
        pictures: of it.
        parts: sections inside.
        row: the variant that all of this is about; such a section can be folded.
        folded: whether it is folded up at first.
    """

    heading: str
    figures: Sequence[Figure] = ()
    missing: Sequence[str] = ()
    note: str = ""
    keys: Sequence[tuple[str, str]] = ()
    size: str = "small"
    legend: Sequence[str] = ()
    tables: Sequence[Table | ScoreTable] = ()
    pictures: Sequence[Picture] = ()
    parts: Sequence["Section"] = ()
    row: ScoreRow | None = None
    folded: bool = False

    def __bool__(self) -> bool:
        return any((self.figures, self.missing, self.tables, self.pictures, self.parts))


def stored(
    row: ScoreRow, key: str, parse: Callable[[Any], T], missing: list[str]
) -> list[tuple[Result, T]]:
    """What the seeds of a variant store under a key of `figures`, parsed, with the runs.

    A file may hold anything: `parse` takes what it needs as if all was well, and an error means
    that the data cannot be used. A variant that stores something of which no seed is usable is
    added to `missing`.
    """
    values = [(run, run.figures[key]) for run in row.results if run.figures.get(key)]
    found = [(run, parsed) for run, value in values for parsed in usable(parse, value)]
    if values and not found:
        missing.append(row.name)
    return found


def by_layer(
    row: ScoreRow, key: str, parse: Callable[[Any], T], missing: list[str]
) -> dict[str, list[T]]:
    """The same for lists of layers, in the order of the files: usable entries by layer."""
    lists = stored(row, key, lambda entries: [(str(e["layer"]), e) for e in entries], missing)
    layers: dict[str, list[T]] = {}
    for _, entries in lists:
        for name, entry in entries:
            layers.setdefault(name, []).extend(usable(parse, entry))
    missing += [f"{row.name} ({name})" for name, found in layers.items() if not found]
    return {name: found for name, found in layers.items() if found}


def usable(parse: Callable[[Any], T], value: object) -> Iterator[T]:
    """What `parse` makes of a value; nothing if the value cannot be used."""
    try:
        yield parse(value)
    except UNUSABLE:
        return

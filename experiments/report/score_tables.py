"""Tables of scores: variants against columns, seeds pooled, the best of every column marked."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from experiments.report.json_numbers import decimals_for, fixed, mean_and_error
from experiments.report.reading import Published, Result
from experiments.report.score_columns import COLUMNS, Column

Mark = Literal["", "best", "tied"]


@dataclass(frozen=True)
class Cell:
    """One score of one variant, pooled over its seeds.

    Attributes:
        value: mean over seeds, in the unit of the file; None if only a paper has it.
        error: standard error of the mean, if known.
        over: what the error is taken over: "seeds", or "examples" of the data for a single seed.
        mark: "best" of its column, or "tied": within one standard error of it.
        text: the value as shown, in the unit of the column.
        error_text: the standard error as shown.
        published: the paper's value as shown.
    """

    value: float | None
    error: float | None = None
    over: Literal["", "seeds", "examples"] = ""
    mark: Mark = ""
    text: str = ""
    error_text: str = ""
    published: str = ""

    def __str__(self) -> str:
        return f"{self.text} ± {self.error_text}" if self.error_text else self.text


@dataclass(frozen=True)
class ScoreRow:
    """One variant with its seeds; smoke runs have a row of their own.

    Attributes:
        name: of the variant, told apart from full runs if these were smoke runs.
        scores: of every seed.
        index: number of the variant in its experiment, which decides its colour in figures.
        published: values of a paper.
        smoke: whether these were smoke runs, which are never the best.
        results: the runs.
        cells: by the key of their column.
    """

    name: str
    scores: Sequence[Mapping[str, float]]
    index: int = 0
    published: Published = field(default_factory=dict)
    smoke: bool = False
    results: tuple[Result, ...] = ()
    cells: Mapping[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreTable:
    """The variants of one experiment, the columns that some of them have, and remarks."""

    name: str
    rows: tuple[ScoreRow, ...]
    columns: tuple[Column, ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_marked(self) -> bool:
        """Whether some value is marked as the best."""
        return any(cell.mark for row in self.rows for cell in row.cells.values())


def compare(results: Iterable[Result], *, validation: bool = False) -> list[ScoreTable]:
    """A table of variants per experiment, in the order of the results, seeds pooled.

    With several seeds a cell is the mean ± its standard error over seeds, with one seed the value
    ± the standard error over examples (`<score>_sem`). The best value of a column is marked, and
    values within one standard error of the difference from it are marked as tied. Smoke runs have
    rows of their own and are never marked; costs (parameters, seconds) have no best.

    Args:
        results: from `read`.
        validation: compare scores on the validation data instead of the test data.

    Examples:
        >>> runs = [Result("e", "a", seed, metrics={"nll": nll}) for seed, nll in [(0, 1.0), (1, 3.0)]]
        >>> cell = compare(runs)[0].rows[0].cells["nll"]
        >>> cell.value, cell.error, cell.over
        (2.0, 1.0, 'seeds')
    """
    experiments: dict[str, dict[tuple[str, bool], list[Result]]] = {}
    for result in results:
        variants = experiments.setdefault(result.experiment, {})
        variants.setdefault((result.variant, result.smoke), []).append(result)
    tables = []
    for experiment, variants in experiments.items():
        rows = [
            ScoreRow(
                f"{variant} (smoke)" if smoke else variant,
                [_scores(run, validation) for run in runs],
                index,
                {} if validation else next((run.published for run in runs if run.published), {}),
                smoke,
                tuple(runs),
            )
            for index, ((variant, smoke), runs) in enumerate(variants.items())
        ]
        title = next((run.title for row in rows for run in row.results if run.title), "")
        table = score_table(experiment, rows, COLUMNS)
        tables.append(replace(table, title=title, notes=tuple(_notes(table.rows))))
    return tables


def score_table(name: str, rows: Sequence[ScoreRow], columns: Iterable[Column]) -> ScoreTable:
    """The table of rows without cells; columns that no row has are left out."""
    shown = {column: cells for column in columns if any(cells := _cells(column, rows))}
    filled = tuple(
        replace(row, cells={c.key: cell for c, cells in shown.items() if (cell := cells[i])})
        for i, row in enumerate(rows)
    )
    return ScoreTable(name, filled, tuple(shown))


def pool(key: str, scores: Sequence[Mapping[str, float]]) -> Cell | None:
    """A score over the seeds of one variant, not yet formatted; None if no seed has it."""
    values = [seed[key] for seed in scores if key in seed]
    if not values:
        return None
    value, error = mean_and_error(values)
    if len(values) > 1:
        return Cell(value, error, "seeds")
    error = next((seed.get(f"{key}_sem") for seed in scores if key in seed), None)
    return Cell(value, error, "" if error is None else "examples")


def _cells(column: Column, rows: Sequence[ScoreRow]) -> list[Cell | None]:
    """A cell per row, formatted with the same digits, the best marked."""
    cells = [
        pool(column.key, row.scores) or (Cell(None) if column.key in row.published else None)
        for row in rows
    ]
    known = [cell for cell in cells if cell is not None]
    decimals = decimals_for(
        [column.factor * cell.value for cell in known if cell.value is not None],
        [column.factor * cell.error for cell in known if cell.error is not None],
        column.decimals,
    )
    marks = _marks(
        column, [None if row.smoke else cell for row, cell in zip(rows, cells, strict=True)]
    )
    return [
        cell and _formatted(cell, column, decimals, mark, row.published.get(column.key))
        for cell, mark, row in zip(cells, marks, rows, strict=True)
    ]


def _marks(column: Column, cells: Sequence[Cell | None]) -> list[Mark]:
    marks: list[Mark] = ["" for _ in cells]
    running = {
        i: (column.loss(cell.value), cell.error or 0.0)
        for i, cell in enumerate(cells)
        if cell and cell.value is not None and math.isfinite(cell.value)
    }
    if not column.better or len(running) < 2:
        return marks
    best, error = min(running.values())
    for i, (loss, own) in running.items():
        if loss == best:
            marks[i] = "best"
        elif loss - best <= math.hypot(error, own):
            marks[i] = "tied"
    return marks


def _formatted(
    cell: Cell,
    column: Column,
    decimals: int,
    mark: Mark,
    paper: tuple[float, float | None] | None,
) -> Cell:
    text = error = ""
    if cell.value is not None:
        text = fixed(column.factor * cell.value, decimals)
        if cell.error is not None and column.decimals > 0 and math.isfinite(cell.value):
            size, smallest = column.factor * cell.error, 10.0**-decimals
            tiny = 0 < size < smallest / 2
            error = f"<{smallest:.{decimals}f}" if tiny else fixed(size, decimals)
    published = "" if paper is None else _published(column, *paper)
    return replace(cell, mark=mark, text=text, error_text=error, published=published)


def _published(column: Column, value: float, error: float | None) -> str:
    value *= column.factor
    if error is None:
        return f"{value:,.0f}" if column.decimals == 0 else f"{value:.6g}"
    decimals = decimals_for([value], [column.factor * error], most=6)
    return f"{fixed(value, decimals)} ± {fixed(column.factor * error, decimals)}"


def _scores(result: Result, validation: bool) -> dict[str, float]:
    scores = dict(result.validation if validation else result.metrics)
    if result.parameters is not None:
        scores["parameters"] = result.parameters
    if "train" in result.seconds:
        scores["seconds"] = result.seconds["train"]
    return scores


def _notes(rows: Sequence[ScoreRow]) -> Iterator[str]:
    names: dict[str, list[str]] = {"seeds": [], "examples": []}
    for row in rows:
        for over in {cell.over for cell in row.cells.values() if cell.over}:
            names[over].append(row.name)
    in_splits = any("splits" in result.figures for row in rows for result in row.results)
    words = {
        "seeds": "seeds",
        "examples": "the splits of a table (one seed)" if in_splits else "examples (one seed)",
    }
    parts = [
        f"over {words[over]}" + (f" for {', '.join(named)}" if all(names.values()) else "")
        for over, named in names.items()
        if named
    ]
    if parts:
        yield f"± is the standard error of the mean {'; '.join(parts)}."
    if any(row.smoke for row in rows):
        yield "Smoke runs only show that the program works: they are not results."
    for row in rows:
        if differing := _differing(row):
            yield f"{row.name}: its seeds were run with different {', '.join(differing)}."


def _differing(row: ScoreRow) -> list[str]:
    """Settings with several values; those that older files do not know had none."""
    values: dict[str, set[str]] = {}
    for result in row.results:
        for key, value in result.settings.items():
            values.setdefault(key, set()).add(json.dumps(value, default=str))
    return sorted(key for key, found in values.items() if len(found) > 1 and key != "seed")

"""Tables of scores: variants against columns, seeds pooled, the best of every column marked."""

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scipy import special

from experiments.report.json_numbers import decimals_for, fixed, mean_and_error, with_error
from experiments.report.reading import Published, Result

Scores = Mapping[str, float]
Mark = Literal["", "best", "tied"]


@dataclass(frozen=True)
class Column:
    """One score: its key in a result, and an entry of score_columns.toml, which explains the fields."""

    key: str
    label: str
    better: Literal["higher", "lower", "target", ""] = ""
    explanation: str = ""
    factor: float = 1.0
    decimals: int = 4
    target: float = 0.0

    @property
    def title(self) -> str:
        return self.label[0].upper() + self.label[1:]

    def loss(self, value: float) -> float:
        """How bad a value is: the least is the best."""
        if self.better == "target":
            return abs(value - self.target)
        return -value if self.better == "higher" else value


_DATA = tomllib.loads(Path(__file__).with_name("score_columns.toml").read_text(encoding="utf-8"))
COLUMNS = tuple(Column(key, **entry) for key, entry in _DATA["table"].items())
_KNOWN = {entry.key: entry for entry in COLUMNS}
_KNOWN |= {key: Column(key, **entry) for key, entry in _DATA["curves"].items()}


def column(key: str) -> Column:
    """What is known of a score; of others, a name."""
    return _KNOWN.get(key) or Column(key, key.replace("_", " "))


@dataclass(frozen=True)
class Cell:
    """One score of one variant, pooled over its seeds."""

    value: float | None  # mean over seeds, in the unit of the file; None if only a paper has it
    error: float | None = None  # standard error of the mean, if known
    mark: Mark = ""  # "best" of its column, or "tied": within one standard error of it
    text: str = ""  # the value as shown, in the unit of the column
    error_text: str = ""
    published: str = ""  # the paper's value as shown

    def __str__(self) -> str:
        return f"{self.text} ± {self.error_text}" if self.error_text else self.text


@dataclass(frozen=True)
class ScoreRow:
    """One variant with its seeds."""

    name: str  # of the variant
    index: int  # number of the variant in its experiment, which decides its colour in figures
    results: tuple[Result, ...]
    cells: Mapping[str, Cell]  # by the key of their column


@dataclass(frozen=True)
class ScoreTable:
    """The variants of one experiment, the columns that some of them have, and remarks."""

    name: str  # of the experiment, with "(smoke)" behind it if these were smoke runs
    title: str
    rows: tuple[ScoreRow, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]

    @property
    def is_marked(self) -> bool:
        return any(cell.mark for row in self.rows for cell in row.cells.values())


def compare(results: Iterable[Result], *, validation: bool = False) -> list[ScoreTable]:
    """A table of variants per experiment, in the order of the results, seeds pooled.

    With several seeds a cell is the mean ± its standard error over seeds, with one seed the value
    ± the standard error over examples (`<score>_sem`). The best value of a column is marked, and
    values within one standard error of the difference from it are marked as tied. Smoke runs have
    tables of their own; costs (parameters, seconds) have no best.

    Args:
        results: from `read`.
        validation: compare scores on the validation data instead of the test data.

    Examples:
        >>> runs = [Result("e", "a", seed, metrics={"nll": nll}) for seed, nll in [(0, 1.0), (1, 3.0)]]
        >>> cell = compare(runs)[0].rows[0].cells["nll"]
        >>> cell.value, cell.error
        (2.0, 1.0)
    """
    tables: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        name = f"{result.experiment} (smoke)" if result.smoke else result.experiment
        tables.setdefault(name, {}).setdefault(result.variant, []).append(result)
    return [_table(name, variants, validation) for name, variants in tables.items()]


def _table(name: str, variants: Mapping[str, Sequence[Result]], validation: bool) -> ScoreTable:
    scores, papers = [], []
    for runs in variants.values():
        scores.append([_scores(run, validation) for run in runs])
        published = (run.published for run in runs if run.published and not validation)
        papers.append(next(published, {}))
    columns = {c: cells for c in COLUMNS if any(cells := _cells(c, scores, papers))}
    rows = []
    for i, (variant, runs) in enumerate(variants.items()):
        own = {column.key: cell for column, cells in columns.items() if (cell := cells[i])}
        rows.append(ScoreRow(variant, i, tuple(runs), own))
    title = next((run.title for row in rows for run in row.results if run.title), "")
    return ScoreTable(name, title, tuple(rows), tuple(columns), tuple(_notes(rows)))


def _scores(result: Result, validation: bool) -> Scores:
    scores = dict(result.validation if validation else result.metrics)
    if result.parameters is not None:
        scores["parameters"] = result.parameters
    if "train" in result.seconds:
        scores["seconds"] = result.seconds["train"]
    return scores


def pool(key: str, seeds: Sequence[Scores]) -> Cell | None:
    """A score over the seeds of one variant, not yet formatted; None if no seed has it."""
    known = [scores for scores in seeds if key in scores]
    if not known:
        return None
    value, error = mean_and_error([scores[key] for scores in known])
    return Cell(value, known[0].get(f"{key}_sem") if len(known) == 1 else error)


def _cells(
    column: Column, variants: Sequence[Sequence[Scores]], papers: Sequence[Published]
) -> list[Cell | None]:
    """A cell per variant, formatted with the same digits, the best marked."""
    key, factor = column.key, column.factor
    cells = [pool(key, seeds) for seeds in variants]
    values = [factor * cell.value for cell in cells if cell and cell.value is not None]
    errors = [factor * cell.error for cell in cells if cell and cell.error is not None]
    decimals = decimals_for(values, errors, column.decimals)
    marks = _marks(column, {i: cell for i, cell in enumerate(cells) if cell})
    for i, paper in enumerate(papers):
        if cell := cells[i]:
            cells[i] = replace(_formatted(cell, column, decimals), mark=marks.get(i, ""))
        if key in paper:
            value, error = paper[key]
            text = with_error(factor * value, None if error is None else factor * error)
            cells[i] = replace(cells[i] or Cell(None), published=text)
    return cells


def _marks(column: Column, cells: Mapping[int, Cell]) -> dict[int, Mark]:
    losses = {
        i: (column.loss(cell.value), cell.error or 0.0)
        for i, cell in cells.items()
        if cell.value is not None and math.isfinite(cell.value)
    }
    if not column.better or len(losses) < 2:
        return {}
    best, error = min(losses.values())
    marks: dict[int, Mark] = {}
    for i, (loss, own) in losses.items():
        if loss - best <= math.hypot(error, own):
            marks[i] = "best" if loss == best else "tied"
    return marks


def _formatted(cell: Cell, column: Column, decimals: int) -> Cell:
    value = column.factor * (cell.value or 0.0)
    error = ""
    if cell.error is not None and column.decimals > 0 and math.isfinite(value):
        size, smallest = column.factor * cell.error, 10.0**-decimals
        tiny = 0 < size < smallest / 2
        error = f"<{smallest:.{decimals}f}" if tiny else fixed(size, decimals)
    return replace(cell, text=fixed(value, decimals), error_text=error)


ERROR_NOTE = "± is the standard error over seeds; with one seed, over examples or splits."


def _notes(rows: Sequence[ScoreRow]) -> Iterator[str]:
    if any(cell.error is not None for row in rows for cell in row.cells.values()):
        yield ERROR_NOTE
    if any(run.smoke for row in rows for run in row.results):
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


GAINS = ("log_likelihood", "elbo")  # scores whose differences are small and matter
GAINS_NOTE = (
    "Seed by seed, in nats per example; ± is the standard error over seeds, and the noise its 95 % "
    "interval by Student's t."
)


def gains(rows: Sequence[ScoreRow]) -> tuple[str, list[list[str]]]:
    """Differences of every later variant to the first, above 0 if it is better: heading and table.

    Over the seeds that both have. No rows if nothing can be compared.
    """
    lines = []
    for row in rows[1:]:
        for key in GAINS:
            base, own = _by_seed(rows[0], key), _by_seed(row, key)
            differences = [own[seed] - base[seed] for seed in own if seed in base]
            if differences:
                mean, error = mean_and_error(differences)
                size = f"{mean:+.2f}".replace("-", "−")
                size += "" if error is None else f" ± {fixed(error, 2)}"
                words = verdict(mean, error, len(differences))
                lines.append([row.name, column(key).label, size, words])
    head = ["variant", "score", "difference", "verdict"]
    return (f"differences to {rows[0].name}", [head, *lines]) if lines else ("", [])


def _by_seed(row: ScoreRow, key: str) -> dict[int, float]:
    return {run.seed: run.metrics[key] for run in row.results if key in run.metrics}


def verdict(mean: float, error: float | None, seeds: int) -> str:
    """A difference in words.

    Examples:
        >>> verdict(0.5, 0.1, 3), verdict(0.3, 0.1, 3)
        ('better by more than the noise', 'within the noise')
    """
    if error is None:
        return "not known from one seed"
    if abs(mean) <= special.stdtrit(seeds - 1, 0.975) * error:
        return "within the noise"
    return f"{'better' if mean > 0 else 'worse'} by more than the noise"

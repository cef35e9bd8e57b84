"""Results side by side: the seeds of a variant pooled, the best of every score marked."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.report.columns import COLUMNS, Column
from experiments.report.reading import Problem, Result, ResultError, read
from experiments.report.scores import Cell, score_cells

__all__ = ["Group", "Problem", "Result", "ResultError", "Row", "Table", "compare", "read"]


@dataclass(frozen=True)
class Row:
    """One variant with its seeds pooled; smoke runs have a row of their own."""

    variant: str
    smoke: bool
    results: tuple[Result, ...]
    cells: Mapping[str, Cell]

    @property
    def name(self) -> str:
        """The variant, told apart from full runs if these were smoke runs."""
        return f"{self.variant} (smoke)" if self.smoke else self.variant


@dataclass(frozen=True)
class Group:
    """The variants of one experiment, the columns that some of them have, and remarks."""

    experiment: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A comparison: one group of rows per experiment."""

    groups: tuple[Group, ...]


def compare(results: Iterable[Result], *, validation: bool = False) -> Table:
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
        >>> cell = compare(runs).groups[0].rows[0].cells["nll"]
        >>> cell.value, cell.error, cell.over
        (2.0, 1.0, 'seeds')
    """
    experiments: dict[str, dict[tuple[str, bool], list[Result]]] = {}
    for result in results:
        variants = experiments.setdefault(result.experiment, {})
        variants.setdefault((result.variant, result.smoke), []).append(result)
    return Table(tuple(_group(name, rows, validation) for name, rows in experiments.items()))


def _group(
    experiment: str, variants: Mapping[tuple[str, bool], Sequence[Result]], validation: bool
) -> Group:
    pools = list(variants.items())
    scores = [[_all_scores(r, validation) for r in runs] for _, runs in pools]
    papers = [next((r.published for r in runs if r.published), {}) for _, runs in pools]
    papers = [{} for _ in papers] if validation else papers
    eligible = [not smoke for (_, smoke), _ in pools]
    by_column = [(c, score_cells(c, scores, papers, eligible)) for c in COLUMNS]
    shown = [(c, cells) for c, cells in by_column if any(cell is not None for cell in cells)]
    rows = tuple(
        Row(variant, smoke, tuple(runs), {c.key: cell for c, cells in shown if (cell := cells[i])})
        for i, ((variant, smoke), runs) in enumerate(pools)
    )
    title = next((r.title for row in rows for r in row.results if r.title), "")
    return Group(experiment, title, tuple(c for c, _ in shown), rows, tuple(_notes(rows)))


def _all_scores(result: Result, validation: bool) -> dict[str, float]:
    scores = dict(result.validation if validation else result.metrics)
    if result.parameters is not None:
        scores["parameters"] = result.parameters
    if "train" in result.seconds:
        scores["seconds"] = result.seconds["train"]
    return scores


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    kinds: dict[str, list[str]] = {"seeds": [], "examples": []}
    for row in rows:
        for over in {cell.over for cell in row.cells.values() if cell.over}:
            kinds[over].append(row.name)
    in_splits = any("splits" in result.figures for row in rows for result in row.results)
    told = {
        "seeds": "seeds",
        "examples": "the splits of a table (one seed)" if in_splits else "examples (one seed)",
    }
    parts = [
        f"over {told[over]}" + (f" for {', '.join(names)}" if all(kinds.values()) else "")
        for over, names in kinds.items()
        if names
    ]
    if parts:
        yield f"± is the standard error of the mean {'; '.join(parts)}."
    if any(row.smoke for row in rows):
        yield "Smoke runs only show that the program works: they are not results."
    for row in rows:
        if differing := _differing(row):
            yield f"{row.name}: its seeds were run with different {', '.join(differing)}."


def _differing(row: Row) -> list[str]:
    """Settings with several values; those that older files do not know had none."""
    values: dict[str, set[str]] = {}
    for result in row.results:
        for key, value in result.settings.items():
            values.setdefault(key, set()).add(json.dumps(value, default=str))
    return sorted(key for key, found in values.items() if len(found) > 1 and key != "seed")

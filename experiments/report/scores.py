"""One score of many variants: pooled over seeds, formatted alike, the best marked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from experiments.report.columns import Column
from experiments.report.values import decimals_for, fixed, mean_and_error

Scores = Mapping[str, float]
Paper = Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Cell:
    """One score of one variant, pooled over its seeds.

    Attributes:
        value: mean over seeds, in the unit of the file; None if only a paper has it.
        error: standard error of the mean, if known.
        over: what the error is taken over: "seeds", or "examples" of the data for a single seed.
        count: seeds that have this score.
        mark: "best" of its column, or "tied": within one standard error of it.
        text: the value as shown, in the unit of the column.
        error_text: the standard error as shown.
        published: the paper's value as shown.
    """

    value: float | None
    error: float | None = None
    over: Literal["", "seeds", "examples"] = ""
    count: int = 0
    mark: Literal["", "best", "tied"] = ""
    text: str = ""
    error_text: str = ""
    published: str = ""

    def __str__(self) -> str:
        """Value ± error."""
        return f"{self.text} ± {self.error_text}" if self.error_text else self.text


def pool(key: str, scores: Sequence[Scores]) -> Cell | None:
    """A score over the seeds of one variant, not yet formatted; None if no seed has it.

    Examples:
        >>> pool("nll", [{"nll": 0.5, "nll_sem": 0.1}])
        Cell(value=0.5, error=0.1, over='examples', count=1, mark='', text='', error_text='',
             published='')
    """
    values = [one[key] for one in scores if key in one]
    if not values:
        return None
    value, error = mean_and_error(values)
    if len(values) > 1:
        return Cell(value, error, "seeds", len(values))
    error = next((one.get(f"{key}_sem") for one in scores if key in one), None)
    return Cell(value, error, "" if error is None else "examples", 1)


def score_cells(
    column: Column,
    scores: Sequence[Sequence[Scores]],
    papers: Sequence[Paper],
    eligible: Sequence[bool],
) -> list[Cell | None]:
    """A column: one cell per variant, formatted with the same digits, the best marked.

    Args:
        column: the score.
        scores: of every seed of every variant.
        papers: published values of every variant.
        eligible: variants that may be the best.
    """
    cells = [pool(column.key, one) for one in scores]
    cells = [
        cell or (Cell(None) if column.key in paper else None)
        for cell, paper in zip(cells, papers, strict=True)
    ]
    marks = _marks(column, cells, eligible)
    known = [cell for cell in cells if cell is not None and cell.value is not None]
    decimals = decimals_for(
        [column.factor * cell.value for cell in known if cell.value is not None],
        [column.factor * cell.error for cell in known if cell.error is not None],
        column.decimals,
    )
    return [
        cell and _formatted(cell, column, decimals, mark, paper.get(column.key))
        for cell, mark, paper in zip(cells, marks, papers, strict=True)
    ]


def _marks(
    column: Column, cells: Sequence[Cell | None], eligible: Sequence[bool]
) -> list[Literal["", "best", "tied"]]:
    marks: list[Literal["", "best", "tied"]] = ["" for _ in cells]
    running = {
        i: (column.loss(cell.value), cell.error or 0.0)
        for i, cell in enumerate(cells)
        if cell and cell.value is not None and math.isfinite(cell.value) and eligible[i]
    }
    if column.better == "neither" or len(running) < 2:
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
    mark: Literal["", "best", "tied"],
    paper: tuple[float, float | None] | None,
) -> Cell:
    text = error = published = ""
    if cell.value is not None:
        text = fixed(column.factor * cell.value, decimals)
        if cell.error is not None and column.decimals > 0 and math.isfinite(cell.value):
            error = _error_text(column.factor * cell.error, decimals)
    if paper is not None:
        published = _published(column, *paper)
    return replace(cell, mark=mark, text=text, error_text=error, published=published)


def _error_text(error: float, decimals: int) -> str:
    smallest = 10.0**-decimals
    return f"<{smallest:.{decimals}f}" if 0 < error < smallest / 2 else fixed(error, decimals)


def _published(column: Column, value: float, error: float | None) -> str:
    value *= column.factor
    if error is None:
        return f"{value:,.0f}" if column.decimals == 0 else f"{value:.6g}"
    error *= column.factor
    decimals = decimals_for([value], [error], most=6)
    return f"{fixed(value, decimals)} ± {fixed(error, decimals)}"

"""A table of what is left of every layer after pruning: variants against layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.figures import swatch
from experiments.report.markup import Html, el, scrolling, sortable
from experiments.report.results import Row
from experiments.report.stored import told
from experiments.report.values import finite, mapping, mean_and_error, records, short

_COUNTS = ("weights", "weights_left", "rows", "rows_left", "columns", "columns_left")


@dataclass(frozen=True)
class Left:
    """All and left of weights, rows and columns of one layer in one run."""

    weights: float
    weights_left: float
    rows: float
    rows_left: float
    columns: float
    columns_left: float


def sparsity_table(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with one table; nothing if no file tells how sparse its network is."""
    found, missing = pooled(rows)
    if found or missing:
        yield el("h3", "Sparsity")
    if found:
        yield el("p", _text(rows), class_="note")
        layers = list(dict.fromkeys(name for cells in found.values() for name in cells))
        head = [sortable("variant", "", "ascending")]
        head += [sortable(name, "", "ascending", "number") for name in layers]
        body = [
            el("tbody", el("tr", _name(rows[index], index), *(_cell(cells, one) for one in layers)))
            for index, cells in found.items()
        ]
        table = el("table", el("thead", el("tr", *head)), *body, class_="comparison")
        yield scrolling(table, "Weights, rows and columns left of every layer")
    if missing:
        yield el("p", f"Without usable data: {', '.join(missing)}.", class_="note")


def pooled(rows: Sequence[Row]) -> tuple[dict[int, dict[str, list[Left]]], list[str]]:
    """What is left by variant and layer ("total" among them), one entry per seed.

    Variants whose files tell something that cannot be used are named.
    """
    found: dict[int, dict[str, list[Left]]] = {}
    missing = []
    for index, row in enumerate(rows):
        cells: dict[str, list[Left]] = {}
        stored = told(row.results, "sparsity")
        for _, value in stored:
            for entry in (*records(mapping(value).get("layers")), mapping(value).get("total")):
                name, left = mapping(entry).get("name"), _left(mapping(entry))
                if isinstance(name, str) and left is not None:
                    cells.setdefault(name, []).append(left)
        if cells:
            found[index] = cells
        elif stored:
            missing.append(row.name)
    return found, missing


def _left(entry: Mapping[str, Any]) -> Left | None:
    counts = [finite(entry.get(key)) for key in _COUNTS]
    known = [count for count in counts if count is not None and count >= 0]
    return Left(*known) if len(known) == len(_COUNTS) and known[0] > 0 else None


def _text(rows: Sequence[Row]) -> str:
    stored = [value for row in rows for _, value in told(row.results, "sparsity")]
    limits = {finite(mapping(value).get("threshold")) for value in stored} - {None}
    known = ", ".join(short(limit) for limit in sorted(one for one in limits if one is not None))
    said = f" below {known}" if known else " below the threshold"
    return (
        f"Weights left when weights, rows or columns with a signal-to-noise ratio mean²/variance{said} "
        "are dropped; below them the share dropped and the rows (outputs) and columns (inputs) that "
        "keep a weight. Means over seeds."
    )


def _name(row: Row, index: int) -> Html:
    label = el("span", swatch(index), el("span", row.name), class_="variant")
    return el("th", label, scope="row", data_value=row.name)


def _cell(cells: Mapping[str, Sequence[Left]], layer: str) -> Html:
    seeds = cells.get(layer)
    if not seeds:
        return el("td", el("span", "–", title="not in the file"), class_="number")
    left, error = mean_and_error([one.weights_left for one in seeds])
    dropped = 100 * (1 - mean_and_error([one.weights_left / one.weights for one in seeds])[0])
    return el(
        "td",
        f"{left:,.0f} of {seeds[0].weights:,.0f}",
        el("span", f" ± {error:,.0f}", class_="error") if error is not None else None,
        el("span", f"{dropped:.1f} % dropped", class_="beneath"),
        el("span", f"rows {_sides(seeds, 'rows')}", class_="beneath"),
        el("span", f"columns {_sides(seeds, 'columns')}", class_="beneath"),
        class_="number",
        data_value=left,
    )


def _sides(seeds: Sequence[Left], side: str) -> str:
    """Rows or columns left, of all."""
    left = mean_and_error([getattr(one, f"{side}_left") for one in seeds])[0]
    return f"{left:,.0f} of {getattr(seeds[0], side):,.0f}"

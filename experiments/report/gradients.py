"""Tables of the signal-to-noise ratio of gradients: variants against training steps."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.report.figures import swatch
from experiments.report.markup import Html, el, scrolling, sortable
from experiments.report.results import Row
from experiments.report.stored import told
from experiments.report.values import decimals_for, finite, fixed, mean_and_error, short

Key = tuple[int, str]  # variant and parameter: a row of a table
Pair = tuple[float, float]  # mean and median of one seed
Cells = dict[Key, dict[float, list[Pair]]]  # row -> step -> seeds

OPEN = 2  # tables that are not folded up at first
_TEXT = (
    "Median over the entries of a parameter, below it in small print the mean: mean ± standard "
    "error over seeds. A higher ratio means less noise in the steps of the optimiser."
)


def gradient_tables(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with a table per layer and definition; nothing if no file has such ratios."""
    tables, missing = pooled(rows)
    if tables or missing:
        yield el("h3", "Signal to noise of gradients")
    if tables:
        yield el("p", _TEXT, class_="note")
        for number, ((layer, definition), cells) in enumerate(tables.items()):
            caption = f"{layer}: {definition}" if definition else layer
            table = _table(rows, caption, cells)
            yield el("details", el("summary", caption), table, open=number < OPEN)
    if missing:
        yield el("p", f"Without usable data: {', '.join(missing)}.", class_="note")


def pooled(rows: Sequence[Row]) -> tuple[dict[tuple[str, str], Cells], list[str]]:
    """Cells of every table by (layer, definition), and the names of variants with nothing usable."""
    tables: dict[tuple[str, str], Cells] = {}
    missing = []
    for index, row in enumerate(rows):
        stored = told(row.results, "gradient_snr")
        found = [_entry(one) for _, value in stored for one in _listed(value)]
        usable = [one for one in found if one is not None]
        if len(usable) < len(found):
            lost = f", {len(found) - len(usable)} of {len(found)} entries" if usable else ""
            missing.append(f"{row.name}{lost}")
        for layer, definition, parameter, step, pair in usable:
            line = tables.setdefault((layer, definition), {}).setdefault((index, parameter), {})
            line.setdefault(step, []).append(pair)
    return tables, missing


def _listed(value: object) -> list[Any]:
    """The entries; what is not a list counts as one that cannot be used."""
    return value if isinstance(value, list) else [value]


def _entry(one: object) -> tuple[str, str, str, float, Pair] | None:
    if not isinstance(one, dict):
        return None
    layer, definition, parameter = (one.get(k) for k in ("layer", "definition", "parameter"))
    step, mean, median = (finite(one.get(key)) for key in ("step", "mean", "median"))
    if not isinstance(layer, str) or step is None or mean is None or median is None:
        return None
    texts = [text if isinstance(text, str) else "" for text in (definition, parameter)]
    return layer, texts[0], texts[1], step, (mean, median)


def _table(rows: Sequence[Row], caption: str, cells: Cells) -> Html:
    steps = sorted({step for line in cells.values() for step in line})
    columns = [_column([line.get(step, []) for line in cells.values()]) for step in steps]
    head = [sortable("variant", "", "ascending")]
    head += [sortable(f"step {short(step, 12)}", "", "descending", "number") for step in steps]
    body = [
        el("tbody", el("tr", _name(rows[index], index, parameter), *entries))
        for (index, parameter), *entries in zip(cells, *columns, strict=True)
    ]
    table = el("table", el("thead", el("tr", *head)), *body, class_="comparison")
    return scrolling(table, f"Signal to noise of gradients, {caption}")


def _name(row: Row, index: int, parameter: str) -> Html:
    return el(
        "th",
        el("span", swatch(index), el("span", row.name), class_="variant"),
        el("span", parameter, class_="parameter") if parameter else None,
        scope="row",
        data_value=row.name,
    )


def _column(lines: Sequence[Sequence[Pair]]) -> list[Html]:
    """The cells of a step, with the same digits."""
    texts = [_texts([[pair[i] for pair in seeds] for seeds in lines]) for i in (1, 0)]
    cells = []
    for seeds, (median, error), (mean, mean_error) in zip(lines, *texts, strict=True):
        if not seeds:
            cells.append(el("td", el("span", "–", title="not in the file"), class_="number"))
            continue
        cells.append(
            el(
                "td",
                median,
                el("span", error, class_="error") if error else None,
                el("span", f"mean {mean}{mean_error}", class_="beneath"),
                class_="number",
                data_value=sum(pair[1] for pair in seeds) / len(seeds),
            )
        )
    return cells


def _texts(lines: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Mean and " ± error" of each line of numbers, with the same digits."""
    pairs = [mean_and_error(line) if line else (0.0, None) for line in lines]
    errors = [error for _, error in pairs if error is not None]
    decimals = decimals_for([mean for mean, _ in pairs], errors, most=5)
    return [
        (fixed(mean, decimals), "" if error is None else f" ± {fixed(error, decimals)}")
        for mean, error in pairs
    ]

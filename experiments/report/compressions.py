"""What compression did: counts before and after, and histograms of every statistic with its threshold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.figures import Figure, axis, by_variant, folded, trace
from experiments.report.markup import Html, el, join, scrolling
from experiments.report.results import Row
from experiments.report.stored import told
from experiments.report.values import all_numbers, finite, mapping, records, short

_COUNTS = {
    "parameters": "parameters",
    "nonzero": "weights not 0",
    "macs": "multiply-accumulates",
    "flops": "FLOPs",
    "table_flops": "FLOPs as tables count",
}
_TEXT = (
    "How much the posterior needs every unit, by layer and side, on a logarithmic scale. What is left of the "
    "dashed line was not needed; a unit went if all layers that make or read it could do without it."
)


@dataclass(frozen=True)
class Cut:
    """One statistic: edges and heights of the bars, the level, and how many units are below it."""

    title: str
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    level: float | None
    below: float
    units: float


def compressions(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with the first usable seed of every variant; nothing if no file tells of compression."""
    blocks: list[Html] = []
    missing: list[str] = []
    for index, row in enumerate(rows):
        stored = told(row.results, "compression")
        usable = [(r, found) for r, value in stored if (found := parsed(mapping(value)))]
        if usable:
            result, cuts = usable[0]
            facts = mapping(result.figures["compression"])
            figures = [_figure(row, one, str(facts.get("criterion", "statistic"))) for one in cuts]
            body = [
                _table(facts),
                el("div", *(one.html() for one in figures), class_="figures low"),
                _notes(facts),
            ]
            blocks.append(folded(index, row, f"seed {result.seed}", *body, unfolded=not blocks))
        elif stored:
            missing.append(row.name)
    yield from by_variant("Compression", [el("p", _TEXT, class_="note")], blocks, missing)


def parsed(value: Mapping[str, Any]) -> list[Cut]:
    """The statistics of a report that can be drawn.

    Examples:
        >>> one = {"layer": "a", "side": "out", "edges": [0, 1, 2], "counts": [3, 1], "level": 0.5}
        >>> parsed({"histograms": [one | {"below": 2, "units": 4}]})[0].title
        'a, out'
    """
    found = []
    for entry in records(value.get("histograms")):
        edges, counts = all_numbers(entry.get("edges")), all_numbers(entry.get("counts"))
        below, units = finite(entry.get("below")), finite(entry.get("units"))
        if len(edges) != len(counts) + 1 or not counts or below is None or units is None:
            continue
        title = f"{entry.get('layer', '')}, {entry.get('side', '')}"
        level = finite(entry.get("level"))
        found.append(Cut(title, tuple(edges), tuple(counts), level, below, units))
    return found


def _figure(row: Row, one: Cut, criterion: str) -> Figure:
    heights = [*one.counts, one.counts[-1]]
    bars = trace(
        one.edges,
        heights,
        name="units",
        line={"color": "--c0", "width": 1.5, "shape": "hv"},
        fill="tozeroy",
    )
    data = [bars]
    if one.level is not None:
        ends = [0.0, max(one.counts)]
        line = {"color": "--c1", "width": 2, "dash": "dash"}
        data.append(trace([one.level] * 2, ends, name="threshold", line=line))
    cut = "no threshold" if one.level is None else f"threshold {short(one.level)}"
    caption = f"{short(one.below)} of {short(one.units)} below the threshold."
    label = f"Histogram of log {criterion}, {one.title} of {row.name}: {cut}. {caption}"
    layout = {"xaxis": axis(f"log {criterion}"), "yaxis": axis("units", rangemode="tozero")}
    return Figure(one.title, data, layout, label, join([caption]), size="low")


def _table(facts: Mapping[str, Any]) -> Html:
    before, after = mapping(facts.get("before")), mapping(facts.get("after"))
    body = []
    for key, title in _COUNTS.items():
        old, new = finite(before.get(key)), finite(after.get(key))
        if old is not None and new:
            cells = (f"{old:,.0f}", f"{new:,.0f}", f"{old / new:,.1f}")
            numbers = [el("td", cell, class_="number") for cell in cells]
            body.append(el("tr", el("th", title, scope="row"), *numbers))
    timed = finite(mapping(facts.get("latency")).get("ratio"))
    if timed is not None:
        empty = el("td", class_="number")
        title = el("th", "times faster, same run", scope="row")
        body.append(el("tr", title, empty, empty, el("td", short(timed, 3), class_="number")))
    head = [el("th", name, scope="col") for name in ("", "before", "after", "ratio")]
    table = el("table", el("thead", el("tr", *head)), el("tbody", *body), class_="comparison")
    return scrolling(table, "Counts before and after compression")


def _notes(facts: Mapping[str, Any]) -> Html | None:
    notes = facts.get("notes")
    told = [one for one in notes if isinstance(one, str)] if isinstance(notes, list) else []
    return el("ul", *(el("li", one) for one in told), class_="note") if told else None

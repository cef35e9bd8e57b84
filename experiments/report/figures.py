"""What a figure of the page is, how series look, and the training curves.

Figures are Plotly's JSON with two additions that page.js understands: a colour "--c2" is the CSS
variable of the page, so that figures follow the colour scheme; `meta.series` of a trace is the
number of the legend entry that switches it on and off.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from experiments.report.markup import Html, el, embedded, join, plot_text
from experiments.report.results import Result, Row
from experiments.report.values import finite, short

COLOURS = 7  # --c0 ... --c6 in page.css
DASHES = (
    ("solid", None),
    ("dash", "7 4"),
    ("dot", "2 3"),
    ("dashdot", "7 3 2 3"),
    ("longdash", "11 4"),
    ("longdashdot", "11 3 2 3"),
)
POINTS = 300  # of a line at most, to keep the page small

# key of `history`, title, factor
QUANTITIES = (
    ("loss", "Loss", 1.0),
    ("nll", "Negative log-likelihood", 1.0),
    ("kl", "KL divergence from the prior", 1.0),
    ("accuracy", "Accuracy (%)", 100.0),
    ("rmse", "Root mean squared error", 1.0),
    ("learning_rate", "Learning rate", 1.0),
    ("temperature", "Temperature", 1.0),
)
_SCHEDULES = ("learning_rate", "temperature")  # shown only if they change

Line = tuple[list[float], list[float]]
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        title: a few words above it.
        data: Plotly's traces.
        layout: Plotly's layout; page.js adds fonts, margins and colours.
        label: what it shows, in words, for those who do not see it.
        caption: markup below it.
        size: "high", or "low" for one of many.
    """

    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    label: str
    caption: Html = field(default_factory=Html)
    size: str = "high"

    def html(self) -> Html:
        """The figure for the page; page.js draws it when it comes into view."""
        return el(
            "figure",
            el("p", self.title, class_="figure-title"),
            el("div", role="img", aria_label=self.label, class_=f"plot {self.size}"),
            embedded({"data": self.data, "layout": self.layout}),
            el("figcaption", self.caption) if self.caption else None,
            class_="figure",
        )


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of a series: different for the first 42."""
    return {"color": f"--c{index % COLOURS}", "dash": DASHES[index % len(DASHES)][0]}


def swatch(index: int) -> Html:
    """A short piece of the line of a series."""
    return piece(**look(index))


def piece(color: str, dash: str, width: float = 2.5, dot: bool = False) -> Html:
    """A short piece of a line, as Plotly's `line` describes it, or of one with markers."""
    line = el(
        "line",
        x1=0,
        y1=5,
        x2=28,
        y2=5,
        stroke_width=width,
        stroke_dasharray=dict(DASHES)[dash],
        style=f"stroke:var({color})",
    )
    marker = el("circle", cx=14, cy=5, r=3, style=f"fill:var({color})") if dot else None
    return el("svg", line, marker, class_="swatch", viewBox="0 0 28 10", aria_hidden="true")


def by_variant(
    heading: str, notes: Sequence[Html], blocks: Sequence[Html], missing: Sequence[str]
) -> Iterator[Html]:
    """A section of folded blocks, one per variant, and who has no usable data."""
    if blocks or missing:
        yield el("h3", heading)
    if blocks:
        yield from notes
        yield el("div", *blocks, class_="by-variant")
    if missing:
        yield el("p", f"Without usable data: {', '.join(missing)}.", class_="note")


def folded(index: int, row: Row, facts: str, *body: Html | None, unfolded: bool) -> Html:
    """Something about one variant under its name, to fold and unfold."""
    return el(
        "details",
        el(
            "summary",
            swatch(index),
            el("span", row.variant, class_="name"),
            el("span", "smoke", class_="badge") if row.smoke else None,
            el("span", facts, class_="small facts-line"),
        ),
        *body,
        class_="one-variant",
        open=unfolded,
    )


def legend(names: Sequence[str], label: str, shown: Iterable[int] | None = None) -> Html:
    """Buttons that show and hide the series of the figures in the same `data-scope`."""
    pressed = set(range(len(names)) if shown is None else shown)
    buttons = [
        el(
            "button",
            swatch(index),
            name,
            type="button",
            data_series=index,
            aria_pressed="true" if index in pressed else "false",
        )
        for index, name in enumerate(names)
    ]
    return el("div", join(buttons), class_="legend", role="group", aria_label=label)


def trace(x: Sequence[float | None], y: Sequence[float | None], **options: Any) -> dict[str, Any]:
    """A line of a figure, in five significant digits."""
    mode = "lines" if len(x) > 1 else "markers"
    return {"type": "scatter", "mode": mode, "x": rounded(x), "y": rounded(y), **options}


def rounded(values: Sequence[float | None]) -> list[float | None]:
    """Numbers for a figure, where more digits than five cannot be seen."""
    return [None if value is None else float(f"{value:.5g}") for value in values]


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most so many of the values, evenly spread, the first and the last among them.

    Examples:
        >>> thinned(range(100), 4)
        [0, 33, 66, 99]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def axis(title: str, **options: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": plot_text(title)}, **options}


def log_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2, 5, or at powers of ten if there are many.

    Examples:
        >>> log_axis(0.3, 3.0)["ticktext"]
        ['0.5', '1', '2']
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return {"type": "log", "tickvals": ticks, "ticktext": [short(tick) for tick in ticks]}


def wide(values: Sequence[float]) -> bool:
    """Whether numbers need a logarithmic axis: all positive, and over more than a factor of ten.

    Examples:
        >>> wide([0.1, 2.0]), wide([1.0, 2.0]), wide([-1.0, 20.0])
        (True, False, False)
    """
    return min(values) > 0 and max(values) > 10 * min(values)


def curves(rows: Sequence[Row]) -> list[Figure]:
    """Training curves: a figure per quantity, a line per variant, the mean over its seeds."""
    figures = [_curve(rows, *quantity) for quantity in QUANTITIES]
    return [figure for figure in figures if figure is not None]


def history_line(results: Sequence[Result], key: str, factor: float = 1.0) -> Line:
    """Epochs and values of a quantity in the histories, the mean over seeds, thinned if long.

    Examples:
        >>> runs = [Result("e", "v", s, history=[{"epoch": 1, "nll": s}]) for s in (1, 2)]
        >>> history_line(runs, "nll")
        ([1.0], [1.5])
    """
    found: dict[float, list[float]] = {}
    for result in results:
        for index, entry in enumerate(result.history):
            epoch, value = finite(entry.get("epoch")), finite(entry.get(key))
            if value is not None:
                found.setdefault(index + 1.0 if epoch is None else epoch, []).append(value)
    epochs = thinned(sorted(found), POINTS)
    return epochs, [factor * sum(found[e]) / len(found[e]) for e in epochs]


def _curve(rows: Sequence[Row], key: str, title: str, factor: float) -> Figure | None:
    data: list[dict[str, Any]] = []
    told: list[str] = []
    values: list[float] = []
    pairs = [
        (history_line(row.results, key, factor), history_line(row.results, f"valid_{key}", factor))
        for row in rows
    ]
    both = any(train[0] for train, _ in pairs) and any(valid[0] for _, valid in pairs)
    for index, (row, (train, valid)) in enumerate(zip(rows, pairs, strict=True)):
        for line, what in ((train, "training"), (valid, "validation")):
            if not line[0]:
                continue
            thin = both and what == "training"
            name = f"{row.name}, {what}" if both else row.name
            values += line[1]
            data.append(
                trace(
                    *line,
                    name=plot_text(name),
                    line={**look(index), "width": 2.6 if what == "validation" else 1.4},
                    opacity=0.75 if thin else 1.0,
                    meta={"series": index},
                )
            )
            told.append(f"{name} {short(line[1][-1])}")
    if not data or (key in _SCHEDULES and len(set(values)) < 2):
        return None
    label = f"Line chart of {title[0].lower()}{title[1:]} by epoch. Last values: {'; '.join(told)}."
    logarithmic = wide(values)
    layout = {
        "xaxis": axis("epoch"),
        "yaxis": log_axis(min(values), max(values)) if logarithmic else {},
    }
    title += ", log scale" if logarithmic else ""
    return Figure(title, data, layout, label, size="low")

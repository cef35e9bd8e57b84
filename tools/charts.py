"""Pictures of the documentation, as SVG: curves over what was varied, frontiers of size and error."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.report import Result, compare
from experiments.report.json_numbers import short
from experiments.report.plots import is_wide
from experiments.report.score_tables import column
from experiments.report.sizes import SIZES, Point, frontier_points, unbeaten
from experiments.report.sweeps import AXES, pooled

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#555555")
FAMILIES = {  # beginnings of variants: the name under which they are drawn
    "mean-field": "mean-field",
    "k-tied": "k-tied",
    "matrix-normal": "matrix normal",
    "mn-diagonal": "MN + diagonal",
    "scaled-mn": "scaled matrix normal",
    "radial": "radial",
}
WORST = 2.0  # per cent: networks with a larger error are left out of frontiers
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 84, 44
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Series:
    """Points joined by a line; dotted with rings for what is published, rings for what is special."""

    points: Sequence[Point]
    colour: str
    dotted: bool = False
    rings: bool = False


@dataclass(frozen=True)
class Panel:
    """One of several charts beside each other; the x axis is logarithmic."""

    title: str
    x_name: str
    series: Sequence[Series]
    marks: Mapping[str, float] = field(default_factory=dict)  # upright lines
    crosses: Mapping[str, Point] = field(default_factory=dict)  # single points
    log: bool = False  # whether the y axis is logarithmic


def sweep_chart(results: Sequence[Result]) -> str:
    """Every score over what an experiment varied: ours with dots, published or exact dotted with rings."""
    (table,) = compare(results)
    ((x, sweep),) = pooled(table.rows).items()
    panels = []
    for score, curves in sweep.scores.items():
        known = column(score)
        series = []
        for colour, curve in zip(COLOURS, curves.values(), strict=False):
            for points, dotted in ((curve.means(), False), (curve.beside, True)):
                ordered = [(place, known.factor * points[place]) for place in sorted(points)]
                series.append(Series(ordered, colour, dotted, dotted))
        values = [y for line in series for _, y in line.points]
        log = is_wide(values) and known.factor == 1  # shares in per cent are read on an even scale
        title = known.title + (" (log)" if log else "")
        panels.append(Panel(title, AXES.get(x, x), series, sweep.marks, log=log))
    legend = [(f"● {name}", colour) for name, colour in zip(sweep.series, COLOURS, strict=False)]
    if any(line.dotted and line.points for panel in panels for line in panel.series):
        legend.append(("○ dotted: published, or exact", "#555555"))
    return draw(table.title, legend, panels, width=360, height=320)


def frontier_chart(results: Sequence[Result]) -> str:
    """Size and error of all compressed networks of an experiment, a line per run.

    A colour is a family, a line the networks of one run than which none is smaller and better on
    test data. Rings: networks that saw moved pictures. Crosses: published.
    """
    colours = dict(zip(FAMILIES.values(), COLOURS, strict=False))
    runs = [(run, *frontier_points(run.figures["frontier"])) for run in results]
    panels = []
    for size, title in SIZES.items():
        series, crosses = [], {}
        for run, points, published in runs:
            kept = [point for point in unbeaten(points[size]) if point[1] <= WORST]
            colour = colours.get(family_of(run.variant), COLOURS[-1])
            series.append(Series(kept, colour, rings="moved" in run.variant))
            crosses |= published[size]
        panels.append(Panel("test error (%)", title, series, crosses=crosses))
    families = {family_of(run.variant) for run in results}
    legend = [(f"● {name}", colour) for name, colour in colours.items() if name in families]
    legend += [("○ pictures moved", "#555555"), ("× published, counted right", "#222222")]
    return draw(f"Size and error: {results[0].title}", legend, panels, width=520, height=480)


def family_of(variant: str) -> str:
    return next((name for start, name in FAMILIES.items() if variant.startswith(start)), variant)


def draw(
    title: str,
    legend: Sequence[tuple[str, str]],
    panels: Sequence[Panel],
    *,
    width: int,
    height: int,
) -> str:
    """Panels beside each other, below a legend of two lines."""
    return _TEMPLATES.get_template("chart.svg").render(
        title=title,
        legend=legend,
        panels=[_placed(panel, i * width, width, height) for i, panel in enumerate(panels)],
        width=width * len(panels),
        height=height,
        left=LEFT,
        top=TOP,
        bottom=height - BOTTOM,
    )


def _placed(panel: Panel, left: int, width: int, height: int) -> dict[str, object]:
    """A panel in pixels."""
    points = [point for line in panel.series for point in line.points] + [*panel.crosses.values()]
    xs, ys = [x for x, _ in points] + [*panel.marks.values()], [y for _, y in points]
    start, end = left + LEFT, left + width - RIGHT
    x, y = scale(xs, start, end, True), scale(ys, height - BOTTOM, TOP, panel.log)
    return {
        "panel": panel,
        "start": start,
        "end": end,
        "x_ticks": [(x(tick), short(tick)) for tick in ticks(xs, True)],
        "y_ticks": [(y(tick), short(tick)) for tick in ticks(ys, panel.log)],
        "marks": [(name, x(at)) for name, at in panel.marks.items()],
        "series": [(line, [(x(a), y(b)) for a, b in line.points]) for line in panel.series],
        "crosses": [
            (name, x(a), y(b), y(b) + (-16, -5, 12, 23)[i % 4])  # many are beside each other
            for i, (name, (a, b)) in enumerate(sorted(panel.crosses.items(), key=lambda c: c[1]))
        ],
    }


def scale(values: Sequence[float], start: float, end: float, log: bool) -> Callable[[float], float]:
    """From values to places between two ends, with a little room."""
    turn: Callable[[float], float] = math.log if log else float
    low, high = turn(min(values)), turn(max(values))
    room = 0.05 * (high - low) or 0.5
    return lambda value: (
        start + (end - start) * (turn(value) - low + room) / (high - low + 2 * room)
    )


def ticks(values: Sequence[float], log: bool) -> list[float]:
    """Round numbers in the range of the values."""
    low, high = min(values), max(values)
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if high < 200 * low else (1,)
        places = [digit * 10.0**power for power in powers for digit in digits]
        return [place for place in places if 0.9 * low <= place <= 1.1 * high][
            :: 1 + len(powers) // 8
        ]
    step = 10 ** math.floor(math.log10((high - low) or 1.0))
    step *= 0.25 if high - low < 1.5 * step else 0.5 if high - low < 3 * step else 1.0
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]

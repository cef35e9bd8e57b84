"""Line charts in pixels, which templates/panel.svg draws: for the page and for the documentation."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from experiments.report.json_numbers import HUGE, Array, array, short

Point = tuple[float, float]
COLOURS = 7  # --c0 ... --c6 in page.css
DASHES = ("", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3")
DOTTED = "2 4"


@dataclass(frozen=True)
class Series:
    """Points joined by a line."""

    points: Sequence[Point]
    colour: str  # as CSS has it
    name: str = ""  # the browser shows it where the mouse is
    dash: str = ""  # as SVG has it
    width: float = 1.8
    dots: Literal["", "full", "rings"] = "full"
    entry: int | None = None  # number of the entry in the page's legend that shows and hides it


@dataclass(frozen=True)
class Panel:
    """One chart."""

    title: str
    x_name: str
    series: Sequence[Series]
    marks: Mapping[str, float] = field(default_factory=dict)  # upright lines
    crosses: Mapping[str, Point] = field(default_factory=dict)  # single points
    log: bool = False  # whether the y axis is logarithmic
    log_x: bool = True
    y_name: str = ""
    caption: str = ""

    @property
    def label(self) -> str:
        """What the chart shows in words."""
        ends = [f"{line.name} {short(line.points[-1][1])}" for line in self.series if line.points]
        y = self.y_name or self.title
        return f"Line chart of {y} by {self.x_name}: {self.title}. Last values: {'; '.join(ends)}."

    def placed(self, left: float, top: float, right: float, bottom: float) -> dict[str, Any]:
        """Everything in pixels, for the template."""
        points = [point for line in self.series for point in line.points]
        points += self.crosses.values()
        xs, ys = [x for x, _ in points] + [*self.marks.values()], [y for _, y in points]
        x, y = scale(xs, left, right, self.log_x), scale(ys, bottom, top, self.log)
        return {
            "box": (left, top, right, bottom),
            "names": (self.x_name, self.y_name),
            "x_ticks": [(x(tick), _words(tick)) for tick in ticks(xs, self.log_x)],
            "y_ticks": [(y(tick), _words(tick)) for tick in ticks(ys, self.log)],
            "marks": [(name, x(at)) for name, at in self.marks.items()],
            "series": [
                (line, [(x(a), y(b), f"{short(b)} at {short(a)}") for a, b in line.points])
                for line in self.series
            ],
            "crosses": [
                (name, x(a), y(b), y(b) + (-16, -5, 12, 23)[i % 4])  # many are beside each other
                for i, (name, (a, b)) in enumerate(sorted(self.crosses.items(), key=itemgetter(1)))
            ],
        }


def _words(tick: float) -> str:
    return f"{tick / 1e6:g}M" if abs(tick) >= 1e6 else short(tick)


def line(name: str, x: Iterable[float], y: Iterable[float], entry: int, **style: Any) -> Series:
    """A line in the colour and dashes of its entry in the legend: different for the first 42."""
    colour, dash = look(entry)
    known: dict[str, Any] = {"dash": dash, "width": 2.0, "dots": ""}
    points = list(zip(map(float, x), map(float, y), strict=True))
    return Series(points, colour, name, entry=entry, **(known | style))


def look(entry: int) -> tuple[str, str]:
    """Colour and dashes."""
    return f"var(--c{entry % COLOURS})", DASHES[entry % len(DASHES)]


def chart(
    title: str,
    lines: Iterable[Series],
    x: str,
    y: str = "",
    *,
    log_x: bool = False,
    log_y: bool | None = None,
    caption: str = "",
    marks: Mapping[str, float] | None = None,
    crosses: Mapping[str, Point] | None = None,
) -> list[Panel]:
    """The panel of some lines without the points that cannot be drawn; nothing if none is left.

    `log_y` None decides by the numbers.
    """

    def fits(x: float, y: float) -> bool:
        return all(abs(at) < HUGE and (at > 0 or not log) for at, log in ((x, log_x), (y, log_y)))

    cut = [replace(line, points=[at for at in line.points if fits(*at)]) for line in lines]
    drawn = [line for line in cut if line.points]
    if not drawn:
        return []
    if log_y is None and is_wide([y for line in drawn for _, y in line.points]):
        log_y, title = True, f"{title}, log scale"
    marks = {name: at for name, at in (marks or {}).items() if fits(at, 1.0)}
    crosses = {name: at for name, at in (crosses or {}).items() if fits(*at)}
    return [Panel(title, x, drawn, marks, crosses, bool(log_y), log_x, y, caption)]


def is_wide(values: Sequence[float]) -> bool:
    """Whether numbers need a logarithmic axis: all positive, and over more than a factor of ten."""
    return min(values) > 0 and max(values) > 10 * min(values)


def mean_by(seeds: Iterable[tuple[object, object]]) -> tuple[Array, Array]:
    """Every x once, in order, with the mean of its y over seeds, which are lists of x and of y.

    Examples:
        >>> mean_by([([2, 1], [1.0, 5.0]), ([2], [3.0])])
        (array([1., 2.]), array([5., 2.]))
    """
    pairs = np.hstack([np.empty((2, 0)), *(np.stack([array(x), array(y)]) for x, y in seeds)])
    places, index = np.unique(pairs[0], return_inverse=True)
    return places, np.bincount(index, pairs[1]) / np.bincount(index)


def steps(edges: object, counts: object) -> tuple[Array, Array]:
    """The outline of a stored histogram.

    Examples:
        >>> steps([0, 1, 2], [4, 3])
        (array([0., 1., 1., 2.]), array([4., 4., 3., 3.]))
    """
    return np.repeat(array(edges), 2)[1:-1], np.repeat(array(counts), 2)


def scale(values: Sequence[float], start: float, end: float, log: bool) -> Callable[[float], float]:
    """From values to places between two ends, with a little room."""
    turn: Callable[[float], float] = math.log if log else float
    low, high = turn(min(values)), turn(max(values))
    room = 0.05 * (high - low) or 0.5
    return lambda value: (
        start + (end - start) * (turn(value) - low + room) / (high - low + 2 * room)
    )


def ticks(values: Sequence[float], log: bool) -> list[float]:
    """Round numbers in the range of the values, at most nine."""
    low, high = min(values), max(values)
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if high < 200 * low else (1,)
        places = [digit * 10.0**power for power in powers for digit in digits]
        places = [place for place in places if 0.9 * low <= place <= 1.1 * high]
    else:
        step = 10 ** math.floor(math.log10((high - low) or abs(low) or 1.0))
        step *= 0.25 if high - low < 1.5 * step else 0.5 if high - low < 3 * step else 1.0
        numbers = range(math.ceil(low / step - 0.1), math.floor(high / step + 0.1) + 1)
        places = [number * step for number in numbers]
    return places[:: 1 + len(places) // 8]

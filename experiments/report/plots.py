"""Lines as figures.

Figures are Plotly's JSON with two additions that page.js understands: a colour "--c2" is the CSS
variable of the page, so that figures follow the colour scheme; `meta.series` of a trace is the
number of the legend entry that shows and hides it.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.report.json_numbers import HUGE, Array, array, short

COLOURS = 7  # --c0 ... --c6 in page.css
DASHES = {  # Plotly's names, and the same for SVG
    "solid": "",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "11 4",
    "longdashdot": "11 3 2 3",
}
DOTS = {"mode": "lines+markers", "marker": {"size": 5}}


@dataclass(frozen=True)
class Figure:
    """Plotly's traces and layout, and what the figure shows in words."""

    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    label: str
    caption: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a figure.

    `series` is its entry in the legend, which decides colour and dashes; `style` is that of Plotly's
    line and goes before it; `options` are those of the whole trace.
    """

    name: str
    x: Sequence[float] | Array
    y: Sequence[float] | Array
    series: int | None = None
    style: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def trace(self) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "lines" if len(self.x) > 1 else "markers",
            "name": escaped(self.name),
            "x": rounded(self.x),
            "y": rounded(self.y),
            "line": {**({} if self.series is None else look(self.series)), **self.style},
            "meta": {"series": self.series},
            **self.options,
        }


def chart(
    title: str,
    lines: Iterable[Line],
    x: str,
    y: str = "",
    *,
    log_x: bool = False,
    log_y: bool | None = None,
    caption: str = "",
    xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None,
    shapes: Sequence[Mapping[str, Any]] = (),
) -> list[Figure]:
    """The figure of some lines; nothing if they have no points.

    `log_y` None decides by the numbers; `xaxis` and `yaxis` are further options of Plotly.
    """
    drawn = [line for line in lines if len(line.x)]
    xs = [value for line in drawn for value in line.x if abs(value) < HUGE]
    ys = [value for line in drawn for value in line.y if abs(value) < HUGE]
    if not xs or not ys:
        return []
    if log_y is None and is_wide(ys):
        log_y, title = True, f"{title}, log scale"
    layout = {
        "xaxis": {"title": {"text": escaped(x)}, **(_log(xs) if log_x else {}), **(xaxis or {})},
        "yaxis": {"title": {"text": escaped(y)}, **(_log(ys) if log_y else {}), **(yaxis or {})},
        "shapes": list(shapes),
    }
    ends = [f"{line.name} {short(list(line.y)[-1])}" for line in drawn]
    label = f"Line chart of {y or title} by {x}: {title}. Last values: {'; '.join(ends)}."
    return [Figure(title, [line.trace() for line in drawn], layout, label, caption)]


def mark(at: float) -> dict[str, Any]:
    """A dashed line across a figure at a place of its x axis."""
    line = {"color": "--c6", "dash": "dash", "width": 1.2}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of a series: different for the first 42."""
    dash = list(DASHES)[index % len(DASHES)]
    return {"color": f"--c{index % COLOURS}", "dash": dash, "width": 2.0}


def escaped(text: str) -> str:
    """Text for a label in Plotly, which reads tags, entities and templates in it.

    Examples:
        >>> escaped("<b> %{x}")
        '&lt;b&gt; %&#123;x}'
    """
    return html.escape(text, quote=False).replace("%{", "%&#123;")


def rounded(values: Iterable[float]) -> list[float | None]:
    """Numbers for a figure, where more digits than five cannot be seen; NaN and the like are gaps."""
    return [float(f"{value:.5g}") if abs(value) < HUGE else None for value in values]


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
    """Edges and counts of a stored histogram, the last count twice, for a line of shape "hv"."""
    heights = array(counts)
    return array(edges), np.append(heights, heights[-1:])


def _log(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2, 5, or at powers of ten if there are many."""
    positive = [value for value in values if value > 0] or [1.0]
    few = max(positive) < 200 * min(positive)
    return {"type": "log", "dtick": "D2" if few else 1, "tickformat": ",~r" if few else "~g"}

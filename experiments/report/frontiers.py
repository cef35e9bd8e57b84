"""Size against error of compressed networks: all families in one figure, beside published ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.figures import Figure, axis, log_axis, look, trace
from experiments.report.markup import plot_text
from experiments.report.results import Row
from experiments.report.stored import told
from experiments.report.values import finite, mapping, records, short

_SIZES = {"weights": "weights left", "flops": "multiply-accumulates and biases"}
NAMED = 6  # with more variants a legend leaves no room; the page has one of its own below

Point = tuple[float, float]


def frontiers(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """A figure per measure of size; for every variant a line per seed, through points that no other beats.

    Returns:
        The figures and the names of the variants that store something unusable.
    """
    stored = {row.name: told(row.results, "frontier") for row in rows}
    missing: list[str] = []
    figures = []
    for size, title in _SIZES.items():
        series = {
            name: seeds
            for name, values in stored.items()
            if (seeds := [found for _, value in values if (found := _points(value, size))])
        }
        missing += [
            n for n, values in stored.items() if values and n not in series | dict.fromkeys(missing)
        ]
        rivals = {
            name: point
            for values in stored.values()
            for _, value in values
            for name, point in _rivals(value, size).items()
        }
        if series:
            figures.append(_figure(title, series, rivals))
    return figures, missing


def unbeaten(points: Sequence[Point]) -> list[Point]:
    """The points than which none is smaller and better, by size.

    Examples:
        >>> unbeaten([(3, 0.1), (1, 0.4), (2, 0.5), (5, 0.1)])
        [(1, 0.4), (3, 0.1)]
    """
    best: list[Point] = []
    for size, error in sorted(points):
        if not best or error < best[-1][1]:
            best.append((size, error))
    return best


def _points(value: Any, size: str) -> list[Point]:
    found = []
    for one in records(mapping(value).get("points")):
        x, y = finite(one.get(size)), finite(one.get("error"))
        if x is not None and y is not None and x > 0:
            found.append((x, 100 * y))
    return found


def _rivals(value: Any, size: str) -> dict[str, Point]:
    found = {}
    for name, one in mapping(mapping(value).get("published")).items():
        x, y = finite(mapping(one).get(size)), finite(mapping(one).get("error"))
        if x is not None and y is not None and x > 0:
            found[str(name)] = (x, 100 * y)
    return found


def _figure(
    title: str, series: Mapping[str, Sequence[Sequence[Point]]], rivals: Mapping[str, Point]
) -> Figure:
    data: list[dict[str, Any]] = []
    words = []
    for index, (name, seeds) in enumerate(series.items()):
        for number, points in enumerate(seeds):
            best = unbeaten(points)
            xs, ys = [x for x, _ in best], [y for _, y in best]
            line = {**look(index), "width": 2.2}
            drawn = trace(xs, ys, name=plot_text(name), line=line) | {"mode": "lines+markers"}
            named = not number and len(series) <= NAMED
            data.append(drawn | {"legendgroup": plot_text(name), "showlegend": named})
            told_points = ", ".join(f"{short(y)} % at {short(x)}" for x, y in best)
            words.append(f"{name}: {told_points}")
    if rivals:
        xs, ys = [x for x, _ in rivals.values()], [y for _, y in rivals.values()]
        marker = {"color": "--c6", "symbol": "x", "size": 8}
        drawn = trace(xs, ys, name="published", marker=marker) | {"mode": "markers"}
        data.append(drawn | {"text": [plot_text(name) for name in rivals]})
        words.append(
            "published: "
            + ", ".join(f"{n} {short(y)} % at {short(x)}" for n, (x, y) in rivals.items())
        )
    every = [point for seeds in series.values() for points in seeds for point in points]
    places = [x for x, _ in (*every, *rivals.values())]
    lines = (len(series) + 3) // 3 if len(series) <= NAMED else 0
    layout = {
        "xaxis": axis(title, **log_axis(min(places) / 1.1, max(places) * 1.1)),
        "yaxis": axis("test error (%)", rangemode="tozero"),
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 44, "r": 10, "t": 14 + 20 * (lines or 1), "b": 40},
    }
    label = f"Line chart of test error by {title}. {'; '.join(words)}."
    return Figure(f"Test error by {title}", data, layout, label)

"""What compression leaves: size against error."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.json_numbers import array
from experiments.report.panels import Point, Series, chart, line
from experiments.report.sections import Rows, Section, stored

SIZES = {"weights": "weights left", "flops": "multiply-accumulates and biases"}


def frontiers(rows: Rows) -> Section:
    """Test error by size: for every variant a line per seed, through points that no other beats."""
    figures = []
    for size, title in SIZES.items():
        lines: list[Series] = []
        rivals: dict[str, Point] = {}
        for row in rows:
            for _, value in stored(row, "frontier"):
                points = unbeaten([_point(network, size) for network in value["points"]])
                xs, ys = zip(*points, strict=True)
                lines.append(line(row.name, xs, ys, row.index, dots="full"))
                for name, network in (value.get("published") or {}).items():
                    rivals[str(name)] = _point(network, size)
        heading, y = f"Test error by {title}", "error (%)"
        figures += chart(heading, lines, title, y, log_x=True, log_y=False, crosses=rivals)
    note = "A line per seed, through its networks than which none is smaller and better."
    note += " Crosses: published."
    return Section("Size and error", figures, note)


def _point(entry: Mapping[str, Any], size: str) -> Point:
    x, y = array([entry[size], entry["error"]]).tolist()
    return x, 100 * y


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

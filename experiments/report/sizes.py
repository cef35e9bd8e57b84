"""What pruning and compression leave: size against error, shares of layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.json_numbers import array, mean_and_error, with_error
from experiments.report.panels import Point, Series, chart, line
from experiments.report.sections import Rows, Section, Table, stored

SIZES = {"weights": "weights left", "flops": "multiply-accumulates and biases"}


def frontiers(rows: Rows) -> Section:
    """Test error by size: for every variant a line per seed, through points that no other beats."""
    figures = []
    for size, title in SIZES.items():
        lines: list[Series] = []
        rivals: dict[str, Point] = {}
        for row in rows:
            for _, value in stored(row, "frontier"):
                points, published = frontier_points(value)
                xs, ys = zip(*unbeaten(points[size]), strict=True)
                lines.append(line(row.name, xs, ys, row.index, dots="full"))
                rivals |= published[size]
        heading, y = f"Test error by {title}", "error (%)"
        figures += chart(heading, lines, title, y, log_x=True, log_y=False, crosses=rivals)
    note = "A line per seed, through its networks than which none is smaller and better."
    note += " Crosses: published."
    return Section("Size and error", figures, note)


def frontier_points(
    value: Mapping[str, Any],
) -> tuple[dict[str, list[Point]], dict[str, dict[str, Point]]]:
    """Our networks and the published ones, as (size, error in per cent), for each measure of size."""
    ours = {size: [_point(network, size) for network in value["points"]] for size in SIZES}
    published = value.get("published") or {}
    theirs = {
        size: {str(k): _point(network, size) for k, network in published.items()} for size in SIZES
    }
    return ours, theirs


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


def sparsities(rows: Rows) -> Section:
    """Per cent of the weights, rows and columns of every layer that pruning drops."""
    head: list[str] = []
    lines: list[list[str]] = []
    for row in rows:
        seeds = [value for _, value in stored(row, "sparsity")]
        for what in ("weights", "rows", "columns") if seeds else ():
            layers = zip(*((*seed["layers"], seed["total"]) for seed in seeds), strict=True)
            cells = {str(layer[0]["name"]): _dropped(layer, what) for layer in layers}
            head, lines = ["variant", "of", *cells], [*lines, [row.name, what, *cells.values()]]
    note = (
        "Per cent dropped of the weights of every layer, and of its rows (outputs) and columns "
        "(inputs). Means over seeds."
    )
    tables = [Table("dropped (%)", head, lines, numbers=True)] if lines else []
    return Section("Sparsity", tables=tables, note=note)


def _dropped(seeds: Sequence[Mapping[str, float]], what: str) -> str:
    shares = [100 * (1 - layer[f"{what}_left"] / layer[what]) for layer in seeds]
    return with_error(*mean_and_error(shares))

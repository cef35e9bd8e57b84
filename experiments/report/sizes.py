"""What pruning and compression leave: size against error, counts, thresholds, layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.calibration import histogram, steps
from experiments.report.json_numbers import array, number, short
from experiments.report.plots import Figure, Line, chart, escaped, look
from experiments.report.score_columns import Column
from experiments.report.score_tables import ScoreRow, ScoreTable, score_table
from experiments.report.sections import Section, stored

SIZES = {"weights": "weights left", "flops": "multiply-accumulates and biases"}
Point = tuple[float, float]


def frontiers(rows: Sequence[ScoreRow]) -> Section:
    """Test error by size: for every variant a line per seed, through points that no other beats."""
    missing: list[str] = []
    found = {row.index: stored(row, "frontier", frontier_points, missing) for row in rows}
    figures = []
    for size, title in SIZES.items():
        lines: list[Line] = []
        rivals: dict[str, Point] = {}
        for row in rows:
            for _, (points, published) in found[row.index]:
                best = unbeaten(points[size])
                xs, ys = [x for x, _ in best], [y for _, y in best]
                dots = {"mode": "lines+markers"}
                lines.append(Line(row.name, xs, ys, look(row.index), row.index, dots))
                rivals |= published[size]
        if rivals:
            xs, ys = [x for x, _ in rivals.values()], [y for _, y in rivals.values()]
            marker = {"color": "--c6", "symbol": "x", "size": 8}
            text = [escaped(name) for name in rivals]
            options = {"mode": "markers", "marker": marker, "text": text}
            lines.append(Line("published", xs, ys, {}, options=options))
        zero = {"rangemode": "tozero"}
        figures += chart(
            f"Test error by {title}", lines, title, "error (%)", log_x=True, log_y=False, yaxis=zero
        )
    note = "A line per seed, through its networks than which none is smaller and better."
    note += " Crosses: published."
    return Section("Size and error", figures, missing, note, size="wide")


def frontier_points(
    value: Mapping[str, Any],
) -> tuple[dict[str, list[Point]], dict[str, dict[str, Point]]]:
    """Our networks and the published ones, as (size, error in per cent), for each measure of size."""
    ours = {size: [_point(one, size) for one in value["points"]] for size in SIZES}
    published = value.get("published") or {}
    theirs = {size: {str(k): _point(one, size) for k, one in published.items()} for size in SIZES}
    return ours, theirs


def _point(entry: Mapping[str, Any], size: str) -> Point:
    x, y = array([entry[size], entry["error"]]).tolist()
    if not x > 0 or not y >= 0:
        raise ValueError(f"a network must have a size and an error, got {x} and {y}")
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


_COUNTS = {
    "parameters": "parameters",
    "nonzero": "weights not 0",
    "macs": "multiply-accumulates",
    "flops": "FLOPs",
    "table_flops": "FLOPs as tables count",
}
_COMPRESSION = (
    "How much the posterior needs every unit, by layer and side, on a logarithmic scale. What is "
    "left of the dashed line was not needed there."
)


def compressions(rows: Sequence[ScoreRow]) -> Section:
    """Counts before and after, and histograms of every statistic with its threshold, of the first seed."""
    missing: list[str] = []
    parts = []
    for row in rows:
        for result, (figures, table, note) in stored(row, "compression", _compression, missing)[:1]:
            heading = f"seed {result.seed}"
            parts.append(Section(heading, figures, note=note, tables=[table], row=row))
    return Section("Compression", parts=parts, missing=missing, note=_COMPRESSION)


def _compression(value: Mapping[str, Any]) -> tuple[list[Figure], ScoreTable, str]:
    counts = [
        ScoreRow(title, [{"before": old, "after": new, "ratio": old / new}])
        for key, title in _COUNTS.items()
        if (old := number(value["before"].get(key))) and (new := number(value["after"].get(key)))
    ]
    if ratio := number((value.get("latency") or {}).get("ratio")):
        counts.append(ScoreRow("times faster, same run", [{"ratio": ratio}]))
    whole = [Column(key, key, decimals=0) for key in ("before", "after")]
    table = score_table("count", counts, [*whole, Column("ratio", "ratio", decimals=1)])
    criterion = str(value["criterion"])
    figures = [f for one in value["histograms"] for f in _threshold(one, criterion)]
    return figures, table, ". ".join(map(str, value.get("notes") or []))


def _threshold(one: Mapping[str, Any], criterion: str) -> list[Figure]:
    edges, counts = histogram(one["edges"], one["counts"])
    lines = [Line("units", edges, counts, steps("--c0", 1.5), options={"fill": "tozeroy"})]
    level = number(one.get("level"))
    if level is not None:
        style = {"color": "--c1", "width": 2, "dash": "dash"}
        lines.append(Line("threshold", [level] * 2, [0, counts.max()], style))
    cut = "no threshold" if level is None else f"threshold {short(level)}"
    caption = f"{cut}: {one['below']} of {one['units']} units below"
    title = f"{one['layer']}, {one['side']}"
    zero = {"rangemode": "tozero"}
    return chart(
        title, lines, f"log {criterion}", "units", log_y=False, caption=caption, yaxis=zero
    )


def sparsities(rows: Sequence[ScoreRow]) -> Section:
    """Per cent of the weights, rows and columns of every layer that pruning drops."""
    missing: list[str] = []
    lines: list[ScoreRow] = []
    for row in rows:
        seeds = [shares for _, shares in stored(row, "sparsity", _dropped, missing)]
        for what in ("weights", "rows", "columns") if seeds else ():
            scores = [{layer: share[what] for layer, share in seed.items()} for seed in seeds]
            lines.append(ScoreRow(f"{row.name}, {what}", scores, row.index))
    layers = dict.fromkeys(layer for line in lines for seed in line.scores for layer in seed)
    columns = [Column(layer, layer, factor=100.0, decimals=1) for layer in layers]
    note = (
        "Per cent dropped of the weights of every layer, and of its rows (outputs) and columns "
        "(inputs). Means over seeds."
    )
    tables = [score_table("dropped (%)", lines, columns)] if lines else []
    return Section("Sparsity", tables=tables, missing=missing, note=note)


def _dropped(value: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Shares of weights, rows and columns that are gone, by layer and in total."""
    return {
        str(one["name"]): {
            what: 1 - one[f"{what}_left"] / one[what] for what in ("weights", "rows", "columns")
        }
        for one in (*value["layers"], value["total"])
    }

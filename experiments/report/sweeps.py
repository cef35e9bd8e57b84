"""Curves over a quantity that differs between runs, such as the temperature: a point per variant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.report.json_numbers import array, number
from experiments.report.plots import Figure, Line, chart, look
from experiments.report.reading import Result
from experiments.report.score_columns import column
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import THICK, Section, stored

AXES = {"tau": "τ", "neurons": "neurons N"}


@dataclass
class SweepCurve:
    """One series of one score: x -> values of the seeds, and what is published or exact there."""

    measured: dict[float, list[float]] = field(default_factory=dict)
    beside: dict[float, float] = field(default_factory=dict)

    def means(self) -> dict[float, float]:
        """Over seeds, in the order of x."""
        return {x: sum(self.measured[x]) / len(self.measured[x]) for x in sorted(self.measured)}


@dataclass
class Sweep:
    """Everything that is drawn over one quantity: score -> series -> curve, and marks on the axis."""

    scores: dict[str, dict[str, SweepCurve]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)

    @property
    def series(self) -> list[str]:
        """The names of all series."""
        return list(dict.fromkeys(name for series in self.scores.values() for name in series))


def sweeps(rows: Sequence[ScoreRow]) -> Section:
    """A figure per score over what was varied, a line per series, published values dotted."""
    found, missing = pooled(rows)
    figures = [
        figure
        for x, sweep in found.items()
        for score, series in sweep.scores.items()
        for figure in _figure(AXES.get(x, x), score, series, sweep.marks)
    ]
    keys = [(THICK, "ours, mean over seeds"), ("2px dotted var(--muted)", "published, or exact")]
    return Section("Curves over what was varied", figures, missing, keys=keys, size="wide")


def pooled(rows: Sequence[ScoreRow]) -> tuple[dict[str, Sweep], list[str]]:
    """Points of all variants by quantity, and the variants whose points cannot be used."""
    found: dict[str, Sweep] = {}
    missing: list[str] = []
    for row in rows:
        for result, point in stored(row, "sweep", _point, missing):
            sweep = found.setdefault(point["x"], Sweep())
            sweep.marks |= point["marks"]
            name = f"{point['series']} (smoke)" if row.smoke else point["series"]
            for score in point["curves"]:
                curve = sweep.scores.setdefault(score, {}).setdefault(name, SweepCurve())
                _add(curve, result, score, point)
    return found, missing


def _point(value: Mapping[str, Any]) -> dict[str, Any]:
    (place,) = array([value["value"]]).tolist()
    if not place > 0:
        raise ValueError(f"what was varied must be positive, got {place}")
    marks, beside = value.get("marks") or {}, value.get("beside") or {}
    return {
        "x": str(value["x"]),
        "value": place,
        "series": str(value["series"]),
        "curves": [str(score) for score in value["curves"]],
        "marks": {str(name): float(at) for name, at in marks.items() if at > 0},
        "beside": {str(score): number(exact) for score, exact in beside.items()},
    }


def _add(curve: SweepCurve, result: Result, score: str, point: Mapping[str, Any]) -> None:
    if score in result.metrics:
        curve.measured.setdefault(point["value"], []).append(result.metrics[score])
    exact, _ = result.published.get(score, (point["beside"].get(score), None))
    if exact is not None:
        curve.beside[point["value"]] = exact


def _figure(
    x: str, score: str, series: Mapping[str, SweepCurve], marks: Mapping[str, float]
) -> list[Figure]:
    known = column(score)
    lines = []
    for index, (name, curve) in enumerate(series.items()):
        color = look(index)["color"]
        for points, label, style in (
            (curve.means(), name, {"width": 2.4}),
            (curve.beside, f"{name}, published or exact", {"width": 1.6, "dash": "dot"}),
        ):
            xs = sorted(points)
            ys = [known.factor * points[place] for place in xs]
            options = {"mode": "lines+markers", "showlegend": label == name}
            lines.append(Line(label, xs, ys, {"color": color, **style}, options=options))
    drawn = [line for line in lines if line.x]
    values = [value for line in drawn for value in line.y] or [0.0]
    ends, style = [min(values), max(values)], {"color": "--c6", "dash": "dash", "width": 1.2}
    drawn += [Line(name, [at, at], ends, style) for name, at in marks.items() if drawn]
    log_y = None if known.factor == 1 else False  # shares in per cent are read on an even scale
    place = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    return chart(known.title, drawn, x, log_x=True, log_y=log_y, legend=place)

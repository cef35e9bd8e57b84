"""Curves over a quantity that differs between runs, such as the temperature: a point per variant."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.report.json_numbers import array
from experiments.report.panels import DOTTED, Panel, chart, line
from experiments.report.score_tables import column
from experiments.report.sections import Rows, Section, stored

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
        return list(dict.fromkeys(name for series in self.scores.values() for name in series))


def sweeps(rows: Rows) -> Section:
    """A figure per score over what was varied, a line per series, published values dotted."""
    by_x = pooled(rows)
    names = list(dict.fromkeys(name for sweep in by_x.values() for name in sweep.series))
    figures = [
        figure
        for x, sweep in by_x.items()
        for score, curves in sweep.scores.items()
        for figure in _figure(AXES.get(x, x), score, curves, sweep.marks, names)
    ]
    note = "Solid lines: ours, mean over seeds. Dotted lines: published, or exact."
    heading = "Curves over what was varied"
    return Section(heading, figures, note, legend=names)


def pooled(rows: Rows) -> dict[str, Sweep]:
    """Points of all variants, by the quantity that was varied."""
    by_x: dict[str, Sweep] = {}
    for row in rows:
        for run, point in stored(row, "sweep"):
            sweep = by_x.setdefault(str(point["x"]), Sweep())
            (x,) = array([point["value"]]).tolist()
            name = f"{point['series']} (smoke)" if row.smoke else str(point["series"])
            sweep.marks |= {str(k): float(at) for k, at in (point.get("marks") or {}).items()}
            for score in map(str, point["curves"]):
                curve = sweep.scores.setdefault(score, {}).setdefault(name, SweepCurve())
                if score in run.metrics:
                    curve.measured.setdefault(x, []).append(run.metrics[score])
                exact = (point.get("beside") or {}).get(score)
                exact, _ = run.published.get(score, (exact, None))
                if exact is not None:
                    curve.beside[x] = float(exact)
    return by_x


def _figure(
    x: str,
    score: str,
    curves: Mapping[str, SweepCurve],
    marks: Mapping[str, float],
    names: list[str],
) -> list[Panel]:
    known = column(score)
    lines = []
    for name, curve in curves.items():
        for points, label, style in (
            (curve.means(), name, {"dash": "", "width": 2.4, "dots": "full"}),
            (curve.beside, f"{name}, published or exact", {"dash": DOTTED, "dots": "rings"}),
        ):
            ys = [known.factor * points[place] for place in sorted(points)]
            lines.append(line(label, sorted(points), ys, names.index(name), **style))
    log_y = None if known.factor == 1 else False  # shares in per cent are read on an even scale
    return chart(known.title, lines, x, log_x=True, log_y=log_y, marks=marks)

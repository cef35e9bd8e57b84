"""Curves over a quantity that differs between runs, such as the temperature: a point per variant."""

from dataclasses import dataclass, field

from experiments.report.json_numbers import array
from experiments.report.panels import DOTTED, chart, line
from experiments.report.score_tables import column
from experiments.report.sections import Rows, Section, stored

AXES = {"tau": "τ", "neurons": "neurons N", "temperature": "temperature"}


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

    x: str = ""  # name of the quantity
    scores: dict[str, dict[str, SweepCurve]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(name for series in self.scores.values() for name in series))


def sweeps(rows: Rows) -> Section:
    """A figure per score over what was varied, a line per series, published values dotted."""
    sweep = pooled(rows)
    names = sweep.series
    figures = []
    for score, curves in sweep.scores.items():
        known = column(score)
        lines = []
        for name, curve in curves.items():
            for points, label, style in (
                (curve.means(), name, {"dash": "", "width": 2.4, "dots": "full"}),
                (curve.beside, f"{name}, published or exact", {"dash": DOTTED, "dots": "rings"}),
            ):
                ys = [known.factor * points[place] for place in sorted(points)]
                lines.append(line(label, sorted(points), ys, names.index(name), **style))
        log_y = None if known.factor == 1 else False  # per cent are read on an even scale
        figures += chart(known.title, lines, sweep.x, log_x=True, log_y=log_y, marks=sweep.marks)
    note = "Solid lines: ours, mean over seeds. Dotted lines: published, or exact."
    return Section("Curves over what was varied", figures, note, legend=names)


def pooled(rows: Rows) -> Sweep:
    """Points of all variants, which vary the same quantity."""
    sweep = Sweep()
    for row in rows:
        for run, point in stored(row, "sweep"):
            sweep.x = AXES.get(point["x"], str(point["x"]))
            (x,) = array([point["value"]]).tolist()
            name = str(point["series"])
            sweep.marks |= {str(k): float(at) for k, at in (point.get("marks") or {}).items()}
            for score in map(str, point["curves"]):
                curve = sweep.scores.setdefault(score, {}).setdefault(name, SweepCurve())
                if score in run.metrics:
                    curve.measured.setdefault(x, []).append(run.metrics[score])
                exact = (point.get("beside") or {}).get(score)
                exact, _ = run.published.get(score, (exact, None))
                if exact is not None:
                    curve.beside[x] = float(exact)
    return sweep

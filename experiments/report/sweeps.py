"""Curves over a quantity that differs between runs, such as the temperature: a point per variant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.report.columns import COLUMNS, Column
from experiments.report.figures import Figure, axis, log_axis, look, trace, wide
from experiments.report.markup import plot_text
from experiments.report.results import Result, Row
from experiments.report.stored import told
from experiments.report.values import finite, mapping, short

AXES = {"tau": "τ", "neurons": "neurons N"}
_OWN = (  # scores that have no column in tables
    Column(
        "gibbs_nll", "NLL of a draw (Gibbs)", "lower", "Expected NLL of one draw of the weights."
    ),
    Column("confidence", "mean confidence", "neither", "Mean probability of the likeliest class."),
    Column("kl", "KL in nats", "neither", "KL divergence of the posterior from the prior."),
    Column("posterior_mean", "mean of the weights", "neither", "Mean of the posterior means."),
)
_BESIDE = "published or exact"


@dataclass
class Curve:
    """One series of one score: x -> values of the seeds, and what is printed beside each."""

    measured: dict[float, list[float]] = field(default_factory=dict)
    beside: dict[float, float] = field(default_factory=dict)


@dataclass
class Study:
    """Everything that is drawn over one quantity: score -> series -> curve, and marks on the axis."""

    scores: dict[str, dict[str, Curve]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)


def sweeps(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """A figure per score over what was varied, a line per series, published values dashed.

    Returns:
        The figures and the names of the variants that store something unusable.
    """
    found, missing = pooled(rows)
    figures = [
        _figure(x, score, series, study.marks)
        for x, study in found.items()
        for score, series in study.scores.items()
    ]
    return [one for one in figures if one is not None], missing


def pooled(rows: Sequence[Row]) -> tuple[dict[str, Study], list[str]]:
    """Points of all variants by quantity, and the variants whose points cannot be used."""
    found: dict[str, Study] = {}
    missing = []
    for row in rows:
        stored = told(row.results, "sweep")
        used = [_take(found, result, mapping(value), row.smoke) for result, value in stored]
        if stored and not any(used):
            missing.append(row.name)
    return found, missing


def _take(found: dict[str, Study], result: Result, stored: Mapping[str, Any], smoke: bool) -> bool:
    x, value, name = stored.get("x"), finite(stored.get("value")), stored.get("series")
    curves = stored.get("curves")
    if not (isinstance(x, str) and isinstance(name, str) and isinstance(curves, list)):
        return False
    if value is None or value <= 0:
        return False
    name = f"{name} (smoke)" if smoke else name
    study = found.setdefault(x, Study())
    study.marks |= {k: v for k, v in mapping(stored.get("marks")).items() if finite(v)}
    exact = mapping(stored.get("beside"))
    for score in (one for one in curves if isinstance(one, str)):
        y = finite(result.metrics.get(score))
        curve = study.scores.setdefault(score, {}).setdefault(name, Curve())
        if y is not None:
            curve.measured.setdefault(value, []).append(y)
        printed = result.published.get(score)
        other = finite(exact.get(score) if printed is None else printed[0])
        if other is not None:
            curve.beside[value] = other
    return True


def _figure(
    x: str, score: str, series: Mapping[str, Curve], marks: Mapping[str, float]
) -> Figure | None:
    """One score; nothing if nobody has it."""
    title, factor = named(score)
    data: list[dict[str, Any]] = []
    words: list[str] = []
    values: list[float] = []
    places: list[float] = []
    for index, (name, curve) in enumerate(series.items()):
        for points, label, style in (
            ({k: sum(v) / len(v) for k, v in curve.measured.items()}, name, {"width": 2.4}),
            # in the same colour and dotted, which is said above the figures, hence not in its legend
            (curve.beside, f"{name}, {_BESIDE}", {"width": 1.6, "dash": "dot"}),
        ):
            if not points:
                continue
            xs = sorted(points)
            ys = [factor * points[one] for one in xs]
            line = {"color": look(index)["color"], "dash": "solid", **style}
            drawn = trace(xs, ys, name=plot_text(label), line=line)
            shown = {"mode": "lines+markers", "showlegend": points is not curve.beside}
            data.append(drawn | shown)
            words.append(
                f"{label}: {', '.join(f'{short(a)} at {short(b)}' for a, b in zip(ys, xs, strict=True))}"
            )
            values += ys
            places += xs
    if not values:
        return None
    label = AXES.get(x, x)
    data += [_mark(name, at, min(values), max(values)) for name, at in marks.items()]
    logarithmic = wide(values) and factor == 1  # shares in per cent are read on an even scale
    layout = {
        "xaxis": axis(label, **log_axis(*_around([*places, *marks.values()]))),
        "yaxis": log_axis(min(values), max(values)) if logarithmic else {},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 44, "r": 10, "t": 14 + 20 * ((len(series) + len(marks) + 2) // 3), "b": 40},
    }
    told_marks = "".join(f" {name} is at {short(at)}." for name, at in marks.items())
    words_of = f"Line chart of {title} by {label}. {'; '.join(words)}.{told_marks}"
    return Figure(title + (", log scale" if logarithmic else ""), data, layout, words_of)


def _around(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 1.01, max(values) * 1.01


def _mark(name: str, at: float, low: float, high: float) -> dict[str, Any]:
    """A vertical line."""
    line = {"color": "--c6", "dash": "dash", "width": 1.2}
    return trace([at, at], [low, high], name=plot_text(name), line=line)


def column(score: str) -> Column:
    """What is known of a score: as in the tables where it has a column.

    Examples:
        >>> column("nll").better, column("gibbs_nll").label, column("of_mine").label
        ('lower', 'NLL of a draw (Gibbs)', 'of mine')
    """
    known = next((one for one in (*COLUMNS, *_OWN) if one.key == score), None)
    return known or Column(score, score.replace("_", " "), "neither", "")


def named(score: str) -> tuple[str, float]:
    """Heading and factor of a score."""
    found = column(score)
    return found.label[0].upper() + found.label[1:], found.factor

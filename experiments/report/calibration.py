"""Figures about honesty: reliability, predictive intervals, foreign inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.json_numbers import Array, array, arrays, short
from experiments.report.plots import Line, chart, look, mean_by
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Section, stored

_UNIT = {"range": [0, 1]}
_DOTS = {"mode": "lines+markers", "marker": {"size": 5}}
_DIAGONAL = Line("perfect", [0, 1], [0, 1], {"color": "--muted", "dash": "dot", "width": 1})


def reliability(rows: Sequence[ScoreRow]) -> Section:
    """Accuracy against confidence, and how often each confidence occurs."""
    accuracies, shares = [], []
    missing: list[str] = []
    for row in rows:
        found = stored(row, "reliability", _bins, missing)
        if found:
            confidence, accuracy, count = _pooled([bins for _, bins in found])
            style = (look(row.index), row.index, _DOTS)
            accuracies.append(Line(row.name, confidence, accuracy, *style))
            shares.append(Line(row.name, confidence, 100 * count / count.sum(), *style))
    above = "Above the diagonal: too modest. Below: too sure."
    axes: dict[str, Any] = {"log_y": False, "xaxis": _UNIT, "yaxis": _UNIT, "caption": above}
    lines = [_DIAGONAL, *accuracies] if accuracies else []
    figures = chart("Accuracy in each bin of confidence", lines, "confidence", "accuracy", **axes)
    axes = {"log_y": True, "xaxis": _UNIT, "caption": "Most inputs are usually in the last bin."}
    figures += chart("How often each confidence occurs", shares, "confidence", "inputs (%)", **axes)
    return Section("Calibration", figures, missing, size="wide")


def _bins(value: Mapping[str, Any]) -> Array:
    """Confidence, accuracy and count of every bin; empty bins have zeros."""
    bins = np.nan_to_num(np.stack([array(value[k]) for k in ("confidence", "accuracy", "count")]))
    if bins.ndim != 2 or bins[2].min() < 0 or bins[2].sum() == 0:
        raise ValueError("counts must not be negative, and some must be positive")
    return bins


def _pooled(seeds: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Means over seeds, weighted by counts; bins that nobody has are left out."""
    bins = np.stack([bins for bins in seeds if bins.shape == seeds[0].shape])
    count = bins[:, 2].sum(axis=0)
    used = count > 0
    sums = (bins[:, :2] * bins[:, 2:]).sum(axis=0)[:, used]
    return sums[0] / count[used], sums[1] / count[used], count[used]


def intervals(rows: Sequence[ScoreRow]) -> Section:
    """Observed against nominal coverage of predictive intervals, and their difference."""
    observed, gaps = [], []
    missing: list[str] = []
    for row in rows:
        found = stored(row, "intervals", lambda v: arrays(v["nominal"], v["observed"]), missing)
        if found:
            x, y = mean_by(pair for _, seed in found for pair in zip(*seed, strict=True))
            style = (look(row.index), row.index, _DOTS)
            observed.append(Line(row.name, x, y, *style))
            gaps.append(Line(row.name, x, 100 * (np.array(y) - x), *style))
    above = "Above the diagonal: intervals too wide. Below: too narrow."
    axes: dict[str, Any] = {"log_y": False, "xaxis": _UNIT, "yaxis": _UNIT, "caption": above}
    lines = [_DIAGONAL, *observed] if observed else []
    figures = chart("Share of targets inside the interval", lines, "nominal", "observed", **axes)
    axes = {"log_y": False, "xaxis": _UNIT, "yaxis": {"zeroline": True}}
    figures += chart("Observed minus nominal", gaps, "nominal", "percentage points", **axes)
    return Section("Predictive intervals", figures, missing, size="wide")


def foreign_inputs(rows: Sequence[ScoreRow]) -> Section:
    """Histograms of an uncertainty score on test inputs and on foreign ones, one per variant."""
    missing: list[str] = []
    found = [(row, stored(row, "ood", _scores, missing)) for row in rows]
    usable = [(row, *_summed([scores for _, scores in seeds])) for row, seeds in found if seeds]
    ends = [edges[place] for _, _, edges, *_ in usable for place in (0, -1)]
    top = max((max(*inside, *outside) for *_, inside, outside in usable), default=1.0)
    figures = []
    for row, score, edges, inside, outside in usable:
        area = row.cells.get(f"ood_auroc_{score.replace(' ', '_')}")
        title = f"{row.name}: AUROC {short(area.value, 3)}" if area and area.value else row.name
        fill = {"fill": "tozeroy", "fillcolor": "--inside-fill"}
        lines = [
            Line("test inputs", edges, inside, steps("--inside", 1.0), options=fill),
            Line("foreign inputs", edges, outside, steps("--outside", 2.2)),
        ]
        x, y = {"range": [min(ends), max(ends)]}, {"range": [0, 1.05 * top]}
        figures += chart(title, lines, score, "inputs (%)", log_y=False, xaxis=x, yaxis=y)
    keys = [
        ("8px solid var(--inside-fill)", "test inputs"),
        ("2px solid var(--outside)", "inputs from another data set"),
        ("", "A score that tells them apart has little overlap (AUROC near 1)."),
    ]
    return Section("Foreign inputs", figures, missing, keys=keys)


def _scores(value: Mapping[str, Any]) -> tuple[str, Array, Array, Array]:
    edges, inside = histogram(value["edges"], value["inside"])
    outside = histogram(value["edges"], value["outside"])[1]
    return str(value.get("score", "score")), edges, inside, outside


def _summed(seeds: Sequence[tuple[str, Array, Array, Array]]) -> tuple[str, Array, Array, Array]:
    """Edges and percentages inside and outside, summed over seeds with equal edges."""
    score, edges, *_ = seeds[0]
    same = [counts for _, own, *counts in seeds if np.array_equal(own, edges)]
    inside, outside = np.sum(same, axis=0)
    return score, edges, 100 * inside / inside[:-1].sum(), 100 * outside / outside[:-1].sum()


def histogram(edges: object, counts: object) -> tuple[Array, Array]:
    """Edges and counts of a stored histogram, the last count twice, to be drawn as steps.

    Raises:
        ValueError: there is not one count between every two edges, or nothing was counted.
    """
    places, heights = array(edges), array(counts)
    fits = places.shape == (len(heights) + 1,) and (np.diff(places) > 0).all()
    if not fits or not (heights >= 0).all() or heights.sum() == 0:
        raise ValueError("edges must increase, with a count between every two of them")
    return places, np.append(heights, heights[-1])


def steps(color: str, width: float) -> dict[str, Any]:
    """The look of a histogram."""
    return {"shape": "hv", "color": color, "width": width}

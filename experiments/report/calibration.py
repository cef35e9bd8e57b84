"""Figures about honesty: reliability, predictive intervals, foreign inputs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from experiments.report.figures import Figure, axis, look, trace
from experiments.report.markup import join, plot_text
from experiments.report.results import Result, Row
from experiments.report.values import all_numbers, mapping, numbers, short

Bins = tuple[list[float], list[float], list[float]]
Histogram = tuple[list[float], list[float], list[float]]


def reliability(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """Accuracy against confidence, and how often each confidence occurs.

    Returns:
        The figures and the names of the variants without usable data.
    """
    pools = [pooled_bins(row.results) for row in rows]
    missing = [row.name for row, bins in zip(rows, pools, strict=True) if not bins[0]]
    gaps, shares = [_diagonal("perfect")], []
    told = []
    for index, (row, (confidence, accuracy, count)) in enumerate(zip(rows, pools, strict=True)):
        if not confidence:
            continue
        total = sum(count)
        gap = sum(n * abs(c - a) for c, a, n in zip(confidence, accuracy, count, strict=True))
        told.append(f"{row.name} {short(gap / total, 3)}")
        style = _style(index, row)
        gaps.append(trace(confidence, accuracy, **style))
        shares.append(trace(confidence, [100 * n / total for n in count], **style))
    if not told:
        return [], missing
    label = "Reliability diagram: accuracy against confidence, the diagonal is perfect. "
    label += f"Mean distance from the diagonal: {'; '.join(told)}."
    unit = {"range": [0, 1]}
    return [
        Figure(
            "Reliability: accuracy in each bin of confidence",
            gaps,
            {"xaxis": axis("confidence", **unit), "yaxis": axis("accuracy", **unit)},
            label,
            join(["Above the diagonal: too modest. Below: too sure."]),
        ),
        Figure(
            "How often each confidence occurs",
            shares,
            {
                "xaxis": axis("confidence", **unit),
                "yaxis": axis("test inputs (%), log scale", type="log", dtick=1),
            },
            "Share of test inputs in each bin of confidence, one line per variant.",
            join(["One point per bin; most inputs are usually in the last."]),
        ),
    ], missing


def intervals(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """Observed against nominal coverage of predictive intervals, and their difference."""
    pools = [pooled_intervals(row.results) for row in rows]
    missing = [row.name for row, (nominal, _) in zip(rows, pools, strict=True) if not nominal]
    lines = [_diagonal("perfect")]
    gaps: list[dict[str, Any]] = []
    told = []
    for index, (row, (nominal, observed)) in enumerate(zip(rows, pools, strict=True)):
        if not nominal:
            continue
        difference = [100 * (o - n) for n, o in zip(nominal, observed, strict=True)]
        lines.append(trace(nominal, observed, **_style(index, row)))
        gaps.append(trace(nominal, difference, **_style(index, row)))
        told.append(f"{row.name} {short(max(difference, key=abs), 3)}")
    if not told:
        return [], missing
    unit = {"range": [0, 1]}
    worst = f"Largest difference in percentage points: {'; '.join(told)}."
    return [
        Figure(
            "Share of targets inside the interval",
            lines,
            {"xaxis": axis("nominal", **unit), "yaxis": axis("observed", **unit)},
            f"Observed against nominal coverage, the diagonal is perfect. {worst}",
            join(["Above the diagonal: intervals too wide. Below: too narrow."]),
        ),
        Figure(
            "Observed minus nominal coverage",
            gaps,
            {"xaxis": axis("nominal", **unit), "yaxis": axis("percentage points", zeroline=True)},
            f"Observed minus nominal coverage by nominal coverage. {worst}",
        ),
    ], missing


def ood(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """Histograms of an uncertainty score on test inputs and on foreign ones, one per variant."""
    pools = [(row, pooled_ood(row.results)) for row in rows]
    missing = [row.name for row, (edges, _, _) in pools if not edges]
    usable = [(row, histogram) for row, histogram in pools if histogram[0]]
    if not usable:
        return [], missing
    left = min(edges[0] for _, (edges, _, _) in usable)
    right = max(edges[-1] for _, (edges, _, _) in usable)
    top = max(max(*inside, *outside) for _, (_, inside, outside) in usable)
    layout = {"yaxis": axis("inputs (%)", range=[0, 1.05 * top])}
    return [
        _ood_figure(row, histogram, {"range": [left, right]}, layout) for row, histogram in usable
    ], missing


def _ood_figure(
    row: Row, histogram: Histogram, x: dict[str, Any], layout: dict[str, Any]
) -> Figure:
    edges, inside, outside = histogram
    told = (mapping(r.figures.get("ood")).get("score") for r in row.results)
    score = next((one for one in told if isinstance(one, str) and one), "score")
    key = f"ood_auroc_{score.replace(' ', '_')}"
    known = [r.metrics[key] for r in row.results if key in r.metrics]
    area = f"AUROC {sum(known) / len(known):.3f}" if known else ""
    step: dict[str, Any] = {"shape": "hv"}
    data = [
        trace(
            edges,
            [*inside, inside[-1]],
            name="test inputs",
            line={**step, "color": "--inside", "width": 1},
            fill="tozeroy",
            fillcolor="--inside-fill",
        ),
        trace(
            edges,
            [*outside, outside[-1]],
            name="foreign inputs",
            line={**step, "color": "--outside", "width": 2.2},
        ),
    ]
    label = f"Histogram of {score} for {row.name}: test inputs are at {_centre(edges, inside)} "
    label += f"on average, foreign inputs at {_centre(edges, outside)}. {area}"
    layout = {**layout, "xaxis": axis(f"{score.replace('_', ' ')}", **x)}
    title = f"{row.name}: {area}" if area else row.name
    return Figure(title, data, layout, label.strip(), size="low")


def pooled_bins(results: Sequence[Result]) -> Bins:
    """Confidence, accuracy and count of the non-empty bins, pooled over seeds with equal bins."""
    pools: list[list[tuple[float, float, float]]] = []
    for result in results:
        told = mapping(result.figures.get("reliability"))
        columns = [numbers(told.get(key)) for key in ("confidence", "accuracy", "count")]
        if len({len(column) for column in columns}) != 1:
            continue
        if not pools:
            pools = [[] for _ in columns[0]]
        if len(columns[0]) == len(pools):
            for one, (c, a, n) in zip(pools, zip(*columns, strict=True), strict=True):
                if c is not None and a is not None and n is not None and n > 0:
                    one.append((c, a, n))
    bins: Bins = ([], [], [])
    for one in filter(None, pools):
        total = sum(n for _, _, n in one)
        bins[0].append(sum(c * n for c, _, n in one) / total)
        bins[1].append(sum(a * n for _, a, n in one) / total)
        bins[2].append(total)
    return bins


def pooled_intervals(results: Sequence[Result]) -> tuple[list[float], list[float]]:
    """Nominal and observed coverage, the mean over the seeds that have each nominal level."""
    found: dict[float, list[float]] = {}
    for result in results:
        told = mapping(result.figures.get("intervals"))
        nominal, observed = numbers(told.get("nominal")), numbers(told.get("observed"))
        if len(nominal) == len(observed):
            for n, o in zip(nominal, observed, strict=True):
                if n is not None and o is not None:
                    found.setdefault(n, []).append(o)
    levels = sorted(found)
    return levels, [sum(found[level]) / len(found[level]) for level in levels]


def pooled_ood(results: Sequence[Result]) -> Histogram:
    """Edges and percentages inside and outside, summed over seeds with equal edges."""
    pool: Histogram = ([], [], [])
    for result in results:
        told = mapping(result.figures.get("ood"))
        edges, inside = histogram(told, "inside")
        _, outside = histogram(told, "outside")
        if edges and outside and not pool[0]:
            pool = (edges, inside, outside)
        elif edges and outside and edges == pool[0]:
            pool = (edges, _sum(pool[1], inside), _sum(pool[2], outside))
    return pool[0], _percent(pool[1]), _percent(pool[2])


def histogram(told: Mapping[str, Any], key: str) -> tuple[list[float], list[float]]:
    """Edges and counts of a stored histogram; empty if they cannot be one.

    Examples:
        >>> histogram({"edges": [0, 1, 2], "counts": [3, 4]}, "counts")
        ([0.0, 1.0, 2.0], [3.0, 4.0])
        >>> histogram({"edges": [0, 1], "counts": [3, 4]}, "counts")
        ([], [])
    """
    edges, counts = all_numbers(told.get("edges")), all_numbers(told.get(key))
    fits = counts and len(edges) == len(counts) + 1 and sorted(set(edges)) == edges
    return (edges, counts) if fits and min(counts) >= 0 and sum(counts) > 0 else ([], [])


def _sum(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _percent(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [100 * count / total for count in counts]


def _centre(edges: Sequence[float], shares: Sequence[float]) -> str:
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    return short(sum(m * s for m, s in zip(middles, shares, strict=True)) / 100, 3)


def _style(index: int, row: Row) -> dict[str, Any]:
    return {
        "mode": "lines+markers",
        "name": plot_text(row.name),
        "line": {**look(index), "width": 2},
        "marker": {"size": 5},
        "meta": {"series": index},
    }


def _diagonal(name: str) -> dict[str, Any]:
    line = {"color": "--muted", "dash": "dot", "width": 1}
    return trace([0, 1], [0, 1], name=name, line=line, hoverinfo="skip")

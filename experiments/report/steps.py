"""Figures against the training step: convergence of the objective, drift of the scales."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.figures import (
    POINTS,
    Figure,
    Line,
    axis,
    log_axis,
    look,
    thinned,
    trace,
    wide,
)
from experiments.report.markup import plot_text
from experiments.report.results import Result, Row
from experiments.report.stored import by_layer, told
from experiments.report.values import mapping, numbers, short

Points = dict[float, tuple[float, float]]  # of one seed: step -> (x, y)
Series = tuple[int, Row, list[tuple[Result, Points]]]  # of one variant: colour, name, its seeds

_ELBO = "Validation −ELBO"


def convergence(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """Validation −ELBO against steps and against seconds: every seed thin, their mean thick.

    Returns:
        The figures and the names of the variants that store something unusable.
    """
    by_step = [_stored(index, row, "step") for index, row in enumerate(rows)]
    by_time = [_stored(index, row, "seconds") for index, row in enumerate(rows)]
    missing = [
        row.name for _, row, seeds in by_step if told(row.results, "convergence") and not seeds
    ]
    figures = [
        _figure(f"{_ELBO} by step", "training step", by_step, "steps", single=True),
        _figure(f"{_ELBO} by time", "seconds of training", by_time, "seconds", single=True),
    ]
    return [figure for figure in figures if figure is not None], missing


def drift(rows: Sequence[Row]) -> tuple[list[Figure], list[str]]:
    """Mean posterior standard deviation against the step: a figure per layer, the mean over seeds."""
    layers: dict[str, list[Series]] = {}
    missing = []
    for index, row in enumerate(rows):
        found, lost = by_layer(row, "drift", _drift_points)
        missing += lost
        for layer, seeds in found.items():
            layers.setdefault(layer, []).append((index, row, seeds))
    figures = [
        _figure(layer, "training step", series, "steps", size="low", what="mean σ")
        for layer, series in layers.items()
    ]
    return [figure for figure in figures if figure is not None], missing


def mean_line(seeds: Sequence[Points]) -> Line:
    """The mean of x and of y over seeds, at the steps that all seeds have.

    Examples:
        >>> mean_line([{0: (0.0, 4.0), 9: (1.0, 2.0)}, {0: (0.0, 2.0), 9: (3.0, 1.0), 10: (4.0, 0.0)}])
        ([0.0, 2.0], [3.0, 1.5])
    """
    common = thinned(sorted(set.intersection(*map(set, seeds))), POINTS)
    x, y = ([sum(s[step][i] for s in seeds) / len(seeds) for step in common] for i in (0, 1))
    return x, y


def _stored(index: int, row: Row, x: str) -> Series:
    pairs = [
        (result, _points(mapping(value), x, "neg_elbo"))
        for result, value in told(row.results, "convergence")
    ]
    return index, row, [(result, points) for result, points in pairs if points]


def _drift_points(entry: Mapping[str, Any]) -> Points | None:
    return _points(entry, "step", "mean_scale") or None


def _points(stored: Mapping[str, Any], x: str, y: str) -> Points:
    """The points whose numbers are all there; none if the lists do not belong together."""
    columns = [numbers(stored.get(key)) for key in ("step", x, y)]
    if len({len(column) for column in columns}) != 1:
        return {}
    return {
        step: (across, up)
        for step, across, up in zip(*columns, strict=True)
        if step is not None and across is not None and up is not None
    }


def _figure(
    title: str,
    x: str,
    series: Sequence[Series],
    unit: str,
    *,
    what: str = _ELBO,
    size: str = "high",
    single: bool = False,
) -> Figure | None:
    """A line per variant; with `single` also one per seed, thin, below it."""
    thin: list[tuple[int, str, Line]] = []
    thick: list[tuple[int, str, Line]] = []
    for index, row, seeds in series:
        if not seeds:
            continue
        mean = mean_line([points for _, points in seeds])
        lone = [(f"{row.name}, seed {r.seed}", _own(points)) for r, points in seeds]
        # a mean over one common step is no line: then every seed speaks for itself
        apart = len(mean[0]) < min(2, *(len(points) for _, points in seeds))
        thick += [(index, *one) for one in (lone if apart else [(row.name, mean)])]
        if single and len(seeds) > 1 and not apart:
            thin += [(index, *one) for one in lone]
    if not thick:
        return None
    last = [f"{name} {short(y[-1])} after {short(x[-1])} {unit}" for _, name, (x, y) in thick]
    values = [value for _, _, (_, y) in (*thin, *thick) for value in y]
    logarithmic = wide(values)
    across = [value for _, _, (xs, _) in (*thin, *thick) for value in xs]
    # a little room at the right, or the last label does not fit and is left out
    ends = [min(0.0, *across), 1.04 * max(0.0, *across) or 1.0]
    layout = {
        "xaxis": axis(x, range=ends, separatethousands=True),
        "yaxis": log_axis(min(values), max(values)) if logarithmic else {},
    }
    data = [_trace(*one, width=1.0, opacity=0.5) for one in thin]
    data += [_trace(*one, width=2.4) for one in thick]
    scale = ", log scale" if logarithmic else ""
    label = f"Line chart of {what} by {x}: {title}{scale}. Last values: {'; '.join(last)}."
    return Figure(f"{title}{scale}", data, layout, label, size=size)


def _own(points: Points) -> Line:
    steps = thinned(sorted(points), POINTS)
    return [points[step][0] for step in steps], [points[step][1] for step in steps]


def _trace(index: int, name: str, line: Line, *, width: float, **options: Any) -> dict[str, Any]:
    style = {**look(index), "width": width}
    return trace(*line, name=plot_text(name), line=style, meta={"series": index}, **options)

"""Figures about honesty: reliability and predictive intervals."""

import numpy as np

from experiments.report.json_numbers import array
from experiments.report.panels import DOTTED, Panel, Series, chart, line
from experiments.report.sections import Rows, Section, curves, stored

_DIAGONAL = Series([(0, 0), (1, 1)], "var(--muted)", "right", dash=DOTTED, width=1.0, dots="")


def reliability(rows: Rows) -> Section:
    """Accuracy against confidence over all seeds."""
    lines = []
    for row in rows:
        if seeds := [value for _, value in stored(row, "reliability")]:
            keys = ("confidence", "accuracy", "count")
            bins = np.stack([array([value[key] for key in keys]) for value in seeds])
            bins = np.nan_to_num(bins)  # empty bins have no accuracy
            count = bins[:, 2].sum(axis=0)
            sums = (bins[:, :2] * bins[:, 2:]).sum(axis=0)
            x, y = sums[:, count > 0] / count[count > 0]
            lines.append(line(row.name, x, y, row.index, dots="full"))
    title = "Accuracy in each bin of confidence"
    above = "Above the diagonal: too modest. Below: too sure."
    return Section("Calibration", _against_diagonal(title, lines, "confidence", "accuracy", above))


def intervals(rows: Rows) -> Section:
    """Observed against nominal coverage of predictive intervals."""
    lines = curves(rows, "intervals", "nominal", "observed", dots="full")
    title = "Share of targets inside the interval"
    above = "Above the diagonal: intervals too wide. Below: too narrow."
    figures = _against_diagonal(title, lines, "nominal", "observed", above)
    return Section("Predictive intervals", figures)


def _against_diagonal(title: str, lines: list[Series], x: str, y: str, caption: str) -> list[Panel]:
    if not any(drawn.points for drawn in lines):
        return []
    return chart(title, [_DIAGONAL, *lines], x, y, log_y=False, caption=caption)

"""Figures about honesty: reliability, predictive intervals, foreign inputs."""

from typing import Any

import numpy as np

from experiments.report.json_numbers import array, short
from experiments.report.plots import DOTS, Figure, Line, chart, steps
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Rows, Section, curves, stored

_UNIT = {"range": [0, 1]}
_DIAGONAL = {
    **{"type": "line", "x0": 0, "x1": 1, "y0": 0, "y1": 1},
    "line": {"color": "--muted", "dash": "dot", "width": 1},
}
_INPUTS = {"inside": "test inputs", "outside": "inputs from another data set"}
_SQUARE: dict[str, Any] = {"log_y": False, "xaxis": _UNIT, "yaxis": _UNIT, "shapes": [_DIAGONAL]}


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
            lines.append(Line(row.name, x, y, row.index, options=DOTS))
    title = "Accuracy in each bin of confidence"
    above = "Above the diagonal: too modest. Below: too sure."
    figures = chart(title, lines, "confidence", "accuracy", caption=above, **_SQUARE)
    return Section("Calibration", figures)


def intervals(rows: Rows) -> Section:
    """Observed against nominal coverage of predictive intervals."""
    lines = curves(rows, "intervals", "nominal", "observed", **DOTS)
    title = "Share of targets inside the interval"
    above = "Above the diagonal: intervals too wide. Below: too narrow."
    figures = chart(title, lines, "nominal", "observed", caption=above, **_SQUARE)
    return Section("Predictive intervals", figures)


def foreign_inputs(rows: Rows) -> Section:
    """Histograms of an uncertainty score on test inputs and on foreign ones, one per variant."""
    figures = [figure for row in rows for figure in _scores(row)]
    tops = [max(trace["y"]) for figure in figures for trace in figure.data]
    for figure in figures:
        figure.layout["yaxis"]["range"] = [0, 1.05 * max(tops)]
    legend = list(_INPUTS.values())
    note = "A score that tells them apart has little overlap (AUROC near 1)."
    return Section("Foreign inputs", figures, note, legend=legend)


def _scores(row: ScoreRow) -> list[Figure]:
    seeds = [value for _, value in stored(row, "ood")]
    seeds = [value for value in seeds if value["edges"] == seeds[0]["edges"]]
    lines = []
    for series, (key, name) in enumerate(_INPUTS.items() if seeds else ()):
        counts = np.sum([array(value[key]) for value in seeds], axis=0)
        points = steps(seeds[0]["edges"], (100 * counts / counts.sum()).tolist())
        fill = {} if series else {"fill": "tozeroy"}
        lines.append(Line(name, *points, series, {"shape": "hv", "dash": "solid"}, fill))
    score = str(seeds[0].get("score", "score")) if seeds else ""
    area = row.cells.get(f"ood_auroc_{score.replace(' ', '_')}")
    title = f"{row.name}: AUROC {short(area.value, 3)}" if area and area.value else row.name
    return chart(title, lines, score, "inputs (%)", log_y=False)

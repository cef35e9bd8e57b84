"""Figures about honesty: reliability, predictive intervals, foreign inputs."""

import numpy as np

from experiments.report.json_numbers import array, short
from experiments.report.panels import DOTTED, Panel, Series, chart, line, steps
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Rows, Section, curves, stored

_DIAGONAL = Series([(0, 0), (1, 1)], "var(--muted)", "right", dash=DOTTED, width=1.0, dots="")
_INPUTS = {"inside": "test inputs", "outside": "inputs from another data set"}


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
    lines = [line for line in lines if line.points]
    return chart(title, [_DIAGONAL, *lines] * bool(lines), x, y, log_y=False, caption=caption)


def foreign_inputs(rows: Rows) -> Section:
    """Histograms of an uncertainty score on test inputs and on foreign ones, one per variant."""
    figures = [figure for row in rows for figure in _scores(row)]
    legend = list(_INPUTS.values())
    note = "A score that tells them apart has little overlap (AUROC near 1)."
    return Section("Foreign inputs", figures, note, legend=legend)


def _scores(row: ScoreRow) -> list[Panel]:
    seeds = [value for _, value in stored(row, "ood")]
    seeds = [value for value in seeds if value["edges"] == seeds[0]["edges"]]
    lines = []
    for entry, (key, name) in enumerate(_INPUTS.items() if seeds else ()):
        counts = np.sum([array(value[key]) for value in seeds], axis=0)
        points = steps(seeds[0]["edges"], 100 * counts / counts.sum())
        lines.append(line(name, *points, entry))
    score = str(seeds[0].get("score", "score")) if seeds else ""
    area = row.cells.get(f"ood_auroc_{score.replace(' ', '_')}")
    title = f"{row.name}: AUROC {short(area.value, 3)}" if area and area.value else row.name
    return chart(title, lines, score, "inputs (%)", log_y=False)

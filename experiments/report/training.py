"""Figures of training: curves by epoch, convergence by step."""

from experiments.report.json_numbers import Array
from experiments.report.panels import Panel, chart, line, mean_by
from experiments.report.score_tables import ScoreRow, column
from experiments.report.sections import Rows, Section, curves

QUANTITIES = ("loss", "nll", "kl", "accuracy", "rmse")  # of `history`


def training_curves(rows: Rows) -> Section:
    """A figure per quantity, a line per variant, the mean over its seeds."""
    figures = [figure for key in QUANTITIES for figure in _curves(rows, key)]
    note = "Thick lines: validation. Thin lines: training. Mean over seeds."
    return Section("Training", figures, note)


def _curves(rows: Rows, key: str) -> list[Panel]:
    known, lines = column(key), []
    for row in rows:
        for prefix, part, width in (("", "training", 1.4), ("valid_", "validation", 2.6)):
            x, y = _history(row, prefix + key)
            name = f"{row.name}, {part}"
            lines.append(line(name, x, known.factor * y, row.index, width=width))
    return chart(known.title, lines, "epoch")


def _history(row: ScoreRow, key: str) -> tuple[Array, Array]:
    seeds = []
    for run in row.results:
        epochs = [epoch for epoch in run.history if epoch.get(key) is not None]
        seeds.append(([epoch["epoch"] for epoch in epochs], [epoch[key] for epoch in epochs]))
    return mean_by(seeds)


def convergence(rows: Rows) -> Section:
    """Validation −ELBO against steps."""
    lines = curves(rows, "convergence", "step", "neg_elbo")
    return Section("Convergence", chart("Validation −ELBO", lines, "training step"))

"""Figures of training: curves by epoch, convergence by step and by time."""

from dataclasses import replace

from experiments.report.json_numbers import Array
from experiments.report.panels import Panel, chart, line, mean_by
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Rows, Section, curves

QUANTITIES = {  # key of `history`: title and factor
    "loss": ("Loss", 1.0),
    "nll": ("Negative log-likelihood", 1.0),
    "kl": ("KL divergence from the prior", 1.0),
    "accuracy": ("Accuracy (%)", 100.0),
    "rmse": ("Root mean squared error", 1.0),
}


def training_curves(rows: Rows) -> Section:
    """A figure per quantity, a line per variant, the mean over its seeds."""
    figures = [f for key, words in QUANTITIES.items() for f in _curves(rows, key, *words)]
    note = "Thick lines: validation. Thin lines: training. Mean over seeds."
    return Section("Training", figures, note)


def _curves(rows: Rows, key: str, title: str, factor: float) -> list[Panel]:
    lines = []
    for row in rows:
        for prefix, part, width in (("", "training", 1.4), ("valid_", "validation", 2.6)):
            x, y = _history(row, prefix + key)
            lines.append(line(f"{row.name}, {part}", x, factor * y, row.index, width=width))
    return chart(title, lines, "epoch")


def _history(row: ScoreRow, key: str) -> tuple[Array, Array]:
    seeds = []
    for run in row.results:
        epochs = [epoch for epoch in run.history if epoch.get(key) is not None]
        seeds.append(([epoch["epoch"] for epoch in epochs], [epoch[key] for epoch in epochs]))
    return mean_by(seeds)


def convergence(rows: Rows) -> Section:
    """Validation −ELBO against steps and against seconds, the means over seeds."""
    by_step = curves(rows, "convergence", "step", "neg_elbo")
    by_time = []
    for losses, times in zip(by_step, curves(rows, "convergence", "step", "seconds"), strict=True):
        pairs = zip(times.points, losses.points, strict=True)
        by_time.append(replace(losses, points=[(time, loss) for (_, time), (_, loss) in pairs]))
    title, time = "Validation −ELBO by", "seconds of training"
    figures = chart(f"{title} training step", by_step, "training step", "−ELBO")
    figures += chart(f"{title} {time}", by_time, time, "−ELBO")
    note = "Mean over seeds. Seconds are comparable only between runs on the same idle machine."
    return Section("Convergence", figures, note)

"""Figures of training: curves by epoch, convergence by step and by time, drift of the scales."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.json_numbers import Array, arrays, number
from experiments.report.plots import Figure, Line, chart, look, mean_by
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import THICK, THIN, Section, by_layer, stored

QUANTITIES = {  # key of `history`: title and factor
    "loss": ("Loss", 1.0),
    "nll": ("Negative log-likelihood", 1.0),
    "kl": ("KL divergence from the prior", 1.0),
    "accuracy": ("Accuracy (%)", 100.0),
    "rmse": ("Root mean squared error", 1.0),
    "learning_rate": ("Learning rate", 1.0),
    "temperature": ("Temperature", 1.0),
}
_SCHEDULES = ("learning_rate", "temperature")  # shown only if they change


def training_curves(rows: Sequence[ScoreRow]) -> Section:
    """A figure per quantity, a line per variant, the mean over its seeds."""
    figures = [f for key, words in QUANTITIES.items() for f in _curves(rows, key, *words)]
    keys = [(THICK, "validation"), (THIN, "training"), ("", "Mean over seeds.")]
    return Section("Training", figures, keys=keys)


def _curves(rows: Sequence[ScoreRow], key: str, title: str, factor: float) -> list[Figure]:
    lines = []
    for row in rows:
        for prefix, part, width in (("", "training", 1.4), ("valid_", "validation", 2.6)):
            points = [
                (number(epoch.get("epoch")) or place, factor * value)
                for result in row.results
                for place, epoch in enumerate(result.history, 1)
                if (value := number(epoch.get(prefix + key))) is not None
            ]
            style = look(row.index, width)
            lines.append(Line(f"{row.name}, {part}", *mean_by(points), style, row.index))
    drawn = [line for line in lines if line.x]
    constant = len({value for line in drawn for value in line.y}) < 2
    return [] if key in _SCHEDULES and constant else chart(title, drawn, "epoch")


def convergence(rows: Sequence[ScoreRow]) -> Section:
    """Validation −ELBO against steps and against seconds: every seed thin, their mean thick."""
    missing: list[str] = []
    found = {row.index: stored(row, "convergence", _convergence, missing) for row in rows}
    figures = []
    for place, name in enumerate(("training step", "seconds of training")):
        thin, thick = [], []
        for row in rows:
            seeds = found[row.index]
            for result, columns in seeds if len(seeds) > 1 else []:
                line = (columns[place], columns[2], look(row.index, 1.0), row.index)
                thin.append(Line(f"{row.name}, seed {result.seed}", *line, {"opacity": 0.5}))
            if seeds:
                mean = _mean([columns for _, columns in seeds])
                thick.append(Line(row.name, mean[place], mean[2], look(row.index, 2.4), row.index))
        title = f"Validation −ELBO by {name}"
        figures += chart(title, [*thin, *thick], name, "−ELBO")
    keys = [
        (THICK, "mean over seeds"),
        (THIN, "one seed"),
        ("", "Seconds are comparable only between runs on the same idle machine."),
    ]
    return Section("Convergence", figures, missing, keys=keys, size="wide")


def _convergence(value: Mapping[str, Any]) -> Array:
    return np.stack(arrays(value["step"], value["seconds"], value["neg_elbo"]))


def _mean(seeds: Sequence[Array]) -> Array:
    """The mean of every column at the steps that all seeds have."""
    common = list(set.intersection(*(set(columns[0]) for columns in seeds)))
    return np.mean([columns[:, np.isin(columns[0], common)] for columns in seeds], axis=0)


def drift(rows: Sequence[ScoreRow]) -> Section:
    """Mean posterior standard deviation against the step: a figure per layer, the mean over seeds."""
    layers: dict[str, list[Line]] = {}
    missing: list[str] = []
    for row in rows:
        found = by_layer(row, "drift", lambda e: arrays(e["step"], e["mean_scale"]), missing)
        for layer, seeds in found.items():
            points = mean_by(pair for seed in seeds for pair in zip(*seed, strict=True))
            layers.setdefault(layer, []).append(Line(row.name, *points, look(row.index), row.index))
    figures = [f for name, lines in layers.items() for f in chart(name, lines, "step", "mean σ")]
    note = "Mean of the standard deviations σ of a layer during training. Mean over seeds."
    return Section("Drift of posterior scales", figures, missing, note)

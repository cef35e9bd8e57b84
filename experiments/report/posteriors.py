"""What posteriors look like: layers and spectra."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.json_numbers import array, short
from experiments.report.panels import Panel, chart, line, steps
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Rows, Section, Table, stored

COMPONENTS = 10
FLOOR = 1e-6  # a smaller share is rounding error and would stretch the axis
_FACTS = {
    "parameters": "parameters",
    "kl": "KL (nats)",
    "snr": "signal to noise",
    "mean_abs": "mean |μ|",
    "mean_std": "mean σ",
}
_HISTOGRAMS = {
    "mean": ("Posterior means", "μ"),
    "scale": ("Posterior standard deviations", "log₁₀ σ"),
}


def layers(row: ScoreRow) -> Section:
    """The layers of a variant, of its first seed: a table, and histograms of means and scales."""
    for run, value in stored(row, "layers")[:1]:
        entries = {_layer(entry): entry for entry in value}
        facts = [[name, *(_fact(e.get(key)) for key in _FACTS)] for name, e in entries.items()]
        table = Table("Layers", ["layer", *_FACTS.values()], facts, numbers=True)
        figures = [f for key in _HISTOGRAMS for f in _histograms(entries, key)]
        heading, legend = f"Posterior per layer (seed {run.seed})", list(entries)
        return Section(heading, figures, legend=legend, tables=[table])
    return Section("Posterior per layer")


def _layer(entry: Mapping[str, Any]) -> str:
    return f"{entry['name']}, {' × '.join(map(str, entry['shape']))}"


def _fact(value: float | None) -> str:
    return "–" if value is None else short(value)


def _histograms(entries: Mapping[str, Mapping[str, Any]], key: str) -> list[Panel]:
    lines = []
    for index, (name, entry) in enumerate(entries.items()):
        if entry.get(key):
            x, counts = steps(entry[key]["edges"], entry[key]["counts"])
            lines.append(line(name, x, counts / counts.max(), index))
    title, symbol = _HISTOGRAMS[key]
    return chart(title, lines, symbol, "relative to the peak", log_y=False)


_SPECTRA = {  # name of a line: where its shares are in an entry of the file
    "σ": ("scale", "share"),
    "constant matrix": ("scale", "constant"),
    "shuffled σ": ("scale", "shuffled"),
    "centred σ": ("scale", "centred"),
    "μ": ("mean", "share"),
}
_SPECTRA_NOTE = (
    "Share γₖ² / Σ γ² of each singular value γ of a layer's matrix of standard deviations σ, and of "
    "means μ. A first share near 100 % alone proves nothing: entries of σ are positive, so that a "
    "constant matrix explains much of them, and so does the first component of the same entries "
    "shuffled, without rows or columns. Structure of rank one is the distance above both. Centred "
    "σ: the components left without the mean entry. Shares below 0.0001 % are not drawn. Mean over "
    "seeds."
)


def spectra(rows: Rows) -> Section:
    """How many components the matrices of scales and means need: a figure per variant and layer."""
    parts = []
    for row in rows:
        seeds_of: dict[str, list[Mapping[str, Any]]] = {}
        for entry in (entry for _, entries in stored(row, "spectrum") for entry in entries):
            seeds_of.setdefault(str(entry["layer"]), []).append(entry)
        figures = [figure for name, seeds in seeds_of.items() for figure in _spectrum(name, seeds)]
        if figures:
            parts.append(Section(f"{len(figures)} layers", figures, row=row))
    heading = "Spectra of posterior scales and means"
    return Section(heading, note=_SPECTRA_NOTE, legend=list(_SPECTRA), parts=parts)


def _spectrum(layer: str, seeds: Sequence[Mapping[str, Any]]) -> list[Panel]:
    lines, firsts = [], []
    for entry, (name, (part, key)) in enumerate(_SPECTRA.items()):
        known = [seed[part][key] for seed in seeds if key in seed.get(part, ())]
        if known:
            # a constant matrix has one share
            lists = [share if isinstance(share, list) else [share] * COMPONENTS for share in known]
            shares = np.mean([array(values)[:COMPONENTS] for values in lists], axis=0)
            firsts.append(f"{name} {100 * shares[0]:.2f} %")
            percent = np.where(shares >= FLOOR, 100 * shares, np.nan)
            lines.append(line(name, range(1, len(shares) + 1), percent, entry))
    caption = f"First share: {', '.join(firsts)}."
    return chart(layer, lines, "component", "share (%)", log_y=True, caption=caption)

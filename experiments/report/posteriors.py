"""What posteriors look like: layers, spectra, maps of scales, signal to noise of gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.json_numbers import array, short
from experiments.report.plots import Figure, Line, chart, rounded, steps
from experiments.report.score_tables import ScoreRow
from experiments.report.sections import Rows, Section, Table, over_seeds, stored

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


def _histograms(entries: Mapping[str, Mapping[str, Any]], key: str) -> list[Figure]:
    lines = []
    for index, (name, entry) in enumerate(entries.items()):
        if entry.get(key):
            edges, counts = steps(entry[key]["edges"], entry[key]["counts"])
            lines.append(Line(name, edges, counts / counts.max(), index, {"shape": "hv"}))
    title, symbol = _HISTOGRAMS[key]
    return chart(title, lines, symbol, "relative to the peak", log_y=False)


_SPECTRA = {  # line: where its shares are in an entry of the file
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


def _spectrum(name: str, seeds: Sequence[Mapping[str, Any]]) -> list[Figure]:
    lines, firsts = [], []
    for series, (line, (part, key)) in enumerate(_SPECTRA.items()):
        known = [seed[part][key] for seed in seeds if key in seed.get(part, ())]
        if known:
            # a constant matrix has one share
            lists = [share if isinstance(share, list) else [share] * COMPONENTS for share in known]
            shares = np.mean([array(values)[:COMPONENTS] for values in lists], axis=0)
            firsts.append(f"{line} {100 * shares[0]:.2f} %")
            percent = np.where(shares >= FLOOR, 100 * shares, np.nan)
            lines.append(Line(line, range(1, len(shares) + 1), percent, series))
    caption = f"First share: {', '.join(firsts)}."
    return chart(name, lines, "component", "share (%)", log_y=True, caption=caption)


_MAPS = (
    "Posterior standard deviations σ of each weight, a row per output and a column per input, "
    "beside their best approximations of low rank. Maps of a layer share one range of colours; what "
    "an approximation puts outside it has the colour of the end."
)


def maps(rows: Rows) -> Section:
    """Heat maps of posterior scales beside their low-rank approximations, of the first seed."""
    parts = []
    for row in rows:
        for run, layers in stored(row, "scales")[:1]:
            inside = [Section(str(layer["layer"]), _maps(layer)) for layer in layers]
            parts.append(Section(f"seed {run.seed}", parts=inside, row=row))
    return Section("Maps of posterior scales", parts=parts, note=_MAPS)


def _maps(entry: Mapping[str, Any]) -> list[Figure]:
    low, high = rounded(array([entry["low"], entry["high"]]))
    figures = []
    for picture in entry["maps"]:
        cells = array(picture["values"])
        data = {
            "type": "heatmap",
            "z": [rounded(row) for row in cells],
            "zmin": low,
            "zmax": high,
            # even steps of lightness, the same to colour-blind readers, readable on white and on black
            "colorscale": "Viridis",
            "colorbar": {"thickness": 10, "outlinewidth": 0, "nticks": 4},
            "hovertemplate": "σ = %{z:.4~g}<extra></extra>",
        }
        plain = {"showticklabels": False, "ticks": "", "showgrid": False, "mirror": True}
        layout = {
            "xaxis": {"title": {"text": "input"}, **plain},
            "yaxis": {"title": {"text": "output"}, "autorange": "reversed", **plain},
            "margin": {"l": 26, "r": 6, "t": 4, "b": 26},
        }
        least, most, mean = (short(float(f(cells)), 3) for f in (np.min, np.max, np.mean))
        label = f"Heat map of σ, {picture['title']}: from {least} to {most}, mean {mean}."
        figures.append(Figure(str(picture["title"]), [data], layout, label, f"mean σ {mean}"))
    return figures


_SNR = (
    "Median and mean over the entries of a parameter, ± the standard error over seeds. A higher "
    "ratio means less noise in the steps of the optimiser."
)


def gradient_snr(rows: Rows) -> Section:
    """The signal-to-noise ratio of gradients: a table per layer and definition."""
    tables: dict[str, dict[tuple[str, ...], dict[str, list[float]]]] = {}
    for row in rows:
        for _, entries in stored(row, "gradient_snr"):
            for entry in entries:
                lines = tables.setdefault(f"{entry['layer']}: {entry['definition']}", {})
                values = lines.setdefault((row.name, str(entry["parameter"])), {})
                for kind in ("median", "mean"):
                    values.setdefault(f"step {entry['step']:,g}, {kind}", []).append(entry[kind])
    head = ("variant", "parameter")
    shown = [over_seeds(caption, head, lines) for caption, lines in tables.items()]
    return Section("Signal to noise of gradients", tables=shown, note=_SNR)

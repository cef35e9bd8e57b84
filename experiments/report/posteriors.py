"""What posteriors look like: layers, spectra, maps of scales, signal to noise of gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report.calibration import histogram
from experiments.report.json_numbers import Array, array, number, short
from experiments.report.plots import Figure, Line, chart, look, rounded, thinned
from experiments.report.score_columns import Column
from experiments.report.score_tables import ScoreRow, ScoreTable, score_table
from experiments.report.sections import Section, Table, by_layer, stored, usable

CELLS = 96  # of a side of a map at most, to keep the page small
COMPONENTS = 10
FLOOR = 1e-6  # a smaller share is rounding error and would stretch the axis
_FACTS = {
    "parameters": "parameters",
    "kl": "KL (nats)",
    "snr": "signal to noise",
    "mean_abs": "mean |μ|",
    "mean_std": "mean σ",
}


def layers(row: ScoreRow) -> Section:
    """The layers of a variant, of its first seed: a table, and histograms of means and scales."""
    found = stored(row, "layers", lambda value: {_layer(one): dict(one) for one in value}, [])
    entries = found[0][1] if found else {}
    rows = [[name, *(_short(entry.get(key)) for key in _FACTS)] for name, entry in entries.items()]
    table = Table("Layers", ["layer", *_FACTS.values()], rows, numbers=True)
    figures = [
        *_histograms(entries, "mean", "Posterior means", "μ"),
        *_histograms(entries, "scale", "Posterior standard deviations", "log₁₀ σ"),
    ]
    heading = f"Posterior per layer (seed {found[0][0].seed})" if found else ""
    tables = [table] if entries else []
    return Section(heading, figures, size="wide", legend=list(entries), tables=tables)


def _layer(entry: Mapping[str, Any]) -> str:
    return f"{entry['name']}, {' × '.join(map(str, entry['shape']))}"


def _short(value: object) -> str:
    known = number(value)
    return "–" if known is None else short(known)


def _histograms(
    entries: Mapping[str, Mapping[str, Any]], key: str, title: str, symbol: str
) -> list[Figure]:
    lines = [
        Line(name, edges, counts / counts.max(), {**look(index), "shape": "hv"}, index)
        for index, (name, entry) in enumerate(entries.items())
        for edges, counts in usable(lambda e: histogram(e[key]["edges"], e[key]["counts"]), entry)
    ]
    return chart(title, lines, symbol, "relative to the peak", log_y=False)


_LINES: dict[
    str, tuple[str, str, dict[str, Any]]
] = {  # name: where its shares are in an entry of the file, its look
    "σ": ("scale", "share", {"color": "--c0", "dash": "solid", "width": 2.6}),
    "constant matrix": ("scale", "constant", {"color": "--ink", "dash": "dot", "width": 1.2}),
    "shuffled σ": ("scale", "shuffled", {"color": "--muted", "dash": "dot", "width": 1.8}),
    "centred σ": ("scale", "centred", {"color": "--c2", "dash": "dash", "width": 2.0}),
    "μ": ("mean", "share", {"color": "--c1", "dash": "solid", "width": 1.8}),
}
_SPECTRA = (
    "Share γₖ² / Σ γ² of each singular value γ of a layer's matrix of standard deviations σ, and of "
    "means μ. A first share near 100 % alone proves nothing: entries of σ are positive, so that a "
    "constant matrix explains much of them (dotted line), and so does the first component of the "
    "same entries shuffled, without rows or columns. Structure of rank one is the distance above "
    "both. Centred σ: the components left without the mean entry. Shares below 0.0001 % are not "
    "drawn. Mean over seeds."
)


def spectra(rows: Sequence[ScoreRow]) -> Section:
    """How many components the matrices of scales and means need: a figure per variant and layer."""
    missing: list[str] = []
    parts = []
    for row in rows:
        found = by_layer(row, "spectrum", _shares, missing)
        figures = [figure for name, seeds in found.items() for figure in _spectrum(name, seeds)]
        parts.append(Section(f"{len(figures)} layers", figures, row=row))
    css = {"solid": "solid", "dash": "dashed", "dot": "dotted"}
    keys = [
        (f"{style['width']}px {css[style['dash']]} var({style['color']})", name)
        for name, (_, _, style) in _LINES.items()
    ]
    heading = "Spectra of posterior scales and means"
    shown = [part for part in parts if part]
    return Section(heading, parts=shown, missing=missing, note=_SPECTRA, keys=keys)


def _shares(entry: Mapping[str, Any]) -> dict[str, Array]:
    """The shares of every line that the file has; a constant matrix has one share."""
    found = {}
    for name, (part, key, _) in _LINES.items():
        shares = (entry.get(part) or {}).get(key)
        if shares is not None:
            repeated = shares if isinstance(shares, list) else [shares] * COMPONENTS
            found[name] = array(repeated)[:COMPONENTS]
    if not found or not all(len(s) and ((s >= 0) & (s < 1.001)).all() for s in found.values()):
        raise ValueError("shares must be between 0 and 1")
    return found


def _spectrum(name: str, seeds: Sequence[Mapping[str, Array]]) -> list[Figure]:
    lines, firsts = [], []
    for line, (_, _, style) in _LINES.items():
        known = [seed[line] for seed in seeds if line in seed]
        if known:
            shares = np.mean([one for one in known if one.shape == known[0].shape], axis=0)
            firsts.append(f"{line} {100 * shares[0]:.2f} %")
            percent = np.where(shares >= FLOOR, 100 * shares, np.nan)
            lines.append(Line(line, range(1, len(shares) + 1), percent, style))
    caption = f"First share: {', '.join(firsts)}."
    return chart(name, lines, "component", "share (%)", log_y=True, caption=caption)


_MAPS = (
    "Posterior standard deviations σ of each weight, a row per output and a column per input, "
    "beside their best approximations of low rank. Maps of a layer share one range of colours; what "
    "an approximation puts outside it has the colour of the end."
)


def maps(rows: Sequence[ScoreRow]) -> Section:
    """Heat maps of posterior scales beside their low-rank approximations, of the first seed."""
    missing: list[str] = []
    parts = []
    for row in rows:
        found = by_layer(row, "scales", _maps, missing)
        figures = [Section(name, seeds[0], size="map") for name, seeds in found.items()]
        parts.append(Section(f"seed {row.results[0].seed}", parts=figures, row=row))
    shown = [one for one in parts if one]
    return Section("Maps of posterior scales", parts=shown, missing=missing, note=_MAPS)


def _maps(entry: Mapping[str, Any]) -> list[Figure]:
    low, high = array([entry["low"], entry["high"]]).tolist()
    if not low <= high or not entry["maps"]:
        raise ValueError(f"there must be maps and a range, got {low} to {high}")
    if low == high:  # all alike, as before training: any range around it will do
        low, high = low - (abs(low) or 1.0) / 100, high + (abs(high) or 1.0) / 100
    return [_map(one, low, high) for one in entry["maps"]]


def _map(one: Mapping[str, Any], low: float, high: float) -> Figure:
    cells = array(one["values"])
    if cells.ndim != 2 or np.isnan(cells).all():
        raise ValueError("a map must be a matrix of numbers")
    data = {
        "type": "heatmap",
        "z": [rounded(thinned(row, CELLS)) for row in thinned(cells.tolist(), CELLS)],
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
    least, most, mean = (short(float(f(cells)), 3) for f in (np.nanmin, np.nanmax, np.nanmean))
    label = f"Heat map of σ, {one['title']}: from {least} to {most}, mean {mean}."
    return Figure(str(one["title"]), [data], layout, label, f"mean σ {mean}")


_SNR = (
    "Median and mean over the entries of a parameter, ± the standard error over seeds. A higher "
    "ratio means less noise in the steps of the optimiser."
)


def gradient_snr(rows: Sequence[ScoreRow]) -> Section:
    """The signal-to-noise ratio of gradients: a table per layer and definition."""
    tables: dict[str, dict[tuple[int, str], list[dict[str, float]]]] = {}
    missing: list[str] = []
    for row in rows:
        found = stored(row, "gradient_snr", lambda value: [_ratio(one) for one in value], missing)
        for seed, (_, ratios) in enumerate(found):
            for caption, parameter, scores in ratios:
                lines = tables.setdefault(caption, {})
                seeds = lines.setdefault((row.index, parameter), [{} for _ in found])
                seeds[seed] |= scores
    shown = [_ratio_table(caption, lines, rows) for caption, lines in tables.items()]
    return Section("Signal to noise of gradients", tables=shown, missing=missing, note=_SNR)


def _ratio(one: Mapping[str, Any]) -> tuple[str, str, dict[str, float]]:
    step, median, mean = array([one["step"], one["median"], one["mean"]]).tolist()
    scores = {f"step {step:,g}, median": median, f"step {step:,g}, mean": mean}
    if any(np.isnan(value) for value in (step, median, mean)):
        raise ValueError("step, median and mean must be numbers")
    return f"{one['layer']}: {one['definition']}", str(one["parameter"]), scores


def _ratio_table(
    caption: str, lines: Mapping[tuple[int, str], list[dict[str, float]]], rows: Sequence[ScoreRow]
) -> ScoreTable:
    keys = dict.fromkeys(key for seeds in lines.values() for scores in seeds for key in scores)
    named = [ScoreRow(f"{rows[i].name}, {name}", seeds, i) for (i, name), seeds in lines.items()]
    return score_table(caption, named, [Column(key, key) for key in keys])

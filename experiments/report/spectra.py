"""Spectra of posterior scales and means: how many components a matrix of them needs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.report.figures import Figure, axis, by_variant, folded, log_axis, piece, trace
from experiments.report.markup import Html, el, join
from experiments.report.results import Row
from experiments.report.stored import by_layer
from experiments.report.values import all_numbers, fixed, mapping, shape_text

COMPONENTS = 10
FLOOR = 1e-6  # a smaller share is rounding error and would stretch the axis


class _Line(NamedTuple):
    """A line of a figure: its name, where its shares are in an entry of the file, its look."""

    name: str
    part: str
    key: str
    look: dict[str, Any]


_LINES = (
    _Line("σ", "scale", "share", {"color": "--c0", "dash": "solid", "width": 2.6}),
    _Line("centred σ", "scale", "centred", {"color": "--c2", "dash": "dash", "width": 2.0}),
    _Line("μ", "mean", "share", {"color": "--c1", "dash": "solid", "width": 1.8}),
    _Line("shuffled σ", "scale", "shuffled", {"color": "--muted", "dash": "dot", "width": 1.8}),
)
_CONSTANT: dict[str, Any] = {"color": "--ink", "dash": "dot", "width": 1.2}
_TEXT = (
    "Share γₖ² / Σ γ² of each singular value γ of a layer's matrix of standard deviations σ, and of "
    "means μ. A first share near 100 % alone proves nothing: entries of σ are positive, so that a "
    "constant matrix explains much of them (dotted line), and so does the first component of the "
    "same entries shuffled, without rows or columns. Structure of rank one is the distance above "
    "both. Centred σ: the components left without the mean entry. Mean over seeds."
)


@dataclass(frozen=True)
class Spectrum:
    """What a file tells about one layer.

    Attributes:
        shape: of the matrix, for people.
        lines: shares of the components by name of the line; only those that the file has.
        constant: the share that a constant matrix explains, if known.
        two: the share of the first two components of σ, if known.
        broken: names of the lines that the file has in no usable form.
    """

    shape: str
    lines: Mapping[str, Sequence[float]]
    constant: float | None
    two: float | None
    broken: tuple[str, ...] = ()


def spectra(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with a figure per variant and layer; nothing if no file has spectra."""
    blocks: list[Html] = []
    missing: list[str] = []
    for index, row in enumerate(rows):
        found, lost = by_layer(row, "spectrum", parsed)
        missing += lost
        if found:
            layers = {name: pooled([one for _, one in stored]) for name, stored in found.items()}
            drawn = [figure.html() for figure in _figures(row, layers)]
            grid = el("div", *drawn, class_="figures low")
            facts = f"{len(drawn)} layer{'' if len(drawn) == 1 else 's'}"
            blocks.append(folded(index, row, facts, grid, unfolded=not blocks))
    notes = [el("p", _TEXT, class_="note"), el("p", *_keys(), class_="note keys")]
    yield from by_variant("Spectra of posterior scales and means", notes, blocks, missing)


def parsed(entry: Mapping[str, Any]) -> Spectrum | None:
    """The spectrum in an entry of the file; None if no line of it can be drawn.

    Examples:
        >>> parsed({"scale": None, "mean": {"share": [0.9, 0.1]}}).lines
        {'μ': [0.9, 0.1]}
        >>> parsed({"mean": {"share": [0.9, "x"]}})
    """
    parts = [(line, entry.get(line.part)) for line in _LINES]
    stored = {
        line.name: _shares(mapping(part).get(line.key))
        for line, part in parts
        # a matrix has shares; baselines may be left out
        if part is not None and (line.key == "share" or mapping(part).get(line.key) is not None)
    }
    lines = {name: shares for name, shares in stored.items() if shares}
    if not lines:
        return None
    scale = mapping(entry.get("scale"))
    return Spectrum(
        shape_text(entry.get("shape")),
        lines,
        next(iter(_shares([scale.get("constant")])), None),
        next(iter(_shares(scale.get("cumulative"))[1:]), None),
        tuple(name for name in stored if name not in lines),
    )


def pooled(seeds: Sequence[Spectrum]) -> Spectrum:
    """The mean over seeds of what each of them has.

    Examples:
        >>> runs = [parsed({"mean": {"share": share}}) for share in ([0.8, 0.2], [0.6, 0.4])]
        >>> pooled(runs).lines
        {'μ': [0.7, 0.30000000000000004]}
    """
    names = dict.fromkeys(name for one in seeds for name in one.lines)
    lines = {name: [one.lines[name] for one in seeds if name in one.lines] for name in names}
    return Spectrum(
        seeds[0].shape,
        {name: [sum(k) / len(k) for k in zip(*all_, strict=False)] for name, all_ in lines.items()},
        _mean([one.constant for one in seeds]),
        _mean([one.two for one in seeds]),
        tuple(dict.fromkeys(name for s in seeds for name in s.broken if name not in names)),
    )


def _shares(value: object) -> list[float]:
    """Shares of up to ten components; empty if they cannot be shares."""
    found = all_numbers(value)[:COMPONENTS]
    return found if found and min(found) >= 0 and max(found) < 1.001 else []


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _figures(row: Row, layers: Mapping[str, Spectrum]) -> list[Figure]:
    """A figure per layer, all of a variant with the same axis."""
    every = [s for one in layers.values() for line in one.lines.values() for s in line]
    low = 100 * min([share for share in every if share >= FLOOR], default=FLOOR)
    layout = {
        "xaxis": axis("component", range=[0.6, COMPONENTS + 0.4], dtick=1),
        "yaxis": axis(
            "share (%), log scale",
            **log_axis(min(low, 10.0), 100.0),
            range=[math.log10(min(low, 10.0)) - 0.15, 2.15],
        ),
    }
    return [_figure(row, name, one, layout) for name, one in layers.items()]


def _figure(row: Row, name: str, one: Spectrum, layout: dict[str, Any]) -> Figure:
    data = []
    if one.constant:
        ends, height = [0.6, COMPONENTS + 0.4], [100 * one.constant] * 2
        data.append(trace(ends, height, name="constant matrix", line=_CONSTANT))
    for line in reversed(_LINES):
        shares = one.lines.get(line.name, ())
        if shares:
            data.append(
                trace(
                    range(1, len(shares) + 1),
                    [100 * share if share >= FLOOR else None for share in shares],
                    mode="lines+markers",
                    name=line.name,
                    line=line.look,
                    marker={"size": 5},
                )
            )
    title = name if one.shape == "–" else f"{name}, {one.shape}"
    caption = _caption(one)
    label = f"Share of each singular component, layer {name} of {row.name}. {caption}"
    return Figure(title, data, layout, label, join([caption]), size="low")


def _caption(one: Spectrum) -> str:
    firsts = {name: line[0] for name, line in one.lines.items()}
    order = ("σ", "constant", "shuffled σ", "centred σ", "μ")
    if one.constant is not None:
        firsts["constant"] = one.constant
    space = "\N{NO-BREAK SPACE}"
    told = [f"{name}{space}{_percent(firsts[name])}" for name in order if name in firsts]
    sentences = [f"First share: {', '.join(told)}." if told else ""]
    if one.two is not None:
        sentences.append(f"First two of σ: {_percent(one.two)}.")
    if any(share < FLOOR for line in one.lines.values() for share in line):
        sentences.append("Shares below 0.0001 % are not drawn.")
    if one.broken:
        sentences.append(f"Without usable data: {', '.join(one.broken)}.")
    return " ".join(sentences)


def _percent(share: float) -> str:
    return f"{fixed(100 * share, 2)}\N{NO-BREAK SPACE}%"


def _keys() -> list[Html]:
    lines = [(line.name, piece(**line.look, dot=True)) for line in _LINES]
    lines.append(("constant matrix", piece(**_CONSTANT)))
    return [el("span", drawn, name, class_="sample") for name, drawn in lines]

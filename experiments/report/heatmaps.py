"""Heat maps of posterior scales: a layer's matrix beside its low-rank approximations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.figures import Figure, axis, by_variant, folded, rounded, thinned
from experiments.report.markup import Html, el
from experiments.report.results import Result, Row
from experiments.report.stored import by_layer
from experiments.report.values import finite, numbers, records, shape_text, short

CELLS = 96  # of a side at most, to keep the page small
# viridis: even steps of lightness, the same to colour-blind readers, readable on white and on black
_COLOURS = (
    *("#440154", "#482878", "#3e4989", "#31688e", "#26828e"),
    *("#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"),
)
_TEXT = (
    "Posterior standard deviations σ of each weight, a row per output and a column per input, "
    "beside their best approximations of low rank. Maps of a layer share one range of colours; what "
    "an approximation puts outside it has the colour of the end."
)

Cells = list[list[float | None]]


@dataclass(frozen=True)
class Maps:
    """What a file tells about one layer: maps by title, and the range of the colours."""

    shape: str
    low: float
    high: float
    maps: tuple[tuple[str, Cells], ...]


def heat_maps(rows: Sequence[Row]) -> Iterator[Html]:
    """A section with the maps of every variant, of its first seed; nothing if no file has maps."""
    blocks: list[Html] = []
    missing: list[str] = []
    for index, row in enumerate(rows):
        found, lost = by_layer(row, "scales", parsed)
        missing += lost
        if found:
            layers = [_layer(row, name, *stored[0]) for name, stored in found.items()]
            seeds = dict.fromkeys(str(stored[0][0].seed) for stored in found.values())
            word = "seed" if len(seeds) == 1 else "seeds"
            facts = f"{word} {', '.join(seeds)}"
            blocks.append(folded(index, row, facts, *layers, unfolded=not blocks))
    notes = [el("p", _TEXT, class_="note")]
    yield from by_variant("Maps of posterior scales", notes, blocks, missing)


def parsed(entry: Mapping[str, Any]) -> Maps | None:
    """The maps in an entry of the file; None if one of them cannot be drawn.

    Examples:
        >>> parsed({"low": 0, "high": 2, "maps": [{"title": "full", "values": [[0, 1, 2]]}]}).maps
        (('full', [[0.0, 1.0, 2.0]]),)
        >>> parsed({"low": 0, "high": 2, "maps": [{"title": "full", "values": [[0], [1, 2]]}]})
    """
    low, high = finite(entry.get("low")), finite(entry.get("high"))
    maps = tuple((_title(one, i), _cells(one)) for i, one in enumerate(records(entry.get("maps"))))
    if low is None or high is None or high < low or not maps or not all(c for _, c in maps):
        return None
    if high == low:  # all alike, as before training: any range around it will do
        low, high = low - (abs(low) or 1.0) / 100, high + (abs(high) or 1.0) / 100
    return Maps(shape_text(entry.get("shape")), low, high, maps)


def _title(one: Mapping[str, Any], index: int) -> str:
    title = one.get("title")
    return title if isinstance(title, str) and title else f"map {index + 1}"


def _cells(one: Mapping[str, Any]) -> Cells:
    """The rows of a map; empty if they differ in length or hold no number. Bad cells are gaps."""
    stored = one.get("values")
    rows = [numbers(row) for row in stored] if isinstance(stored, list) else []
    if len({len(row) for row in rows}) != 1 or all(cell is None for row in rows for cell in row):
        return []
    return [rounded(thinned(row, CELLS)) for row in thinned(rows, CELLS)]


def _layer(row: Row, name: str, result: Result, one: Maps) -> Html:
    figures = [_figure(row, name, result, one, title, cells) for title, cells in one.maps]
    shape = "" if one.shape == "–" else f", {one.shape}"
    return el(
        "div",
        el("h4", f"{name}{shape}"),
        _scale(one),
        el("div", *(figure.html() for figure in figures), class_="figures maps"),
    )


def _figure(row: Row, name: str, result: Result, one: Maps, title: str, cells: Cells) -> Figure:
    known = [cell for line in cells for cell in line if cell is not None]
    least, most, mean = (short(v, 3) for v in (min(known), max(known), sum(known) / len(known)))
    label = f"Heat map of σ in layer {name} of {row.name}, seed {result.seed}: {title}. "
    label += f"From {least} to {most}, mean {mean}."
    size = f"{len(cells)} × {len(cells[0])}"
    coarse = "" if size == one.shape else f", in {size} cells"
    data = {
        "type": "heatmap",
        "z": cells,
        "zmin": one.low,
        "zmax": one.high,
        "colorscale": [[i / (len(_COLOURS) - 1), colour] for i, colour in enumerate(_COLOURS)],
        "showscale": False,
        "hovertemplate": "σ = %{z:.4~g}<extra></extra>",
    }
    plain = {"showticklabels": False, "ticks": "", "showgrid": False, "mirror": True}
    layout = {
        "xaxis": axis("input", **plain),
        "yaxis": axis("output", autorange="reversed", **plain),
        "margin": {"l": 26, "r": 6, "t": 4, "b": 26},
    }
    caption = el("span", f"mean σ {mean}{coarse}")
    return Figure(title, [data], layout, label, caption, size="map")


def _scale(one: Maps) -> Html:
    """The colour bar of a layer: a strip with the numbers at its ends and in the middle."""
    ticks = [short(v, 3) for v in (one.low, (one.low + one.high) / 2, one.high)]
    return el(
        "div",
        el("span", "σ", class_="colour-name"),
        el(
            "div", class_="colours", style=f"background:linear-gradient(90deg,{','.join(_COLOURS)})"
        ),
        el("div", *(el("span", tick) for tick in ticks), class_="colour-ticks"),
        class_="colour-bar",
        role="img",
        aria_label=f"Colours from dark, σ = {ticks[0]}, to bright, σ = {ticks[2]}",
    )

"""Pictures of the documentation, as SVG: the figures of the report, side by side."""

import re
from collections.abc import Sequence
from dataclasses import replace

from experiments.report import Result, compare
from experiments.report.page import TEMPLATES
from experiments.report.panels import Panel, Series
from experiments.report.sizes import frontiers
from experiments.report.sweeps import sweeps

# colours of the page on white paper, by name
PALETTE: dict[str, str] = dict(
    re.findall(r"--(\w+): light-dark\((#\w+)", TEMPLATES.get_template("page.css").render())
)
COLOURS = tuple(PALETTE[f"c{number}"] for number in range(7))
FAMILIES = {  # beginnings of variants: the name under which they are drawn
    "mean-field": "mean-field",
    "k-tied": "k-tied",
    "matrix-normal": "matrix normal",
    "mn-diagonal": "MN + diagonal",
    "scaled-mn": "scaled matrix normal",
    "radial": "radial",
}
WORST = 2.0  # per cent: networks with a larger error are left out of frontiers
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 84, 44


def sweep_chart(results: Sequence[Result]) -> str:
    """Every score over what an experiment varied: ours with dots, published or exact dotted with rings."""
    (table,) = compare(results)
    section = sweeps(table.rows)
    legend = [(f"● {name}", colour) for name, colour in zip(section.legend, COLOURS, strict=False)]
    if any(line.dots == "rings" for panel in section.figures for line in panel.series):
        legend.append(("○ dotted: published, or exact", PALETTE["muted"]))
    return draw(table.title, legend, section.figures, width=360, height=320)


def frontier_chart(results: Sequence[Result]) -> str:
    """Size and error of all compressed networks of an experiment, a line per run.

    A colour is a family, a line the networks of one run than which none is smaller and better on
    test data. Rings: networks that saw moved pictures. Crosses: published.
    """
    colours = dict(zip(FAMILIES.values(), COLOURS, strict=False))

    def by_family(line: Series) -> Series:
        return replace(
            line,
            points=[(size, error) for size, error in line.points if error <= WORST],
            colour=colours.get(family_of(line.name), COLOURS[-1]),
            dash="",
            dots="rings" if "moved" in line.name else "full",
        )

    (table,) = compare(results)
    panels = [
        replace(panel, series=[*map(by_family, panel.series)])
        for panel in frontiers(table.rows).figures
    ]
    families = {family_of(run.variant) for run in results}
    legend = [(f"● {name}", colour) for name, colour in colours.items() if name in families]
    legend += [("○ pictures moved", "#555555"), ("× published, counted right", "#222222")]
    return draw(f"Size and error: {table.title}", legend, panels, width=520, height=480)


def family_of(variant: str) -> str:
    return next((name for start, name in FAMILIES.items() if variant.startswith(start)), variant)


def draw(
    title: str,
    legend: Sequence[tuple[str, str]],
    panels: Sequence[Panel],
    *,
    width: int,
    height: int,
) -> str:
    """Panels beside each other, below a legend of two lines."""
    placed = [
        (
            panel.title,
            panel.placed(number * width + LEFT, TOP, (number + 1) * width - RIGHT, height - BOTTOM),
        )
        for number, panel in enumerate(panels)
    ]
    picture = TEMPLATES.get_template("picture.svg").render(
        title=title, legend=legend, panels=placed, width=width * len(panels), height=height
    )
    return re.sub(r"var\(--(\w+)\)", lambda name: PALETTE[name[1]], picture)

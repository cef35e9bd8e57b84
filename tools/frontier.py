"""Size and error of all compressed networks of an experiment, as an SVG file for the documentation.

    python -m tools.frontier results/compression/lenet5 docs/images/frontier-lenet5.svg

A colour is a family, a line the frontier of one run (one seed of one variant): its networks than which none
is smaller and better on test data. Rings: networks that saw moved pictures. Crosses: published.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report import read
from experiments.report.frontiers import unbeaten
from experiments.report.markup import Html, el
from experiments.report.results import Result
from experiments.report.values import short
from tools.curves import BOTTOM, COLOURS, LEFT, RIGHT, TOP, Scale, drawing, scale, ticks

PANEL, HEIGHT = 520, 480
LOWER = TOP + 24  # a legend of two lines
SIZES = {"weights": "weights left", "flops": "multiply-accumulates and biases left"}
FAMILIES = {
    "mean-field": "mean-field",
    "k-tied": "k-tied",
    "matrix-normal": "matrix normal",
    "mn-diagonal": "MN + diagonal",
    "scaled-mn": "scaled matrix normal",
    "radial": "radial",
}
Point = tuple[float, float]


def family_of(variant: str) -> str:
    """The name under which a variant is drawn.

    Examples:
        >>> family_of("scaled-mn-2700-weights-moved")
        'scaled matrix normal'
    """
    return next((name for start, name in FAMILIES.items() if variant.startswith(start)), variant)


def lines_of(
    found: Sequence[Result], size: str, worst: float
) -> list[tuple[str, bool, list[Point]]]:
    """Of every run its family, whether pictures were moved, and its frontier up to an error, in per cent."""
    lines = []
    for one in found:
        points = [
            (float(point[size]), 100 * float(point["error"]))
            for point in one.figures["frontier"]["points"]
        ]
        kept = [point for point in unbeaten(points) if point[1] <= worst]
        if kept:
            lines.append((family_of(one.variant), "moved" in one.variant, kept))
    return lines


def published(found: Sequence[Result], size: str) -> dict[str, Point]:
    """What others reported, by name."""
    rivals: Mapping[str, Any] = {}
    for one in found:
        rivals = {**rivals, **one.figures["frontier"].get("published", {})}
    return {name: (float(one[size]), 100 * float(one["error"])) for name, one in rivals.items()}


def grid(x: Scale, y: Scale, xs: Sequence[float], ys: Sequence[float], left: float) -> list[Html]:
    """Lines at round numbers, and the numbers."""
    end, floor = left + PANEL - RIGHT, HEIGHT - BOTTOM
    places = [
        number * power for power in ticks([min(xs) / 10, max(xs)], True) for number in (1, 2, 5)
    ]
    parts = []
    for value in (one for one in places if min(xs) <= one <= max(xs)):
        at = f"{x(value):.1f}"
        parts.append(el("path", d=f"M{at} {LOWER} V{floor}", stroke="#e4e4e4"))
        parts.append(el("text", f"{value:,.0f}", x=at, y=floor + 16, text_anchor="middle"))
    for value in ticks(ys, False):
        parts.append(el("path", d=f"M{left + LEFT} {y(value):.1f} H{end}", stroke="#e4e4e4"))
        parts.append(
            el("text", short(value), x=left + LEFT - 6, y=f"{y(value) + 4:.1f}", text_anchor="end")
        )
    return parts


def panel(found: Sequence[Result], size: str, left: float, worst: float) -> list[Html]:
    """Error against one measure of size."""
    lines, rivals = lines_of(found, size, worst), published(found, size)
    every = [point for _, _, points in lines for point in points] + list(rivals.values())
    xs, ys = [x for x, _ in every], [y for _, y in every]
    floor = HEIGHT - BOTTOM
    x = scale(xs, left + LEFT, left + PANEL - RIGHT, True)
    y = scale(ys, floor, LOWER, False)
    parts = grid(x, y, xs, ys, left)
    parts.append(el("text", "test error (%)", x=left + LEFT, y=LOWER - 8))
    middle = left + (LEFT + PANEL - RIGHT) / 2
    parts.append(el("text", SIZES[size], x=middle, y=HEIGHT - 8, text_anchor="middle"))
    for name, moved, points in lines:
        colour = colour_of(name)
        places = [(x(a), y(b)) for a, b in points]
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(el("polyline", points=drawn, fill="none", stroke=colour, stroke_width=1.5))
        look = {"fill": "#ffffff" if moved else colour, "stroke": colour, "stroke_width": 1.5}
        parts += [el("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=3.5, **look) for a, b in places]
    for number, (name, (a, b)) in enumerate(sorted(rivals.items(), key=lambda one: one[1])):
        cross = f"M{x(a) - 4:.1f} {y(b) - 4:.1f} l8 8 m0 -8 l-8 8"
        parts.append(el("path", d=cross, stroke="#222222", stroke_width=1.5))
        beside = y(b) + (-16, -5, 12, 23)[number % 4]  # many are at 1 %, with about the same size
        parts.append(el("text", name, x=f"{x(a) + 6:.1f}", y=f"{beside:.1f}", font_size=9))
    return parts


def colour_of(name: str) -> str:
    """The same for a family in every picture."""
    names = list(FAMILIES.values())
    return COLOURS[names.index(name) % len(COLOURS)] if name in names else COLOURS[-1]


def picture(found: Sequence[Result], worst: float) -> Html:
    """Both measures of size side by side, below a legend."""
    names = [name for name in FAMILIES.values() if name in {family_of(r.variant) for r in found}]
    words = [(f"● {name}", colour_of(name)) for name in names]
    words += [("○ pictures moved", "#555555"), ("× published, counted right", "#222222")]
    half = -(-len(words) // 2)
    legend = [
        el("text", text, x=LEFT + 240 * (i % half), y=22 + 20 * (i // half), fill=colour)
        for i, (text, colour) in enumerate(words)
    ]
    panels = [
        part
        for number, size in enumerate(SIZES)
        for part in panel(found, size, number * PANEL, worst)
    ]
    title = f"Size and error: {found[0].title}"
    return drawing(title, PANEL * len(SIZES), HEIGHT, [*legend, *panels])


def main() -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--worst", type=float, default=2.0, help="errors above are left out, per cent"
    )
    options = parser.parse_args()
    found, problems = read(options.results)
    if problems or not found:
        raise SystemExit(f"{options.results}: {problems or 'no result files'}")
    options.output.write_text(picture(found, options.worst) + "\n")


if __name__ == "__main__":
    main()

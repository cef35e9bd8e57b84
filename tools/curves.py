"""Curves of an experiment over what it varied, as an SVG file for the documentation.

    python -m tools.curves results/tempering/toy docs/images/tempering-toy.svg

Lines with dots are ours (means over seeds), dotted lines with rings are published values or closed forms;
dashed upright lines are places that the result files mark, such as η = 1.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.report import compare, read
from experiments.report.figures import wide
from experiments.report.markup import Html, el
from experiments.report.sweeps import Curve, Study, named, pooled
from experiments.report.values import short

PANEL, HEIGHT = 360, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 64, 44
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#555555")
Scale = Callable[[float], float]


def scale(values: Sequence[float], start: float, end: float, logarithmic: bool) -> Scale:
    """From values to places between two ends, with a little room."""
    turn = math.log if logarithmic else float
    low, high = turn(min(values)), turn(max(values))
    room = 0.05 * (high - low) or 0.5
    span = high - low + 2 * room
    return lambda value: start + (end - start) * (turn(value) - low + room) / span


def ticks(values: Sequence[float], logarithmic: bool) -> list[float]:
    """Round numbers in the range of the values."""
    low, high = min(values), max(values)
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = 1 if len(powers) < 8 else 2
        return [10.0**p for p in powers if low * 0.9 <= 10.0**p <= high * 1.1][::every]
    step = 10 ** math.floor(math.log10((high - low) or 1.0))
    step *= 0.5 if (high - low) / step < 3 else 1.0
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def panel(
    left: float, x_name: str, score: str, series: Mapping[str, Curve], marks: Mapping[str, float]
) -> list[Html]:
    """One score."""
    title, factor = named(score)
    lines = []
    for number, curve in enumerate(series.values()):
        ours = {x: factor * sum(v) / len(v) for x, v in curve.measured.items()}
        lines.append((COLOURS[number % len(COLOURS)], ours, False))
        beside = {x: factor * v for x, v in curve.beside.items()}
        lines.append((COLOURS[number % len(COLOURS)], beside, True))
    xs = [x for _, points, _ in lines for x in points] + list(marks.values())
    ys = [y for _, points, _ in lines for y in points.values()]
    steep = wide(ys) and factor == 1  # shares in per cent are read on an even scale
    x = scale(xs, left + LEFT, left + PANEL - RIGHT, True)
    y = scale(ys, HEIGHT - BOTTOM, TOP, steep)
    parts = [el("text", title + (" (log)" if steep else ""), x=left + LEFT, y=TOP - 10)]
    for value in ticks(xs, True):
        parts.append(el("path", d=f"M{x(value):.1f} {TOP} V{HEIGHT - BOTTOM}", stroke="#e4e4e4"))
        parts.append(
            el(
                "text",
                short(value),
                x=f"{x(value):.1f}",
                y=HEIGHT - BOTTOM + 16,
                text_anchor="middle",
            )
        )
    for value in ticks(ys, steep):
        parts.append(
            el("path", d=f"M{left + LEFT} {y(value):.1f} H{left + PANEL - RIGHT}", stroke="#e4e4e4")
        )
        parts.append(
            el("text", short(value), x=left + LEFT - 6, y=f"{y(value) + 4:.1f}", text_anchor="end")
        )
    middle = left + (LEFT + PANEL - RIGHT) / 2
    parts.append(el("text", x_name, x=middle, y=HEIGHT - 8, text_anchor="middle"))
    for name, at in marks.items():
        d = f"M{x(at):.1f} {TOP} V{HEIGHT - BOTTOM}"
        parts.append(el("path", d=d, stroke="#cc0000", stroke_dasharray="6 4"))
        inside = x(at) < left + PANEL - 50  # else the words go to the left of their line
        aside = {"x": f"{x(at) + (4 if inside else -4):.1f}", "y": TOP + 12, "fill": "#cc0000"}
        parts.append(el("text", name, text_anchor="start" if inside else "end", **aside))
    for colour, points, dotted in lines:
        places = [(x(a), y(points[a])) for a in sorted(points)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        dash = "2 4" if dotted else None
        style = {"fill": "none", "stroke": colour, "stroke_width": 2, "stroke_dasharray": dash}
        parts.append(el("polyline", points=line, **style))
        # rings around our dots, so that both are seen where they agree
        look = {"r": 5.5, "fill": "none", "stroke": colour} if dotted else {"r": 3, "fill": colour}
        parts += [el("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", **look) for a, b in places]
    return parts


def picture(x_name: str, study: Study, scores: Sequence[str], title: str) -> Html:
    """Every score beside the others, below a legend."""
    names = list(dict.fromkeys(name for score in scores for name in study.scores[score]))
    legend = [
        el("text", f"● {name}", x=LEFT + 170 * number, y=22, fill=COLOURS[number % len(COLOURS)])
        for number, name in enumerate(names)
    ]
    if any(c.beside for score in scores for c in study.scores[score].values()):
        words = "○ dotted: published, or exact"
        legend.append(el("text", words, x=LEFT + 170 * len(names), y=22, fill="#555555"))
    panels = [
        part
        for number, score in enumerate(scores)
        for part in panel(number * PANEL, x_name, score, study.scores[score], study.marks)
    ]
    return drawing(title, PANEL * len(scores), HEIGHT, [*legend, *panels])


def drawing(title: str, width: int, height: int, parts: Sequence[Html]) -> Html:
    """Parts on white ground."""
    return el(
        "svg",
        el("title", title),
        el("rect", width=width, height=height, fill="#ffffff"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
        font_family="sans-serif",
        font_size=12,
    )


def main() -> None:
    """Read, pool, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--scores", nargs="*", default=None, help="all that the files tell if left out"
    )
    options = parser.parse_args()
    found, problems = read(options.results)
    if problems or not found:
        raise SystemExit(f"{options.results}: {problems or 'no result files'}")
    (group,) = compare(found).groups
    ((x, study),) = pooled(group.rows)[0].items()
    scores = options.scores or list(study.scores)
    name = {"tau": "τ", "neurons": "neurons N"}.get(x, x)
    options.output.write_text(picture(name, study, scores, group.title) + "\n")


if __name__ == "__main__":
    main()

"""A race as a picture: −ELBO against seconds, both on logarithmic axes, as SVG without scripts."""

import json
import math
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 110
COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7")
DASHES = ("", "6 3", "", "6 3", "2 3", "8 3 2 3")


def picture(result: dict[str, Any]) -> str:
    """The SVG of a race's result."""
    curves = result["contenders"]
    points = {
        name: [(s, v) for s, v in zip(c["seconds"], c["neg_elbo"], strict=True) if s > 0]
        for name, c in curves.items()
    }
    seconds = [s for line in points.values() for s, _ in line]
    values = [v for line in points.values() for _, v in line]
    x = _axis(min(seconds), max(seconds), LEFT, WIDTH - RIGHT)
    y = _axis(min(values), max(values), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(_told(curves))}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">Validation −ELBO (nats per example) against '
        "seconds of training steps</text>",
    ]
    for value in _ticks(min(values), max(values)):
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value)))
        parts.append(_text(LEFT - 6, y(value) + 4, f"{value:g}", "end"))
    for value in _ticks(min(seconds), max(seconds)):
        parts.append(_line(x(value), TOP, x(value), HEIGHT - BOTTOM))
        parts.append(_text(x(value), HEIGHT - BOTTOM + 16, f"{value:g} s", "middle"))
    for number, (name, line) in enumerate(points.items()):
        colour, dash = COLOURS[number % 6], DASHES[number % 6]
        path = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in line)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{path}" {style}/>')
        column, row = number % 2, number // 2
        left, top = LEFT + column * 330, HEIGHT - BOTTOM + 42 + row * 20
        parts.append(f'<path d="M{left} {top - 4} h30" {style}/>')
        parts.append(_text(left + 38, top, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _axis(low: float, high: float, start: float, end: float) -> Any:
    """A function from value to position, logarithmic."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * math.log(value / low) / span


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**d for d in decades for m in (1, 2, 5) if low <= m * 10.0**d <= high]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _told(curves: dict[str, Any]) -> str:
    """The picture in words."""
    ends = (
        f"{name} {c['neg_elbo'][-1]:.2f} after {c['seconds'][-1]:.0f} s"
        for name, c in curves.items()
    )
    return f"−ELBO falls with time: {'; '.join(ends)}."


def main(source: Path, target: Path) -> None:
    """Write the picture of a result file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(picture(json.loads(source.read_text())))

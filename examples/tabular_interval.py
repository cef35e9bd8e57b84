"""A predictive interval against its data, as an SVG file: docs/images/tabular-interval.svg.

    python examples/tabular_interval.py

The data have a gap in the middle; how many targets of 2,000 new rows lie inside is printed.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from kasuri.sklearn import BayesianRegressor

Array = np.ndarray
WIDTH, HEIGHT, MARGIN = 720, 380, 44
X_RANGE, Y_RANGE = (-5.0, 4.0), (-4.0, 3.5)
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#555555"


def function(x: Array) -> Array:
    """What the network does not know."""
    return np.sin(2 * x) + x / 2


def data(rows: int, seed: int) -> tuple[Array, Array]:
    """Rows from -4 to -1 and from 1 to 3, with noise of standard deviation 0.2."""
    rng = np.random.default_rng(seed)
    left = rng.uniform(size=rows) < 0.6
    x = np.where(left, rng.uniform(-4, -1, rows), rng.uniform(1, 3, rows))
    return x.reshape(-1, 1), function(x) + rng.normal(size=rows) * 0.2


def place(x: float, y: float) -> tuple[float, float]:
    """Where a point of the data is in the picture."""
    across = (x - X_RANGE[0]) / (X_RANGE[1] - X_RANGE[0])
    up = (y - Y_RANGE[0]) / (Y_RANGE[1] - Y_RANGE[0])
    return MARGIN + across * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)


def path(x: Array, y: Array) -> str:
    return " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in zip(x, y, strict=True))


def text(words: str, x: float, y: float, anchor: str = "start", fill: str = "#000000") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def axes() -> list[str]:
    """Grid lines and numbers."""
    parts = []
    for x in range(-5, 5):
        (across, bottom), (_, top) = place(x, Y_RANGE[0]), place(x, Y_RANGE[1])
        parts.append(f'<path d="M{across:.1f} {bottom:.1f} V{top:.1f}" stroke="#dddddd"/>')
        parts.append(text(str(x), across, bottom + 18, "middle"))
    for y in range(-4, 4):
        (left, height), (right, _) = place(X_RANGE[0], y), place(X_RANGE[1], y)
        parts.append(f'<path d="M{left:.1f} {height:.1f} H{right:.1f}" stroke="#dddddd"/>')
        parts.append(text(str(y), left - 8, height + 4, "end"))
    return parts


def picture(model: BayesianRegressor, x: Array, y: Array, title: str) -> str:
    """Data, mean and 90 % interval of a fitted model."""
    grid = np.linspace(*X_RANGE, 181)
    mean = model.predict(grid.reshape(-1, 1))
    low, high = model.predict_interval(grid.reshape(-1, 1), level=0.9)
    band = path(np.concatenate([grid, grid[::-1]]), np.concatenate([low, high[::-1]]))
    line, truth = 'fill="none" stroke-width="2"', path(grid, function(grid))
    dots = [
        f'<circle cx="{across:.1f}" cy="{up:.1f}" r="2.5" fill="{ORANGE}"/>'
        for across, up in (place(*point) for point in zip(x[:, 0], y, strict=True))
    ]
    legend = (("data", ORANGE), ("mean and 90 % interval", BLUE), ("true function", GREY))
    words = [text(name, MARGIN + 20 + 190 * i, 24, fill=f) for i, (name, f) in enumerate(legend)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return "\n".join(
        (
            f'{head} font-family="sans-serif" font-size="13">',
            f"<title>{title}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *axes(),
            f'<polygon points="{band}" fill="{BLUE}" fill-opacity="0.25"/>',
            f'<polyline points="{truth}" {line} stroke="{GREY}" stroke-dasharray="5 4"/>',
            f'<polyline points="{path(grid, mean)}" {line} stroke="{BLUE}"/>',
            *dots,
            *words,
            "</svg>\n",
        )
    )


def main() -> None:
    """Fit, draw, and count new targets inside the interval."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--output", type=Path, default=Path("docs/images/tabular-interval.svg"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work
    x, y = data(rows=200, seed=0)
    epochs = "auto" if args.epochs is None else args.epochs
    model = BayesianRegressor((50, 50), activation="tanh", max_epochs=epochs, random_state=0)
    model.fit(x, y)
    new, targets = data(rows=2000, seed=1)
    low, high = model.predict_interval(new, level=0.9)
    inside = ((low <= targets) & (targets <= high)).mean()
    std = model.predict([[-2.5], [0.0], [2.0]], return_std=True)[1]
    title = (
        f"{inside:.1%} of 2,000 new targets are inside the 90 % interval; standard deviation "
        f"{std[0]:.2f} and {std[2]:.2f} among the data, {std[1]:.2f} in the gap"
    )
    args.output.write_text(picture(model, x, y, title))
    print(title)


if __name__ == "__main__":
    main()

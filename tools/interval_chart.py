"""A predictive interval against its data, as docs/images/tabular-interval.svg.

    python -m tools.interval_chart

The data have a gap in the middle; how many targets of 2,000 new rows lie inside is printed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.report.panels import DOTTED, Panel, Series
from kasuri.sklearn import BayesianRegressor
from tools.charts import COLOURS, PALETTE, draw

Array = np.ndarray
OUT = Path(__file__).parents[1] / "docs/images/tabular-interval.svg"
BLUE, ORANGE = COLOURS[:2]


def function(x: Array) -> Array:
    """What the network does not know."""
    return np.sin(2 * x) + x / 2


def data(rows: int, seed: int) -> tuple[Array, Array]:
    """Rows from -4 to -1 and from 1 to 3, with noise of standard deviation 0.2."""
    rng = np.random.default_rng(seed)
    left = rng.uniform(size=rows) < 0.6
    x = np.where(left, rng.uniform(-4, -1, rows), rng.uniform(1, 3, rows))
    return x.reshape(-1, 1), function(x) + rng.normal(size=rows) * 0.2


def curve(x: Array, y: Array, colour: str, **style: Any) -> Series:
    return Series(list(zip(x.tolist(), y.tolist(), strict=True)), colour, dots="", **style)


def picture(model: BayesianRegressor, x: Array, y: Array, title: str) -> str:
    """Data, mean and 90 % interval of a fitted model."""
    grid = np.linspace(-5, 4, 181)
    low, high = model.predict_interval(grid.reshape(-1, 1), level=0.9)
    points = Series(list(zip(x[:, 0].tolist(), y.tolist(), strict=True)), ORANGE, width=0)
    lines = [
        points,
        curve(grid, function(grid), PALETTE["muted"], dash=DOTTED),
        curve(grid, model.predict(grid.reshape(-1, 1)), BLUE),
        *(curve(grid, end, BLUE, width=1) for end in (low, high)),
    ]
    legend = [("● data", ORANGE), ("mean and 90 % interval", BLUE)]
    legend.append(("dotted: true function", PALETTE["muted"]))
    panel = Panel("", "x", lines, log_x=False)
    return draw(title, legend, [panel], width=720, height=380)


def main(epochs: int | str = "auto") -> None:
    """Fit, draw, and count new targets inside the interval."""
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work
    x, y = data(rows=200, seed=0)
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
    OUT.write_text(picture(model, x, y, title))
    print(title)


if __name__ == "__main__":
    main()

"""What the choice of the temperature is worth, on tables made up to be different.

python examples/tabular_temperature.py
"""

import time
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kasuri.sklearn import BayesianRegressor

Array = np.ndarray
Random = np.random.Generator


def linear(rng: Random, rows: int) -> tuple[Array, Array]:
    """Fifty columns, of which three matter, and as much noise as one of these."""
    x = rng.normal(size=(rows, 50))
    return x, x[:, :3].sum(1) + rng.normal(size=rows)


def noise(rng: Random, rows: int) -> tuple[Array, Array]:
    """Twenty columns and a target that has nothing to do with them."""
    return rng.normal(size=(rows, 20)), rng.normal(size=rows)


def sine(rng: Random, rows: int) -> tuple[Array, Array]:
    """Two waves of one column with noise of 0.1."""
    x = rng.uniform(-3, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=rows)


def waves(rng: Random, rows: int) -> tuple[Array, Array]:
    """A product of waves in two columns with noise of 0.1."""
    x = rng.uniform(-3, 3, (rows, 2))
    return x, np.sin(2 * x[:, 0]) * np.cos(x[:, 1]) + 0.1 * rng.normal(size=rows)


def friedman(rng: Random, rows: int) -> tuple[Array, Array]:
    """Friedman's first function: ten columns, five of which matter, noise of 1."""
    x = rng.uniform(size=(rows, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    return x, y + 10 * x[:, 3] + 5 * x[:, 4] + rng.normal(size=rows)


TABLES = [
    ("100 rows, 50 columns, linear", linear, 100),
    ("200 rows, 20 columns, nothing but noise", noise, 200),
    ("1,000 rows of a sine", sine, 1000),
    ("400 rows of waves in two columns", waves, 400),
    ("500 rows, Friedman's function", friedman, 500),
]
SETTINGS: list[dict[str, float]] = [{}, {"temperature": 1.0}, {"temperature": 0.1}]


def ours(options: dict[str, float], seed: int, data: tuple[Array, ...]) -> list[float]:
    """Error, log-likelihood, share inside the 90 % interval, temperature, seconds."""
    x, y, x_new, y_new = data
    began = time.monotonic()
    model = BayesianRegressor(random_state=seed, **options).fit(x, y)
    seconds = time.monotonic() - began
    metrics = model.evaluate(x_new, y_new)
    return [metrics["rmse"], -metrics["nll"], metrics["coverage_90"], model.temperature_, seconds]


def theirs(epochs: int, seed: int, data: tuple[Array, ...]) -> float:
    """Error of scikit-learn's own network of the same size, as it comes."""
    x, y, x_new, y_new = data
    net = MLPRegressor(hidden_layer_sizes=(50,), max_iter=epochs, random_state=seed)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model = make_pipeline(StandardScaler(), net).fit(x, y)
    return float(np.sqrt(np.mean((model.predict(x_new) - y_new) ** 2)))


def main(epochs: int | None = None, seeds: int = 3) -> None:
    """Print one row per setting: means over seeds, on two thousand other rows."""
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work
    length = {} if epochs is None else {"max_epochs": epochs}
    print("| table | set | error | log-likelihood | inside 90 % | temperatures | seconds |")
    print("| :-- | :-- | --: | --: | --: | :-- | --: |")
    for name, make, rows in TABLES:
        tables = [
            (*make(np.random.default_rng(seed), rows), *make(np.random.default_rng(9 + seed), 2000))
            for seed in range(seeds)
        ]
        for options in SETTINGS:
            runs = [ours(options | length, seed, data) for seed, data in enumerate(tables)]
            error, likelihood, inside, _, seconds = np.mean(runs, 0)
            said = ", ".join(f"`{key}={value}`" for key, value in options.items()) or "nothing"
            chosen = ", ".join(f"{run[3]:g}" for run in runs)
            print(
                f"| {name} | {said} | {error:.3f} | {likelihood:.2f} | {inside:.0%} | {chosen} | "
                f"{seconds:.0f} |",
                flush=True,
            )
        error = np.mean([theirs(epochs or 1000, seed, data) for seed, data in enumerate(tables)])
        print(f"| {name} | scikit-learn's MLPRegressor | {error:.3f} | | | | |", flush=True)


if __name__ == "__main__":
    main()

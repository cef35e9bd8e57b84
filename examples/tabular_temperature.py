"""Where the default temperature and rate are not the best: few noisy rows, and a smooth curve.

python examples/tabular_temperature.py
"""

import argparse

import numpy as np
import torch

from weft.sklearn import BayesianRegressor

Table = tuple[np.ndarray, np.ndarray]


def linear(seed: int, rows: int) -> Table:
    """Fifty columns, of which three matter, and as much noise as one of these."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 50))
    return x, x[:, :3].sum(1) + rng.normal(size=rows)


def wave(seed: int, rows: int) -> Table:
    """A sine of one column with noise of 0.1."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (rows, 1))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=rows)


CASES = [  # name, table, rows, what is set
    ("100 rows, 50 columns, linear", linear, 100, ({}, {"temperature": 1.0}, {"temperature": 0.1})),
    ("1,000 rows of a sine", wave, 1000, ({}, {"learning_rate": 0.01})),
]


def main() -> None:
    """Print one row per setting: means over seeds, on a thousand other rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work
    length = {} if args.epochs is None else {"max_epochs": args.epochs}
    print("| table | set | error | log-likelihood | inside 90 % |")
    print("| :-- | :-- | --: | --: | --: |")
    for name, table, rows, settings in CASES:
        for changes in settings:
            found = []
            for seed in range(args.seeds):
                model = BayesianRegressor(random_state=seed, **changes, **length)
                told = model.fit(*table(seed, rows)).evaluate(*table(100 + seed, 1000))
                found.append([told["rmse"], -told["nll"], told["coverage_90"]])
            error, likelihood, inside = np.mean(found, 0)
            said = ", ".join(f"`{key}={value}`" for key, value in changes.items()) or "nothing"
            print(
                f"| {name} | {said} | {error:.2f} | {likelihood:.2f} | {inside:.0%} |", flush=True
            )


if __name__ == "__main__":
    main()

"""Two ways to choose the temperature: follow validation in one run, or successive halving.

    python -m benchmarks.temperature    # then: make tables

The network, the data and the learning rate are the same. "follow" is `kasuri.fit`: one run, whose temperature
moves at validations in its second half. "halving" is `kasuri.fit_halving`: successive halving from one warm
start, which takes as many steps as one run.
"""

import argparse
import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import kasuri
from benchmarks import environment
from experiments import data as datasets
from experiments.networks import MLP
from kasuri.storage import write_atomically
from kasuri.training.defaults import batch_size

LENGTHS = (  # data, epochs, seeds: a third of the default length, and the default
    ("digits", 160, 6),
    ("breast-cancer", 320, 6),
    ("digits", 500, 4),
    ("breast-cancer", 1334, 4),
)
RATE = 5e-3


def network(data: Any, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return kasuri.bayesianize(MLP((100, 100))(data), kasuri.MeanField(), estimator="local")


def follow(data: Any, epochs: int, rate: float, seed: int) -> tuple[kasuri.ELBO, float]:
    fitted = kasuri.fit(
        network(data, seed), data.train, data.valid, epochs=epochs, learning_rate=rate, seed=seed
    )
    return fitted.objective, fitted.temperature


def halving(data: Any, epochs: int, rate: float, seed: int) -> tuple[kasuri.ELBO, float]:
    fitted = kasuri.fit_halving(
        network(data, seed),
        data.train,
        data.valid,
        epochs=epochs,
        learning_rate=rate,
        seed=seed,
    )
    return fitted.objective, fitted.temperature


WAYS = {"follow": follow, "halving": halving}


def measured(data: Any, epochs: int, seed: int, way: str, rate: float) -> dict[str, Any]:
    """One network, trained in one of the ways and tested."""
    began = time.process_time()
    elbo, temperature = WAYS[way](data, epochs, rate, seed)
    spent = time.process_time() - began
    scores = kasuri.evaluate(elbo, data.test, samples=100)
    told = {"way": way, "seed": seed, "temperature": temperature, "cpu_seconds": round(spent, 2)}
    return told | {key: scores[key] for key in ("nll", "nll_sem", "accuracy", "ece")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--out", type=Path, default=Path("results/numerics/temperature.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    before, rows = environment.load(), []
    for name, epochs, seeds in LENGTHS:
        data = datasets.load(name)
        steps = epochs * math.ceil(len(data.train) / batch_size(len(data.train)))
        for seed in range(seeds):
            for way in WAYS:
                found = measured(data, epochs, seed, way, options.rate)
                rows.append({"data": name, "epochs": epochs, "steps": steps} | found)
                print(rows[-1], flush=True)
    told = {
        "settings": {
            "command": "python -m benchmarks.temperature",
            "network": "MLP with two hidden layers of 100, MeanField(), local",
            "learning_rate": options.rate,
        },
        "processor": environment.processor(),
        "load": before,
        "versions": environment.versions(only_kasuri=True),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **environment.commit(),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, (json.dumps(told, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

"""Two ways to choose the temperature: follow validation in one run, or successive halving.

    python -m benchmarks.temperature digits --seeds 0 1 2

The network, the data and the learning rate are the same. "follow" is `weft.fit`: one run, whose temperature
moves at validations in its second half. "halving" is `weft.fit_halving`: successive halving from one warm
start, which takes as many steps as one run.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import weft
from weft.experiments.networks import MLP
from weft.files import write_atomically

EPOCHS = {"digits": 160, "breast-cancer": 320}
RATE = 5e-3


def network(data: Any, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return weft.bayesianize(MLP((100, 100))(data), weft.MeanField(), estimator="local")


def follow(data: Any, epochs: int, rate: float, seed: int) -> tuple[weft.ELBO, float]:
    fitted = weft.fit(
        network(data, seed), data.train, data.valid, epochs=epochs, learning_rate=rate, seed=seed
    )
    return fitted.objective, fitted.temperature


def halving(data: Any, epochs: int, rate: float, seed: int) -> tuple[weft.ELBO, float]:
    fitted = weft.fit_halving(
        network(data, seed),
        data.train,
        data.valid,
        epochs=epochs,
        learning_rate=rate,
        seed=seed,
    )
    return fitted.objective, fitted.temperature


WAYS = {"follow": follow, "halving": halving}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--results", type=Path, default=Path("results/numerics"))
    options = parser.parse_args()
    data = weft.data.load(options.data)
    epochs = options.epochs or EPOCHS[options.data]
    place = options.results / f"temperature-{options.data}.json"
    rows = json.loads(place.read_text())["rows"] if place.exists() else []
    for seed in options.seeds:
        for name in options.ways:
            began = time.process_time()
            elbo, temperature = WAYS[name](data, epochs, options.rate, seed)
            spent = time.process_time() - began
            scores = weft.evaluate(elbo, data.test, samples=100)
            row = {
                "way": name,
                "seed": seed,
                "temperature": temperature,
                "cpu_seconds": round(spent, 2),
            }
            row |= {key: scores[key] for key in ("nll", "nll_sem", "accuracy", "ece")}
            rows = [one for one in rows if (one["way"], one["seed"]) != (name, seed)] + [row]
            print(row, flush=True)
    settings = {"data": options.data, "epochs": epochs, "learning_rate": options.rate}
    told = {**settings, "torch": torch.__version__, "rows": rows}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, (json.dumps(told, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

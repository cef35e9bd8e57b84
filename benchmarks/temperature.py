"""Two ways to choose the temperature: follow validation in one run, or successive halving.

    python -m benchmarks.temperature digits --seeds 0 1 2

The network, the data and the learning rate are the same. "follow" is `weft.fit`: one run, whose temperature
moves at validations in its second half. "halving" is successive halving from one warm start: a quarter of
the steps at the starting point, then four temperatures of which the better half goes on, twice, and the
winner to the end; all rungs together take as many steps as one run. "halving, twice the steps" has rungs and
end of double length.
"""

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch

import weft
from weft.experiments.networks import MLP
from weft.files import write_atomically
from weft.tempering import starting_point
from weft.training.defaults import constant, cosine
from weft.training.validation import validate

FACTORS = (1 / 9, 1 / 3, 1.0, 3.0)  # of the starting point
EPOCHS = {"digits": 160, "breast-cancer": 320}
RATE = 5e-3


def network(data: Any, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return weft.bayesianize(MLP((100, 100))(data), weft.MeanField(), estimator="local")


def follow(data: Any, epochs: int, seed: int) -> tuple[weft.ELBO, float]:
    fitted = weft.fit(
        network(data, seed), data.train, data.valid, epochs=epochs, learning_rate=RATE, seed=seed
    )
    return fitted.objective, fitted.temperature


def halving(data: Any, epochs: int, seed: int, longer: int = 1) -> tuple[weft.ELBO, float]:
    bnn = network(data, seed)
    weights = sum(q.numel() for _, q in weft.named_posteriors(bnn))
    start = starting_point(len(data.train), weights)
    warm = weft.fit(
        bnn,
        data.train,
        data.valid,
        temperature=start,
        epochs=epochs // 4,
        learning_rate=RATE,
        scheduler=constant,
        keep="last",
        seed=seed,
    ).objective
    warm.kl_weight = weft.schedules.Constant(1.0)
    alive = {}
    for factor in FACTORS:
        one = copy.deepcopy(warm)
        one.temperature = weft.schedules.Constant(min(1.0, factor * start))
        alive[factor] = one
    for share in (16, 8):  # four go on for a 16th each, then two for an 8th
        for one in alive.values():
            go_on(one, data, longer * epochs // share, constant, seed)
        scores = {
            f: validate(one, data.valid.x, data.valid.y, 32, 0)["nll"] for f, one in alive.items()
        }
        best = sorted(scores, key=scores.__getitem__)[: len(alive) // 2]
        alive = {factor: alive[factor] for factor in best}
    ((_, winner),) = alive.items()
    go_on(winner, data, longer * epochs // 4, cosine, seed)
    return winner, winner.weight_at(0)


def go_on(elbo: weft.ELBO, data: Any, epochs: int, scheduler: Any, seed: int) -> None:
    weft.fit(
        elbo,
        data.train,
        data.valid,
        epochs=epochs,
        learning_rate=RATE,
        scheduler=scheduler,
        keep="best" if scheduler is cosine else "last",
        seed=seed + epochs,
    )


WAYS = {
    "follow": follow,
    "halving": halving,
    "halving, twice the steps": lambda data, epochs, seed: halving(data, epochs, seed, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    data = weft.data.load(options.data)
    epochs = options.epochs or EPOCHS[options.data]
    place = options.results / f"temperature-{options.data}.json"
    rows = json.loads(place.read_text())["rows"] if place.exists() else []
    for seed in options.seeds:
        for name, way in WAYS.items():
            began = time.process_time()
            elbo, temperature = way(data, epochs, seed)
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
    told = {"data": options.data, "epochs": epochs, "torch": torch.__version__, "rows": rows}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, (json.dumps(told, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

"""Twenty small networks trained together and one after the other: `python -m benchmarks.together`.

The network of the UCI benchmark, 13-50-1, batches of 64, as `kasuri.fit_many` and `kasuri.fit` train it.
Writes results/numerics/together.json. A call is a short training run of all twenty, set-up included.
"""

import argparse
import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

import kasuri
from benchmarks import environment
from benchmarks.timing import Plan, measure
from kasuri.storage import write_atomically

OUT = environment.ROOT / "results/numerics/together.json"
ROWS, INPUTS, BATCH = 455, 13, 64
FAMILIES: dict[str, kasuri.Family] = {
    "Point()": kasuri.Point(),
    "MeanField()": kasuri.MeanField(),
    "KTied(rank=2)": kasuri.KTied(rank=2),
    "MatrixNormal()": kasuri.MatrixNormal(),
    "Radial()": kasuri.Radial(),
    'Radial(grouping="double")': kasuri.Radial(grouping="double"),
}


def calls(family: kasuri.Family, epochs: int, count: int) -> dict[str, Callable[[], object]]:
    """The same training, in both ways."""
    generator = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randn(ROWS, INPUTS, generator=generator),
            torch.randn(ROWS, 1, generator=generator),
        )
        for _ in range(count)
    ]
    radial = isinstance(family, kasuri.Radial)
    options = {
        "prior": kasuri.RadialPrior(others=kasuri.HeNormal()) if radial else kasuri.HeNormal(),
        "temperature": 0.1,
        "epochs": epochs,
        "batch_size": BATCH,
        "seed": 0,
        "show": False,
    }

    def networks() -> list[nn.Module]:
        return [
            kasuri.bayesianize(
                nn.Sequential(nn.Linear(INPUTS, 50), nn.ReLU(), nn.Linear(50, 1)), family
            )
            for _ in data
        ]

    def together() -> object:
        return kasuri.fit_many(networks(), data, **options)

    def apart() -> object:
        return [
            kasuri.fit(net, part, **(options | {"prior": copy.deepcopy(options["prior"])}))
            for net, part in zip(networks(), data, strict=True)
        ]

    return {"together": together, "one after the other": apart}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    plan = Plan(rounds=given.rounds, warmup=1, burst=0.0)
    found = {}
    for name, family in FAMILIES.items():
        times, _ = measure(calls(family, given.epochs, given.networks), "together", plan)
        found[name] = {which: one.as_json() for which, one in times.items()}
        print(
            f"{name}: one after the other takes {times['one after the other'].median_ratio:.1f} times as long"
        )
    told = {
        "networks": given.networks,
        "rows": ROWS,
        "batch": BATCH,
        "epochs": given.epochs,
        "threads": given.threads,
        "processor": environment.processor(),
        "versions": environment.versions(only_kasuri=True),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **environment.commit(),
        "families": found,
    }
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, text.encode())


if __name__ == "__main__":
    main()

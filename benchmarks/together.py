"""Twenty small networks trained together and one after the other: `python -m benchmarks.together`.

The network of the UCI benchmark, 13-50-1, batches of 64, as `kasuri.training.fit_many` and
`kasuri.fit` train it.
Writes results/numerics/together.json. A call is a short training run of all twenty, set-up included.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn

import kasuri
from benchmarks import results
from benchmarks.timing import Plan, measure

OUT = results.ROOT / "results/numerics/together.json"
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
        return kasuri.training.fit_many(networks(), data, **options)

    def apart() -> object:
        return [
            kasuri.fit(net, part, **(options | {"prior": copy.deepcopy(options["prior"])}))
            for net, part in zip(networks(), data, strict=True)
        ]

    return {"together": together, "one after the other": apart}


def result_of(plan: Plan, epochs: int, networks: int) -> results.Result:
    def work() -> results.Result:
        families = {
            name: measure(calls(family, epochs, networks), "together", plan)[0]
            for name, family in FAMILIES.items()
        }
        return {"families": families}

    settings = {"rows": ROWS, "batch": BATCH, "threads": torch.get_num_threads()}
    return results.measured(settings | {"networks": networks, "epochs": epochs}, work)


if __name__ == "__main__":
    torch.set_num_threads(1)
    results.write(OUT, result_of(Plan(rounds=5, warmup=1, burst=0.0), epochs=10, networks=20))

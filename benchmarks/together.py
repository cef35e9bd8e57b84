"""Twenty small networks trained together and one after the other: `python -m benchmarks.together`.

The network of the UCI benchmark, 13-50-1, batches of 64, as `kasuri.training.fit_many` and
`kasuri.fit` train it.
Writes results/numerics/together.json. A call is a short training run of all twenty, set-up included.
"""

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
    numbers = torch.randn(count, ROWS, INPUTS + 1, generator=generator)
    data = [(part[:, 1:], part[:, :1]) for part in numbers]
    options = {"temperature": 0.1, "epochs": epochs, "batch_size": BATCH, "seed": 0, "show": False}

    def prior() -> kasuri.Prior:
        radial = isinstance(family, kasuri.Radial)
        return kasuri.RadialPrior(others=kasuri.HeNormal()) if radial else kasuri.HeNormal()

    def network() -> nn.Module:
        net = nn.Sequential(nn.Linear(INPUTS, 50), nn.ReLU(), nn.Linear(50, 1))
        return kasuri.bayesianize(net, family)

    def together() -> object:
        networks = [network() for _ in data]
        return kasuri.training.fit_many(networks, data, prior=prior(), **options)

    def apart() -> object:
        return [kasuri.fit(network(), part, prior=prior(), **options) for part in data]

    return {"together": together, "one after the other": apart}


def result_of(plan: Plan, epochs: int, networks: int) -> results.Result:
    def work() -> results.Result:
        timed = {
            name: measure(calls(family, epochs, networks), "together", plan)[0]
            for name, family in FAMILIES.items()
        }
        return {"families": timed}

    settings = {"rows": ROWS, "batch": BATCH, "threads": torch.get_num_threads()}
    return results.measured(settings | {"networks": networks, "epochs": epochs}, work)


if __name__ == "__main__":
    torch.set_num_threads(1)
    results.write(OUT, result_of(Plan(rounds=5, warmup=1, burst=0.0), epochs=10, networks=20))

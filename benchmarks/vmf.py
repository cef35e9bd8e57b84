"""von Mises-Fisher: accuracy and speed beside averaged bounds and SciPy, `python -m benchmarks.vmf`.

Writes results/numerics/von-mises-fisher.json; `make tables` makes the tables of the page on these functions.
"""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import scipy
import torch
import torch.nn.functional as F
from scipy import special, stats
from torch import Tensor

from benchmarks import results
from benchmarks.timing import Plan, measure
from experiments.report.text_tables import markdown_grid
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.vmf_sampling import sample

OUT = results.ROOT / "results/numerics/von-mises-fisher.json"

DIMENSIONS = (2, 3, 10, 100, 1000, 4000)
KAPPAS = tuple(10.0**power for power in np.linspace(-3, 5, 33))
QUANTITIES = ("A", "A'", "ℓ", "KL to uniform")
NATS = "KL to uniform, in nats"  # the absolute error: where κ is small, the relative one is a hard test

Values = tuple[Any, Any, Any, Any]  # the four quantities at many κ


def exact(kappa: float, d: int) -> list[Any]:
    """The quantities with sixty digits."""
    with mpmath.workdps(60):
        k, order = mpmath.mpf(kappa), mpmath.mpf(d) / 2 - 1
        low, high = (mpmath.besseli(order + i, k, maxterms=10**6) for i in (0, 1))
        ell = mpmath.loggamma(order + 1) + order * mpmath.log(2 / k) + mpmath.log(low)
        ratio = high / low
        return [ratio, 1 - ratio**2 - (d - 1) * ratio / k, ell, k * ratio - ell]


def by_kasuri(kappa: Tensor, d: int) -> Values:
    of = vmf.terms(kappa, d)
    return of.resultant, of.slope, of.ell, of.divergence


def average(order: float, z: Tensor) -> Tensor:
    """I_ν/I_{ν-1} as the mean of the bounds B_0 and B_2 of the radial and directional paper, equation 33."""

    def bound(alpha: int) -> Tensor:
        lam = order + (alpha - 1) / 2
        delta = order - 0.5 + lam / (2 * (lam**2 + z.square()).sqrt())
        return z / (delta + (delta.square() + z.square()).sqrt())

    return (bound(0) + bound(2)) / 2


def ell_by_bounds(kappa: Tensor, d: int) -> Tensor:
    """ℓ with log I as a sum of logarithms of averaged ratios, equation 45."""
    order = d / 2 - 1
    whole = math.floor(order)
    if order == whole:
        log = torch.special.i0e(kappa).log() + kappa
    else:
        log = (-torch.expm1(-2 * kappa) / (2 * math.pi * kappa).sqrt()).log() + kappa
    for step in range(whole):
        log = log + average(order - step, kappa).log()
    return math.lgamma(order + 1) + order * torch.log(2 / kappa) + log


def by_bounds(kappa: Tensor, d: int) -> Values:
    """Averaged bounds; the slope by the second line of equation 47."""
    ratio, above = average(d / 2, kappa), average(d / 2 + 1, kappa)
    slope = 0.5 * (ratio * (above - 2 * ratio - (d - 2) / kappa) + 1)
    ell = ell_by_bounds(kappa, d)
    return ratio, slope, ell, kappa * ratio - ell


def by_scipy(kappa: np.ndarray, d: int) -> Values:
    """Exponentially scaled Bessel functions."""
    order = d / 2 - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = special.ive(order, kappa), special.ive(order + 1, kappa)
        ell = special.gammaln(order + 1) + order * np.log(2 / kappa) + np.log(low) + kappa
        ratio = high / low
        return ratio, 1 - ratio**2 - (d - 1) * ratio / kappa, ell, kappa * ratio - ell


CONTENDERS: dict[str, Callable[[Tensor, int], Values]] = {
    "kasuri": by_kasuri,
    "averaged bounds": by_bounds,
    "SciPy": lambda kappa, d: by_scipy(kappa.numpy(), d),
}


def accuracy(dimensions: tuple[int, ...], kappas: tuple[float, ...]) -> dict[str, Any]:
    """Worst relative error over κ, and how many values are no numbers, by quantity, contender and d."""
    rows = (*QUANTITIES, NATS)
    summaries: dict[str, Any] = {row: {name: {} for name in CONTENDERS} for row in rows}
    grid = torch.tensor(kappas, dtype=torch.float64)
    for d in dimensions:
        truth = [exact(kappa, d) for kappa in kappas]
        for name, contender in CONTENDERS.items():
            for index, values in enumerate(contender(grid, d)):
                pairs = [
                    (value, known[index])
                    for value, known in zip(values.tolist(), truth, strict=True)
                ]
                relative = [abs(mpmath.mpf(value) / known - 1) for value, known in pairs]
                summaries[QUANTITIES[index]][name][str(d)] = _summary(relative)
            summaries[NATS][name][str(d)] = _summary([abs(value - known) for value, known in pairs])
    return summaries


def _summary(errors: list[Any]) -> dict[str, Any]:
    finite = [float(error) for error in errors if mpmath.isfinite(error)]
    worst = float(f"{max(finite):.2e}") if finite else None
    return {"worst": worst, "failed": len(errors) - len(finite)}


def speed(plan: Plan, count: int = 1000, d: int = 100) -> dict[str, Any]:
    """Milliseconds of values with gradients, and of draws."""
    kappa = torch.logspace(0, 4, count, dtype=torch.float64).requires_grad_()
    plain = kappa.detach()
    loc = F.normalize(torch.randn(count, d), dim=-1)
    direction = (loc[0].double() / loc[0].double().norm()).numpy()
    raw, narrow = torch.randn(count, d, requires_grad=True), plain.float().requires_grad_()

    def backward(values: Tensor) -> None:
        torch.autograd.grad(values.sum(), kappa)

    def draw_backward() -> None:
        draws = sample(F.normalize(raw, dim=-1), narrow)
        torch.autograd.grad(draws[:, 0].sum(), (raw, narrow))

    cases: dict[str, dict[str, Callable[[], object]]] = {
        f"KL to uniform and its gradient, {count} κ, d = {d}": {
            "kasuri": lambda: backward(vmf.terms(kappa, d).divergence),
            "averaged bounds": lambda: by_bounds(plain, d),
            "SciPy": lambda: by_scipy(plain.numpy(), d),
        },
        f"{count} draws, d = {d}": {
            "kasuri": lambda: sample(loc, narrow.detach()),
            "kasuri, with gradients": draw_backward,
            "SciPy": lambda: stats.vonmises_fisher(direction, 100.0).rvs(count, random_state=0),
        },
    }
    return {title: measure(calls, "kasuri", plan)[0] for title, calls in cases.items()}


def result_of(plan: Plan, dimensions: tuple[int, ...], kappas: tuple[float, ...]) -> dict[str, Any]:
    torch.manual_seed(0)
    settings = {
        "command": "python -m benchmarks.vmf",
        "kappas": [kappas[0], kappas[-1], len(kappas)],
        "rounds": plan.rounds,
        "threads": torch.get_num_threads(),
    }
    result = results.measured(
        settings, lambda: {"accuracy": accuracy(dimensions, kappas), "speed": speed(plan)}
    )
    result["versions"]["scipy"] = scipy.__version__
    return result


def tables(result: results.Result) -> str:
    low, high, count = result["settings"]["kappas"]
    dimensions = list(next(iter(result["accuracy"]["A"].values())))
    errors = [
        [quantity, name, *(_cell(by_dimension[d], count) for d in dimensions)]
        for quantity, contenders in result["accuracy"].items()
        for name, by_dimension in contenders.items()
    ]
    times = [
        [title, name, f"{measured['median_ms']:.2f}", f"{measured['median_ratio']:.2f}"]
        for title, contenders in result["speed"].items()
        for name, measured in contenders.items()
    ]
    threads = results.threads_label(result["settings"]["threads"])
    load = "unknown" if result["load"] is None else f"{result['load']:.1f}"
    return "\n".join(
        (
            f"Largest error over {count} concentrations from {low:g} to {high:g}, relative if not in nats:\n",
            markdown_grid([["", "", *(f"d = {d}" for d in dimensions)], *errors], words=2) + "\n",
            f"Milliseconds ({threads} of {result['cores']}, {result['cpu']}, load before {load}):\n",
            markdown_grid([["", "", "median", "ratio to kasuri"], *times], words=2) + "\n",
            f"Made by `{result['settings']['command']}` with {results.versions_label(result)}.",
        )
    )


def _cell(summary: dict[str, Any], count: int) -> str:
    worst = "" if summary["worst"] is None else f"{summary['worst']:.0e}"
    if not summary["failed"]:
        return worst
    return f"{worst} ({summary['failed']} of {count} fail)".strip()


if __name__ == "__main__":
    torch.set_num_threads(1)
    results.write(OUT, result_of(Plan(), DIMENSIONS, KAPPAS))

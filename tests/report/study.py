"""Results of a study of posteriors: spectra, maps, convergence, gradients and drift."""

import math
import random
from typing import Any

import torch

from experiments.sparse import sparsity
from kasuri.compression.counting import Counts
from kasuri.compression.report import CompressionReport, MatrixLeft
from tests.report import samples

LAYERS = {"hidden.weight": (40, 56), "out.weight": (10, 40)}
# variant: rank of its scales (0 for full), seconds of a step, final −ELBO
VARIANTS = {
    "mean-field": (0, 0.012, 0.501),
    "k-tied-1": (1, 0.013, 0.539),
    "k-tied-2": (2, 0.014, 0.52),
}
KEYS = ("spectrum", "scales", "convergence", "gradient_snr", "drift", "sparsity")
DEFINITIONS = ("|E g| / std g", "(E g)² / Var g")


def every_result() -> list[dict[str, Any]]:
    """Three variants with two seeds each."""
    return [result(variant, seed) for variant in VARIANTS for seed in (0, 1)]


def result(variant: str, seed: int) -> dict[str, Any]:
    """One run, with every figure of a study and none of the usual ones."""
    rank, pace, final = VARIANTS[variant]
    rng = random.Random(f"{variant}{seed}")
    matrices = {name: _scale(shape, rank, seed) for name, shape in LAYERS.items()}
    figures = {
        "spectrum": [_spectrum(name, matrix) for name, matrix in matrices.items()],
        "scales": [_maps(name, matrix) for name, matrix in matrices.items()],
        "convergence": _convergence(pace, final, rng),
        "gradient_snr": _gradients(rank, rng),
        "drift": [_drift(name, i, rank, rng) for i, name in enumerate(LAYERS)],
        "sparsity": _sparsity(rank, seed),
    }
    return samples.common("k-tied/mnist-mlp", variant, seed, "mnist", 90.0) | {
        "title": "Three posteriors of a multilayer perceptron.",
        "parameters": 484_000,
        "metrics": {"neg_elbo": final + rng.gauss(0, 0.003)},
        "published": {"neg_elbo": [final, 0.0061], "nll": [0.133, 0.004]},
        "figures": figures,
    }


def hostile(text: str) -> dict[str, Any]:
    """The figures of a run with this text wherever a file has text."""
    figures = result("k-tied-2", 0)["figures"]
    for key in ("spectrum", "scales", "gradient_snr", "drift"):
        for entry in figures[key][::2]:
            entry["layer"] = text
            entry.update({k: text for k in ("parameter", "definition") if k in entry})
            entry.update({"shape": [text]} if "shape" in entry else {})
    for one in figures["scales"][0]["maps"]:
        one["title"] = text
    figures["sparsity"]["layers"][0]["name"] = text
    return figures


def _scale(shape: tuple[int, int], rank: int, seed: int) -> torch.Tensor:
    """A positive matrix, near rank one, or exactly of the rank."""
    noise = torch.Generator().manual_seed(seed)
    m, n = shape
    rows = 0.04 * torch.exp(0.5 * torch.randn(m, max(rank, 1), generator=noise))
    columns = torch.exp(0.3 * torch.randn(max(rank, 1), n, generator=noise))
    columns = columns * (1.2 + torch.sin(torch.arange(n) / n * 3 * math.pi))
    spread = 0.15 * torch.randn(m, n, generator=noise) if rank == 0 else torch.zeros(m, n)
    return (rows @ columns) * torch.exp(spread)


def _shares(matrix: torch.Tensor) -> list[float]:
    squares = torch.linalg.svdvals(matrix.double()).square()
    return (squares / squares.sum()).tolist()[:10]


def _spectrum(name: str, matrix: torch.Tensor) -> dict[str, Any]:
    order = torch.randperm(matrix.numel(), generator=torch.Generator().manual_seed(1))
    mean = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(2))
    return {
        "layer": name,
        "shape": list(matrix.shape),
        "scale": _cumulated(matrix)
        | {
            "shuffled": _shares(matrix.flatten()[order].reshape(matrix.shape)),
            "centred": _shares(matrix - matrix.mean()),
            "constant": float(matrix.mean() ** 2 / matrix.square().mean()),
        },
        "mean": _cumulated(mean),
    }


def _cumulated(matrix: torch.Tensor) -> dict[str, Any]:
    shares = _shares(matrix)
    return {"share": shares, "cumulative": torch.tensor(shares).cumsum(0).tolist()}


def _maps(name: str, matrix: torch.Tensor) -> dict[str, Any]:
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    ranked = {f"rank {k}": (u[:, :k] * s[:k]) @ v[:k] for k in (1, 2)}
    return {
        "layer": name,
        "shape": [10 * side for side in matrix.shape],
        "low": float(matrix.min()),
        "high": float(matrix.max()),
        "maps": [
            {"title": title, "values": values.tolist()}
            for title, values in ({"full": matrix} | ranked).items()
        ],
    }


def _convergence(pace: float, final: float, rng: random.Random) -> dict[str, Any]:
    steps = list(range(0, 8001, 100))
    drawn = [pace * (1 + rng.gauss(0, 0.02))] * len(steps)
    return {
        "step": steps,
        "seconds": [step * one for step, one in zip(steps, drawn, strict=True)],
        "neg_elbo": [
            final + 14 * math.exp(-step / 700) + abs(rng.gauss(0, 0.05)) * math.exp(-step / 3000)
            for step in steps
        ],
    }


def _gradients(rank: int, rng: random.Random) -> list[dict[str, Any]]:
    names = ("loc", "raw_u", "raw_v") if rank else ("loc", "raw_scale")
    found = []
    for definition in DEFINITIONS:
        for layer in LAYERS:
            for name in names:
                base = 0.9 if name == "loc" else 0.35 * (1 + rank)
                for step in (100, 1000, 8000):
                    median = base * (1 + rng.gauss(0, 0.05)) / math.log10(step)
                    found.append(
                        {
                            "step": step,
                            "layer": layer,
                            "parameter": name,
                            "mean": 1.4 * median,
                            "median": median,
                            "definition": definition,
                        }
                    )
    return found


def _drift(name: str, i: int, rank: int, rng: random.Random) -> dict[str, Any]:
    steps = list(range(0, 8001, 200))
    end = 0.02 + 0.015 * i + 0.004 * rank + rng.gauss(0, 0.0005)
    return {
        "layer": name,
        "step": steps,
        "mean_scale": [end + (0.05 - end) * math.exp(-step / 2500) for step in steps],
    }


def _sparsity(rank: int, seed: int) -> dict[str, Any]:
    """Every second weight left of the first layer, and rows and columns that depend on the run."""
    layers: list[MatrixLeft] = []
    for name, (out, inputs) in LAYERS.items():
        left = out * inputs // 2 if not layers else out * inputs - rank - seed
        layers.append(
            MatrixLeft(name, (out, inputs), out * inputs, left, out, out - rank, inputs, inputs - 1)
        )
    counts = Counts(0, 0, 0)
    report = CompressionReport("snr", "weights", counts, counts, tuple(layers))
    return sparsity(report, 0.05)

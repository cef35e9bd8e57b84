"""Results as the program would write them: one classification and one regression experiment."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
HOSTILE = "<script>alert(1)</script>"

# variant: final accuracy, NLL, calibration error, parameters, seconds, overconfidence
FASHION = {
    "plain": (0.8932, 0.412, 0.061, 478_410, 31.0, 0.07),
    "mean-field": (0.8871, 0.324, 0.012, 956_820, 74.0, -0.01),
    "k-tied-2": (0.8897, 0.318, 0.009, 484_008, 82.0, 0.005),
    "k-tied-10": (0.8899, 0.3175, 0.010, 505_000, 90.0, 0.004),
}
REGRESSION = {
    "plain": (2.93, 2.61, 0.62),
    "mean-field": (2.88, 2.44, 0.89),
    "k-tied-2": (2.86, 2.42, 0.9),
}


def every_result() -> list[dict[str, Any]]:
    """Both experiments: four variants with two seeds each, three variants with one seed."""
    runs = [fashion(variant, seed) for variant in FASHION for seed in (0, 1)]
    return runs + [regression(variant) for variant in REGRESSION]


def write(folder: Path, runs: list[dict[str, Any]]) -> Path:
    """Write results where the program would."""
    for run in runs:
        path = folder / run["experiment"] / run["variant"].replace("/", "_") / f"{run['seed']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run))
    return folder


def common(experiment: str, variant: str, seed: int, data: str, seconds: float) -> dict[str, Any]:
    return {
        "format": 1,
        "experiment": experiment,
        "variant": variant,
        "seed": seed,
        "smoke": False,
        "settings": {
            "data": data,
            "epochs": 20,
            "batch_size": 256,
            "learning_rate": 0.001,
            "temperature": None,
            "hidden": [400, 400],
            "posterior": variant,
        },
        "versions": {"kasuri": "0.2.0", "torch": "2.13.0", "python": "3.11.7"},
        "commit": "3f2c1ab94de07715c86d1b0a5a1c7c0de11ee0aa",
        "dirty": seed == 1,
        "machine": {"processor": "Xeon", "cores": 2, "threads": 1, "system": "Linux"},
        "started": f"2026-11-15T23:3{seed}:00+00:00",
        "seconds": {"total": seconds * 1.2, "train": seconds, "evaluate": seconds * 0.15},
    }


def fashion(variant: str, seed: int) -> dict[str, Any]:
    """One run on Fashion-MNIST; the plain network has no posterior, hence no layers."""
    accuracy, nll, ece, parameters, seconds, over = FASHION[variant]
    rng = random.Random(f"{variant}{seed}")
    accuracy += rng.gauss(0, 0.0012)
    nll += rng.gauss(0, 0.002)
    bayesian = variant != "plain"
    metrics = {
        "accuracy": accuracy,
        "accuracy_sem": 0.0031,
        "nll": nll,
        "nll_sem": 0.0082,
        "gibbs_nll": nll * 1.1,
        "brier": 0.155 + rng.gauss(0, 0.001) + (0.0 if bayesian else 0.012),
        "ece": ece + abs(rng.gauss(0, 0.001)),
        "confidence": accuracy + over,
        "entropy": 0.31,
        "mutual_information": 0.024 if bayesian else 0.0,
        "ood_auroc_entropy": (0.92 if bayesian else 0.83) + rng.gauss(0, 0.004),
    }
    if bayesian:
        metrics |= {"neg_elbo": nll + 0.19 + rng.gauss(0, 0.003), "neg_elbo_sem": 0.008}
        metrics["ood_auroc_mutual_information"] = 0.95 + rng.gauss(0, 0.004)
    published = {"neg_elbo": [0.52, 0.0063], "nll": [0.129, 0.0039], "parameters": [484000, None]}
    return common("quality/fashion-mnist", variant, seed, "fashion-mnist", seconds) | {
        "title": "A multilayer perceptron on Fashion-MNIST, 20 epochs, 100 samples at test time.",
        "parameters": parameters,
        "history": [_epoch(e, accuracy, nll, bayesian, over, rng) for e in range(1, 21)],
        "metrics": metrics,
        "validation": {key: value * 1.01 for key, value in metrics.items()},
        "published": published | {"accuracy": [0.968, 0.0018]} if variant == "k-tied-2" else None,
        "figures": _figures(variant, over, bayesian, rng),
    }


def _epoch(
    e: int, accuracy: float, nll: float, bayesian: bool, over: float, rng: random.Random
) -> dict[str, Any]:
    fall = math.exp(-e / 4)
    train = nll * (0.9 - (0.5 if not bayesian else 0.1) * (1 - fall)) + 0.7 * fall
    kl = 21000 * (1 - fall) + 6000 if bayesian else None
    return {
        "epoch": e,
        "step": 196 * e,
        "loss": train + (kl or 0) / 50000,
        "nll": train,
        "kl": kl,
        "accuracy": accuracy + 0.02 - 0.12 * fall,
        "valid_nll": nll + 0.5 * fall + (0.008 * e * over * 10 if over > 0.05 else 0),
        "valid_accuracy": accuracy - 0.1 * fall + rng.gauss(0, 0.002),
        "learning_rate": 0.001 * (0.5 * (1 + math.cos(math.pi * e / 20))),
        "temperature": 1.0,
        "seconds": 4.0,
    }


def _figures(variant: str, over: float, bayesian: bool, rng: random.Random) -> dict[str, Any]:
    confidence = [(i + 0.5) / 15 for i in range(15)]
    accuracy = [
        min(1.0, max(0.0, c - over * 4 * c * (1.2 - c) + rng.gauss(0, 0.012))) for c in confidence
    ]
    count = [0, 2, *(int(8 * 1.62**i) for i in range(13))]
    steps = 30
    edges = [2.302585 * i / steps for i in range(steps + 1)]
    inside = [int(4000 * math.exp(-i / 3)) + 5 for i in range(steps)]
    centre, width = (19, 6) if bayesian else (13, 9)
    outside = [int(900 * math.exp(-(((i - centre) / width) ** 2))) + 2 for i in range(steps)]
    figures: dict[str, Any] = {
        "reliability": {
            "confidence": [None, *confidence[1:]],
            "accuracy": [None, *accuracy[1:]],
            "count": count,
        },
        "uncertain": [
            {
                "index": 3 * i,
                "label": (3 * i) % 10,
                "guess": (3 * i + (i % 3)) % 10,
                "probability": 0.24 + 0.01 * i,
                "entropy": 1.9 - 0.05 * i,
                "epistemic": (0.55 - 0.03 * i) if bayesian else 0.0,
            }
            for i in range(12)
        ],
        "ood": {"edges": edges, "inside": inside, "outside": outside, "score": "entropy"},
    }
    if bayesian:
        shapes = {"0.weight": [400, 784], "2.weight": [400, 400], "4.weight": [10, 400]}
        figures["layers"] = [_layer(i, *item, variant) for i, item in enumerate(shapes.items())]
    return figures


def _layer(i: int, name: str, shape: list[int], variant: str) -> dict[str, Any]:
    bell = [int(9000 * math.exp(-(((b - 20) / (3 + 2 * i)) ** 2))) for b in range(40)]
    skewed = [int(9000 * math.exp(-(((b - 12 - 6 * i) / 4) ** 2))) + 3 * b for b in range(40)]
    weights = shape[0] * shape[1]
    return {
        "name": name,
        "shape": shape,
        "parameters": 2 * weights if variant == "mean-field" else weights + 2 * sum(shape),
        "kl": 0.07 * weights,
        "snr": 0.31 + 0.4 * i,
        "mean_abs": 0.012 * (i + 1),
        "mean_std": 0.045 / (i + 1),
        "mean": {"edges": [(b - 20) / 60 for b in range(41)], "counts": bell},
        "scale": {"edges": [-3 + b * 0.06 for b in range(41)], "counts": skewed},
    }


def regression(variant: str) -> dict[str, Any]:
    """One run on a regression data set, one seed."""
    rmse, nll, coverage = REGRESSION[variant]
    nominal = [i / 20 for i in range(1, 20)]
    return common("quality/boston", variant, 0, "boston", 6.0) | {
        "parameters": 751 if variant == "plain" else 1502,
        "history": [
            {
                "epoch": e,
                "loss": nll + 60 / e**2,
                "valid_nll": nll + 3 / e,
                "valid_rmse": rmse + 4 / e,
            }
            for e in range(1, 41)
        ],
        "metrics": {
            "rmse": rmse,
            "rmse_sem": 0.21,
            "nll": nll,
            "nll_sem": 0.06,
            "crps": rmse / 2,
            "crps_sem": 0.05,
            "coverage_90": coverage,
        },
        "figures": {
            "intervals": {
                "nominal": nominal,
                "observed": [n - (0.9 - coverage) * 4 * n * (1 - n) * 0.9 for n in nominal],
            }
        },
    }


def pictures(name: str) -> SimpleNamespace:
    """Something that looks like a data set of small pictures; only fashion-mnist is known."""
    if name != "fashion-mnist":
        raise KeyError(name)
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    shapes = [
        torch.exp(-(((x - 14) / (3 + i % 7)) ** 2 + ((y - 14) / (4 + i % 5)) ** 2))
        for i in range(60)
    ]
    stripes = [1 - 0.5 * torch.sin((x + y * (i % 3)) / (1.5 + i % 4)) ** 2 for i in range(60)]
    images = torch.stack([a * b for a, b in zip(shapes, stripes, strict=True)])
    return SimpleNamespace(
        test=SimpleNamespace(x=images.reshape(60, 784)),
        pictures=(1, 28, 28),
        pixel_range=(0.0, 1.0),
        classes=CLASSES,
    )

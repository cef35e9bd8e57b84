"""Figures: what the report draws of an evaluation, as lists and numbers ready for JSON."""

from typing import Any

import torch
from torch import Tensor

from kasuri import named_posteriors
from kasuri.diagnostics import collapse_check
from kasuri.likelihoods.predictions import Columns
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.posteriors.base import Posterior
from kasuri.prediction.evaluate import Evaluation
from kasuri.prediction.metrics import calibration_bins

BINS = 30


def figures(evaluation: Evaluation, objective: Objective | None = None) -> dict[str, Any]:
    """Data of the report's figures.

    "reliability": confidence, accuracy and count of 15 bins (classes); "intervals": nominal and
    observed coverage of central intervals (real targets); "layers": shape, KL, signal-to-noise ratio and
    histograms of each posterior of the network.
    """
    examples = evaluation.examples
    data: dict[str, Any] = (
        {"reliability": _reliability(examples)}
        if "entropy" in examples
        else {"intervals": _intervals(examples["pit"])}
    )
    return data | {"layers": [] if objective is None else _layers(objective)}


def _intervals(pit: Tensor) -> dict[str, list[float]]:
    """How many targets central intervals of each probability contain: equal if calibrated."""
    nominal = [level / 20 for level in range(1, 20)]
    central = (2 * pit - 1).abs()
    observed = [float((central <= level).double().mean()) for level in nominal]
    return {"nominal": nominal, "observed": observed}


def _reliability(examples: Columns) -> dict[str, list[float]]:
    bins = calibration_bins(examples["confidence"].reshape(-1), examples["accuracy"].reshape(-1))
    return {
        "confidence": bins.confidence.tolist(),
        "accuracy": bins.accuracy.tolist(),
        "count": bins.counts.tolist(),
    }


def _layers(objective: Objective) -> list[dict[str, Any]]:
    layers = collapse_check(objective).layers if isinstance(objective, ELBO) else ()
    kls = {layer.name: layer.kl for layer in layers}
    return [_layer(name, q, kls.get(name)) for name, q in named_posteriors(objective.net)]


@torch.no_grad()
def _layer(name: str, q: Posterior, kl: float | None) -> dict[str, Any]:
    mean, std = q.mean.double().cpu().flatten(), q.variance.double().cpu().flatten().sqrt()
    random = bool((std > 0).all())
    return {
        "name": name,
        "shape": list(q.shape),
        "parameters": sum(parameter.numel() for parameter in q.parameters()),
        "kl": kl,
        "snr": float((mean.abs() / std).median()) if random else None,
        "mean": _histogram(mean),
        "scale": _histogram(std.log10()) if random else None,
        "mean_abs": float(mean.abs().mean()),
        "mean_std": float(std.mean()),
    }


def _histogram(values: Tensor) -> dict[str, list[float]]:
    counts, edges = torch.histogram(values, BINS)
    return {"edges": edges.tolist(), "counts": counts.long().tolist()}

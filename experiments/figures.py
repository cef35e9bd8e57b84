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
    observed coverage of central intervals (real targets); "ood": histograms of entropy, or of std, in both
    sets; "layers": shape, KL, signal-to-noise ratio and histograms of each posterior of the network.
    """
    inside, outside = evaluation.examples, evaluation.outside
    if "entropy" in inside:
        score = "entropy"
        data: dict[str, Any] = {"reliability": _reliability(inside)}
    else:
        score = "std"
        data = {"intervals": _intervals(inside["pit"])}
    if outside is not None:
        data["ood"] = _two_histograms(score, inside[score], outside[score])
    return data | {"layers": [] if objective is None else _layers(objective)}


def _intervals(pit: Tensor) -> dict[str, list[float]]:
    """How many targets central intervals of each probability contain: equal if calibrated."""
    nominal = [level / 20 for level in range(1, 20)]
    central = (2 * pit - 1).abs()
    observed = [float((central <= level).double().mean()) for level in nominal]
    return {"nominal": nominal, "observed": observed}


def _reliability(inside: Columns) -> dict[str, list[float]]:
    bins = calibration_bins(inside["confidence"].reshape(-1), inside["accuracy"].reshape(-1))
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


def _two_histograms(score: str, inside: Tensor, outside: Tensor) -> dict[str, Any]:
    pair = [_per_example(inside), _per_example(outside)]
    top = float(torch.cat(pair).max()) or 1.0
    edges = torch.linspace(0, top, BINS + 1, dtype=torch.float64)
    counts = [torch.histogram(values, edges).hist.long().tolist() for values in pair]
    return {"edges": edges.tolist(), "inside": counts[0], "outside": counts[1], "score": score}


def _per_example(values: Tensor) -> Tensor:
    return values.double().reshape(len(values), -1).mean(1)

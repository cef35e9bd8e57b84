"""Figures: what the report draws of an evaluation, as lists and numbers ready for JSON."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Posterior
from kasuri.prediction.columns import Columns
from kasuri.prediction.metrics import calibration_bins
from kasuri.priors.base import Prior
from kasuri.priors.normal import Normal

BINS = 30
SHOWN = 12
_KEYS = {"confidence": "probability", "mutual_information": "epistemic"}  # of columns, in figures


def of_examples(inside: Columns, outside: Columns | None) -> dict[str, Any]:
    """Calibration, the most uncertain examples and, with a second set, the uncertainty of both.

    Examples:
        >>> columns = {"std": torch.tensor([1.0, 3.0]), "epistemic": torch.zeros(2),
        ...            "label": torch.zeros(2), "guess": torch.ones(2), "pit": torch.rand(2)}
        >>> of_examples(columns, None)["uncertain"][0]
        {'index': 1, 'label': 0.0, 'guess': 1.0, 'std': 3.0, 'epistemic': 0.0}
    """
    if "entropy" in inside:
        score, told = "entropy", ["confidence", "entropy", "mutual_information"]
        found: dict[str, Any] = {
            "reliability": _reliability(inside["confidence"], inside["accuracy"])
        }
    else:
        score, told = "std", ["std", "epistemic"]
        found = {"intervals": intervals(inside["pit"])}
    order = _per_example(inside[score]).argsort(descending=True, stable=True)[:SHOWN]
    found["uncertain"] = [_row(inside, told, index) for index in order.tolist()]
    if outside is not None:
        found["ood"] = _two_histograms(score, inside[score], outside[score])
    return found


def _row(inside: Columns, told: list[str], index: int) -> dict[str, Any]:
    """One example: label and guess (lists if it has several), and its uncertainties."""
    row = {"index": index} | {name: inside[name][index].tolist() for name in ("label", "guess")}
    return row | {
        _KEYS.get(name, name): float(inside[name][index].double().mean()) for name in told
    }


def intervals(pit: Tensor) -> dict[str, list[float]]:
    """How many targets central intervals of each probability contain: equal if calibrated."""
    nominal = [level / 20 for level in range(1, 20)]
    central = (2 * pit - 1).abs()
    return {
        "nominal": nominal,
        "observed": [float((central <= p).double().mean()) for p in nominal],
    }


def of_layers(net: nn.Module | None, elbo: ELBO | None) -> list[dict[str, Any]]:
    """Shape, KL, signal-to-noise ratio and histograms of every posterior of a network."""
    if net is None:
        return []
    kls = kl_by_name(elbo) if elbo is not None else {}
    return [_layer(name, q, kls.get(name)) for name, q in named_posteriors(net)]


@torch.no_grad()
def kl_by_name(elbo: ELBO) -> dict[str, float | None]:
    """The share of each posterior in the KL of an objective; the shares add up to `elbo.kl()`.

    A normal prior that fits its scale to all weights it governs is taken at that scale. None if a
    prior ties its weights in a way that cannot be divided among them.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> prior = kasuri.Normal(1.0, learn="closed form")
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), prior, num_data=9)
        >>> math.isclose(sum(kl_by_name(elbo).values()), elbo.kl().item(), rel_tol=1e-5)
        True
    """
    posteriors = dict(named_posteriors(elbo.bnn))
    shares: dict[str, float | None] = {}
    for prior, names in zip(elbo.priors, elbo.governed, strict=True):
        assert isinstance(prior, Prior)
        group = [posteriors[name] for name in names]
        fixed = at_its_scale(prior, group)
        each = [float(fixed.kl(q)) for q in group]
        total = float(prior.kl(*group))
        adds_up = math.isclose(math.fsum(each), total, rel_tol=1e-3, abs_tol=1e-3)
        shares |= {name: kl if adds_up else None for name, kl in zip(names, each, strict=True)}
    return shares


@torch.no_grad()
def at_its_scale(prior: Prior, group: list[Posterior]) -> Prior:
    """The prior itself, or a fixed one at the scale that a normal prior fits to these posteriors."""
    if isinstance(prior, Normal) and prior.learn == "closed form":
        return Normal(float(prior.fitted_scale(*group)))
    return prior


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
        "mean": histogram(mean),
        "scale": histogram(std.log10()) if random else None,
        "mean_abs": float(mean.abs().mean()),
        "mean_std": float(std.mean()),
    }


def _reliability(confidence: Tensor, accuracy: Tensor) -> dict[str, list[float]]:
    bins = calibration_bins(confidence.reshape(-1), accuracy.reshape(-1))
    return {
        "confidence": bins.confidence.tolist(),
        "accuracy": bins.accuracy.tolist(),
        "count": bins.counts.tolist(),
    }


def histogram(values: Tensor) -> dict[str, list[float]]:
    """Edges and counts of 30 equal bins."""
    counts, edges = torch.histogram(values, BINS)
    return {"edges": edges.tolist(), "counts": counts.long().tolist()}


def _two_histograms(score: str, inside: Tensor, outside: Tensor) -> dict[str, Any]:
    pair = [_per_example(inside), _per_example(outside)]
    top = float(torch.cat(pair).max()) or 1.0
    edges = torch.linspace(0, top, BINS + 1, dtype=torch.float64)
    counts = [torch.histogram(one, edges).hist.long().tolist() for one in pair]
    return {"edges": edges.tolist(), "inside": counts[0], "outside": counts[1], "score": score}


def _per_example(values: Tensor) -> Tensor:
    return values.double().reshape(len(values), -1).mean(1)

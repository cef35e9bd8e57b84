"""Evaluation: the predictions of a data set, scored example by example, and what that comes to.

The set is predicted chunk by chunk, and each chunk is reduced at once to columns with one row per
example, so memory does not grow with the number of draws.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import at_least_one
from kasuri.inputs import Labelled, batches, count, take
from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Columns, Prediction
from kasuri.numerics.scores import refuse_non_finite
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.objectives.schedules import Constant
from kasuri.objectives.trained import Trained, objective_of
from kasuri.prediction.metrics import auroc, bootstrap_sem, calibration_bins, mean_sem
from kasuri.prediction.predict import Output, predict

CHUNK = 1000
LEVELS = (50, 90, 95)


class Evaluation(dict[str, float]):
    """The metrics of a model on a data set, by name.

    Attributes:
        examples: what `Prediction.score` says, one row per example, in the target's own unit.
        outside: uncertainties of the other set, if there was one.
    """

    def __init__(
        self,
        metrics: Mapping[str, float],
        examples: Columns | None = None,  # left out when dataclasses.asdict copies dictionaries
        outside: Columns | None = None,
    ) -> None:
        super().__init__(metrics)
        self.examples: Columns = examples or {}
        self.outside = outside


def evaluate(
    model: nn.Module | Trained | Callable[[Any], Prediction],
    data: Any,
    *,
    samples: int = 100,
    likelihood: Likelihood | None = None,
    outside: Any = None,
    chunk: int | None = None,
    seed: int = 0,
    output: Output = None,
    target_scale: float | Tensor = 1.0,
    target_mean: float | Tensor = 0.0,
) -> Evaluation:
    """Every metric of a model on a data set, as plain floats.

    Classes: accuracy, nll, gibbs_nll, brier, ece, confidence, entropy, mutual_information. Real
    targets: rmse, nll, gibbs_nll, crps, coverage_50, _90, _95 (of central intervals),
    interval_width_90, std. `nll` is -log of the averaged likelihood, `gibbs_nll` the average -log
    likelihood of a draw. `*_sem` is a standard error over examples (of `ece`: by bootstrap).

    An ELBO adds kl and neg_elbo = gibbs_nll + kl / num_data with the whole KL, whatever the
    temperature, and tempered_neg_elbo if a constant temperature is not 1. If the noise has a posterior
    there is noise_kl as well, whole in both. `outside` adds ood_auroc_* and the mean uncertainty there,
    *_outside. An example with several positions or outputs counts as one: nll of all of them together,
    the other scores averaged over them.

    Args:
        model: an objective (ELBO, MaximumLikelihood) or what `kasuri.fit` gave; a converted network; an
            ordinary network, evaluated as one draw; or a function of inputs that returns a `Prediction`
            and is called once per chunk (an `ensemble`, `mc_dropout` or your own).
        data: (x, y); anything with attributes x and y; or a loader of such pairs.
        samples: number of draws.
        likelihood: what a network's outputs mean. Objectives and functions bring their own.
        outside: inputs of another set; anything with attributes x and y; or a loader.
        chunk: at most so many examples run at once; 1000 by default.
        seed: of a network's draws; functions and loaders that draw have their own.
        output: takes the tensor out of what a network returns.
        target_scale: a standardised target times this is in its own unit, in which rmse, crps,
            std, widths and densities (nll, gibbs_nll, neg_elbo) are then given.
        target_mean: what was taken from a standardised target; for labels and guesses in `examples`.

    Returns:
        A dictionary; its attribute `examples` has the scores and uncertainties of every example.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=8)
        >>> result = evaluate(elbo, (torch.randn(8, 3), torch.arange(8) % 2), samples=10)
        >>> result["nll"] <= result["gibbs_nll"] <= result["neg_elbo"]
        True
        >>> result.examples["nll"].shape
        torch.Size([8])
    """
    at_least_one(samples=samples, chunk=chunk)
    given = objective_of(model)
    predictor: Any = given
    if isinstance(given, nn.Module):
        _check(given, likelihood)
        options: dict[str, Any] = {"likelihood": likelihood, "seed": seed, "output": output}
        predictor = partial(predict, given, samples=samples, **options)
    elif likelihood is not None:
        raise ValueError(
            "likelihood=...: the predictions of a function have a likelihood already; leave it out"
        )
    other = None
    with torch.no_grad():
        inside = _collect(predictor, _pairs(data), chunk or CHUNK)
        if outside is not None:
            other = _collect(predictor, ((x, None) for x in batches(outside)), chunk or CHUNK)
    unit = [
        torch.as_tensor(part, dtype=torch.float64).cpu() for part in (target_scale, target_mean)
    ]
    inside = _in_unit(inside, *unit)
    other = None if other is None else _in_unit(other, *unit)
    metrics = _metrics(inside, other, given if isinstance(given, ELBO) else None)
    return Evaluation(metrics, inside, other)


def _check(given: nn.Module, likelihood: Likelihood | None) -> None:
    if isinstance(given, Objective):
        if not given.has_targets:
            raise TypeError(
                f"{type(given).__name__} predicts no targets: write kasuri.vae.evaluate(vae, data)"
            )
        if likelihood not in (None, given.likelihood):
            raise ValueError(
                "likelihood=...: the objective has its own; to use another one, evaluate its network"
            )
    elif likelihood is None:
        raise ValueError(
            "a network needs a likelihood, e.g. likelihood=kasuri.Categorical() for classes or "
            "kasuri.Gaussian(0.1) for real targets"
        )


def _collect(
    predictor: Callable[[Any], Prediction], data: Iterable[tuple[Any, Tensor | None]], chunk: int
) -> Columns:
    """All columns of a data set; where there are no labels, the uncertainties only."""
    parts: list[Columns] = []
    for x, y in data:
        for start in range(0, count(x, y), chunk):
            rows = slice(start, start + chunk)
            prediction = predictor(take(x, rows))
            if not isinstance(prediction, Prediction):
                raise TypeError(
                    f"the function must return a kasuri.Prediction, got {type(prediction).__name__}"
                )
            if y is None:
                refuse_non_finite("predictions", prediction.mean)
                parts.append(prediction.uncertainty())
            else:
                parts.append(prediction.score(y[rows]))
    if not parts:
        raise ValueError("the data set has no examples")
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


def _pairs(data: Any) -> Iterator[tuple[Any, Tensor]]:
    if isinstance(data, Labelled):
        yield data.x, data.y
        return
    if isinstance(data, Tensor | Mapping) or not isinstance(data, Iterable):
        raise TypeError(
            f"no examples can be taken from {type(data).__name__}: give (x, y), an object with attributes x "
            "and y, or a DataLoader"
        )
    for batch in [data] if isinstance(data, tuple) else data:
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        if not pair or not isinstance(batch[1], Tensor):
            raise ValueError(
                f"a batch must be a pair of inputs and a tensor of targets, got {type(batch).__name__}"
            )
        yield batch[0], batch[1]


_POWERS = {"std": 1, "epistemic": 1, "crps": 1, "interval_width_90": 1, "squared_error": 2}


def _in_unit(columns: Columns, scale: Tensor, zero: Tensor) -> Columns:
    """Columns in the target's own unit; (N, 1) becomes (N,)."""
    if not bool((scale > 0).all()):
        raise ValueError(f"target_scale must be positive, got {scale.tolist()}")
    if "entropy" in columns and bool((scale != 1).any()):
        raise ValueError(
            "target_scale is the unit of real targets; classes have none, so leave it out"
        )

    def changed(name: str, column: Tensor) -> Tensor:
        if "std" in columns:
            unit = scale.expand(columns["std"].shape[1:])
            if name in _POWERS:
                column = column * unit ** _POWERS[name]
            elif name in ("label", "guess"):
                column = column * unit + zero
            elif name in ("nll", "gibbs_nll"):
                column = column + unit.log().sum()
        return column.reshape(-1) if column.numel() == len(column) else column

    return {name: changed(name, column) for name, column in columns.items()}


def _metrics(inside: Columns, outside: Columns | None, elbo: ELBO | None) -> dict[str, float]:
    metrics: dict[str, float] = {"count": len(inside["nll"])}
    for name in ("accuracy", "nll", "gibbs_nll", "brier", "crps"):
        if name in inside:
            metrics[name], metrics[f"{name}_sem"] = mean_sem(inside[name])
    for name in ("confidence", "entropy", "mutual_information", "std", "interval_width_90"):
        if name in inside:
            metrics[name] = mean_sem(inside[name]).mean
    if "accuracy" in inside:
        pair = inside["confidence"], inside["accuracy"]
        metrics["ece"] = _calibration_error(*pair)
        metrics["ece_sem"] = bootstrap_sem(_calibration_error, *pair)
    else:
        metrics |= _real_metrics(inside)
    if elbo is not None:
        metrics |= _elbo_metrics(elbo, metrics["gibbs_nll"], metrics["gibbs_nll_sem"])
    if outside is not None:
        metrics |= _outside_metrics(inside, outside)
    if metrics["count"] == 1:  # has no standard error
        return {name: value for name, value in metrics.items() if not name.endswith("_sem")}
    return metrics


def _calibration_error(confidence: Tensor, correct: Tensor) -> float:
    return calibration_bins(confidence, correct).error


def _real_metrics(inside: Columns) -> dict[str, float]:
    """Root mean squared error, its standard error by the delta method, and coverages."""
    square, sem = mean_sem(inside["squared_error"])
    root = math.sqrt(square)
    metrics = {"rmse": root, "rmse_sem": sem / (2 * root) if root else 0.0}
    central = (2 * inside["pit"] - 1).abs()
    for level in LEVELS:
        name = f"coverage_{level}"
        metrics[name], metrics[f"{name}_sem"] = mean_sem((central <= level / 100).double())
    return metrics


def _elbo_metrics(elbo: ELBO, gibbs: float, sem: float) -> dict[str, float]:
    with torch.no_grad():
        kl, noise_kl = float(elbo.kl()), elbo.likelihood.kl()
    metrics = {"kl": kl}
    if noise_kl is not None:
        metrics["noise_kl"] = float(noise_kl)
        gibbs += float(noise_kl) / elbo.num_data
    metrics |= {"neg_elbo": gibbs + kl / elbo.num_data, "neg_elbo_sem": sem}
    if isinstance(elbo.temperature, Constant) and elbo.temperature.value != 1:
        metrics["tempered_neg_elbo"] = gibbs + elbo.temperature.value * kl / elbo.num_data
    return metrics


def _outside_metrics(inside: Columns, outside: Columns) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name in ("entropy", "mutual_information", "std"):
        if name in outside:
            pair = (part[name].reshape(len(part[name]), -1).mean(1) for part in (inside, outside))
            metrics[f"ood_auroc_{name}"] = auroc(*pair)
            metrics[f"{name}_outside"] = float(outside[name].double().mean())
    return metrics

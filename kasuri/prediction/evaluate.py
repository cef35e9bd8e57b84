"""Evaluation: one prediction of a data set, and every number and figure a report needs from it.

The set is predicted chunk by chunk, and each chunk is reduced at once to columns with one row per
example. Numbers and figures are made of the columns, so memory does not grow with the draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import Prediction
from kasuri.network.estimators import Estimator, shared
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.objectives.schedules import Constant
from kasuri.objectives.trained import Trained, objective_of
from kasuri.prediction import columns, figures
from kasuri.prediction.columns import Columns, Unit
from kasuri.prediction.metrics import auroc, bootstrap_sem, calibration_bins, mean_sem

CHUNK = 1000
LEVELS = (50, 90, 95)

Model = nn.Module | Callable[[Any], Prediction]


@dataclass(frozen=True)
class Evaluation:
    """What one prediction of a data set tells.

    Args:
        metrics: what `evaluate` returns.
        examples: one row per example: scores and uncertainties under the names of the metrics,
            `label` and `guess`.
        outside: uncertainties of the other set, if there was one.
        net: the network, if the model was one.
        elbo: the objective, if it was one.
    """

    metrics: dict[str, float]
    examples: Columns
    outside: Columns | None
    net: nn.Module | None
    elbo: ELBO | None

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Data of the report's figures, ready for JSON.

        "reliability": confidence, accuracy and count of 15 bins (classes); "intervals": nominal and
        observed coverage of central intervals (real targets); "uncertain": the 12 examples with most
        entropy, or std; "ood": histograms of that score in both sets; "layers": shape, KL,
        signal-to-noise ratio and histograms of each posterior, as it is at the first look.
        """
        found = figures.of_examples(self.examples, self.outside)
        return found | {"layers": figures.of_layers(self.net, self.elbo)}


def evaluate(
    model: Model | Trained,
    data: Any,
    *,
    samples: int = 100,
    likelihood: Likelihood | None = None,
    outside: Any = None,
    chunk: int | None = None,
    seed: int = 0,
    estimator: Estimator | str = shared,
    output: Callable[[Any], Tensor] | None = None,
    target_scale: float | Tensor = 1.0,
    target_mean: float | Tensor = 0.0,
) -> dict[str, float]:
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
            and is called once per chunk (an ensemble, dropout at test time).
        data: (x, y); anything with attributes x and y; or a loader of such pairs.
        samples: number of draws.
        likelihood: what a network's outputs mean. Objectives and functions bring their own.
        outside: inputs of another set; anything with attributes x and y; or a loader.
        chunk: at most so many examples run at once; 1000 if not told.
        seed: of the draws. Global generators are left as they were.
        estimator: "shared" draws functions; "local" draws outputs, see `predict`.
        output: takes the tensor out of what a network returns.
        target_scale: a standardised target times this is in its own unit, in which rmse, crps,
            std, widths and densities (nll, gibbs_nll, neg_elbo) are then told.
        target_mean: what was taken from a standardised target; for labels and guesses of `assess`.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1))
        >>> elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=8)
        >>> result = evaluate(elbo, (torch.randn(8, 3), torch.arange(8) % 2), samples=10)
        >>> result["nll"] <= result["gibbs_nll"] <= result["neg_elbo"]
        True
    """
    found = assess(
        model,
        data,
        samples=samples,
        likelihood=likelihood,
        outside=outside,
        chunk=chunk,
        seed=seed,
        estimator=estimator,
        output=output,
        target_scale=target_scale,
        target_mean=target_mean,
    )
    return found.metrics


def assess(
    model: Model | Trained,
    data: Any,
    *,
    samples: int = 100,
    likelihood: Likelihood | None = None,
    outside: Any = None,
    chunk: int | None = None,
    seed: int = 0,
    estimator: Estimator | str = shared,
    output: Callable[[Any], Tensor] | None = None,
    target_scale: float | Tensor = 1.0,
    target_mean: float | Tensor = 0.0,
) -> Evaluation:
    """Metrics as by `evaluate`, with the data of figures and all rows from the same prediction.

    The arguments are those of `evaluate`.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(rank=1))
        >>> x, y = torch.randn(8, 3), torch.arange(8) % 2
        >>> result = assess(bnn, (x, y), likelihood=kasuri.Categorical(), samples=5)
        >>> result.examples["nll"].shape
        torch.Size([8])
        >>> [layer["name"] for layer in result.figures["layers"]]
        ['weight', 'bias']
    """
    chunk = CHUNK if chunk is None else chunk
    if samples < 1 or chunk < 1:
        raise ValueError(f"evaluate(samples={samples}, chunk={chunk}): both are at least 1")
    net = elbo = None
    found: Model = objective_of(model)
    if isinstance(found, nn.Module):
        elbo = found if isinstance(found, ELBO) else None
        net, likelihood, output = _parts(found, likelihood, output)
        predictor = columns.of_network(
            net, likelihood, samples=samples, estimator=estimator, seed=seed, output=output
        )
    elif likelihood is not None:
        raise ValueError("likelihood=: the predictions of a function bring their own; leave it out")
    else:
        predictor = columns.of_function(found)
    generators = list(range(torch.cuda.device_count()))
    with torch.no_grad(), torch.random.fork_rng(generators):
        torch.manual_seed(seed)  # for loaders that shuffle and functions that draw
        unit = Unit(target_scale, target_mean)
        inside = columns.collect(predictor, data, chunk, unit)
        other = None
        if outside is not None:
            other = columns.collect(predictor, outside, chunk, unit, labels=False)
        return Evaluation(_metrics(inside, other, elbo), inside, other, net, elbo)


def _parts(
    model: nn.Module, likelihood: Likelihood | None, output: Callable[[Any], Tensor] | None
) -> tuple[nn.Module, Likelihood, Callable[[Any], Tensor] | None]:
    if isinstance(model, Objective):
        if not model.has_targets:
            raise TypeError(
                f"evaluate({type(model).__name__}(...)): it explains inputs and predicts no targets; "
                "write kasuri.vae.evaluate(vae, data)"
            )
        if likelihood not in (None, model.likelihood):
            raise ValueError("likelihood=: the objective has its own; evaluate its network instead")
        return model.net, model.likelihood, output or model.output
    if likelihood is None:
        raise ValueError(
            "evaluate cannot know what a network's outputs mean: write likelihood="
            "kasuri.Categorical() for classes or likelihood=kasuri.Gaussian(0.1) for real targets"
        )
    return model, likelihood, output


def _metrics(inside: Columns, outside: Columns | None, elbo: ELBO | None) -> dict[str, float]:
    told: dict[str, float] = {"count": len(inside["nll"])}
    for name in ("accuracy", "nll", "gibbs_nll", "brier", "crps"):
        if name in inside:
            told[name], told[f"{name}_sem"] = mean_sem(inside[name])
    for name in ("confidence", "entropy", "mutual_information", "std", "interval_width_90"):
        if name in inside:
            told[name] = mean_sem(inside[name]).mean
    told |= _class_metrics(inside) if "accuracy" in inside else _real_metrics(inside)
    if elbo is not None:
        told |= _elbo_metrics(elbo, told["gibbs_nll"], told["gibbs_nll_sem"])
    if outside is not None:
        told |= _outside_metrics(inside, outside)
    one = len(inside["nll"]) == 1  # has no standard error
    return {name: value for name, value in told.items() if not (one and name.endswith("_sem"))}


def _class_metrics(inside: Columns) -> dict[str, float]:
    def ece(stated: Tensor, happened: Tensor) -> float:
        return calibration_bins(stated.reshape(-1), happened.reshape(-1)).error

    pair = inside["confidence"], inside["accuracy"]
    return {"ece": ece(*pair), "ece_sem": bootstrap_sem(ece, *pair)}


def _real_metrics(inside: Columns) -> dict[str, float]:
    """Root mean squared error, its standard error by the delta method, and coverages."""
    square, sem = mean_sem(inside["squared_error"])
    root = math.sqrt(square)
    told = {"rmse": root, "rmse_sem": sem / (2 * root) if root else 0.0}
    central = (2 * inside["pit"] - 1).abs()
    for level in LEVELS:
        name = f"coverage_{level}"
        told[name], told[f"{name}_sem"] = mean_sem((central <= level / 100).double())
    return told


def _elbo_metrics(elbo: ELBO, gibbs: float, sem: float) -> dict[str, float]:
    kl, noise_kl = float(elbo.kl()), elbo.likelihood.kl()
    told = {"kl": kl}
    if noise_kl is not None:
        told["noise_kl"] = float(noise_kl)
        gibbs += float(noise_kl) / elbo.num_data
    told |= {"neg_elbo": gibbs + kl / elbo.num_data, "neg_elbo_sem": sem}
    if isinstance(elbo.temperature, Constant) and elbo.temperature.value != 1:
        told["tempered_neg_elbo"] = gibbs + elbo.temperature.value * kl / elbo.num_data
    return told


def _outside_metrics(inside: Columns, outside: Columns) -> dict[str, float]:
    told: dict[str, float] = {}
    for name in ("entropy", "mutual_information", "std"):
        if name in outside:
            pair = (one[name].reshape(len(one[name]), -1).mean(1) for one in (inside, outside))
            told[f"ood_auroc_{name}"] = auroc(*pair)
            told[f"{name}_outside"] = float(outside[name].double().mean())
    return told

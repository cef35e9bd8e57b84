"""Columns: a model's predictions of a data set, reduced chunk by chunk to one row per example.

Nothing with a dimension of draws outlives its chunk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kasuri.inputs import Labelled, count, run, take
from kasuri.likelihoods import Likelihood
from kasuri.likelihoods.predictions import ClassPrediction, Draws, Prediction, RealPrediction
from kasuri.network.contexts import evaluating
from kasuri.network.estimators import Estimator
from kasuri.network.random import named_posteriors
from kasuri.numerics.gamma import (
    expected_normal_log_prob,
    student_t_log_prob,
    sums_of_squares,
)
from kasuri.prediction.predict import predict
from kasuri.prediction.scores import (
    DrawNLL,
    brier,
    confidence,
    correct,
    crps,
    nll,
    nll_of_draws,
    normal_log_probs,
    pit,
    refuse_non_finite,
)

Columns = dict[str, Tensor]


class Unit(NamedTuple):
    """What a standardised target is in its own unit: y · scale + zero."""

    scale: float | Tensor = 1.0
    zero: float | Tensor = 0.0


Predictor = Callable[[Any, Tensor | None], tuple[Prediction, DrawNLL | None]]


def of_network(
    net: nn.Module,
    likelihood: Likelihood,
    *,
    samples: int,
    estimator: Estimator | str,
    seed: int,
    output: Callable[[Any], Tensor] | None,
) -> Predictor:
    """Prediction of a chunk, and the NLL of its targets.

    An ordinary network is one draw. The same seed gives every chunk the same functions.
    """
    converted = next(named_posteriors(net), None) is not None

    def outputs(x: Any) -> list[Tensor]:
        if converted:
            drawn = predict(net, x, samples, estimator=estimator, seed=seed, output=output)
            return drawn.moments.kept or []
        with evaluating(net) as still:
            return [run(still, x, output)]

    def predicted(x: Any, y: Tensor | None) -> tuple[Prediction, DrawNLL | None]:
        fs, draws = outputs(x), Draws([])
        for f in fs:
            draws.add(*likelihood.moments(f))
        prediction = likelihood.summarise(draws, ())
        if y is None:
            return prediction, None
        y = y.to(fs[0].device)
        both = nll_of_draws(torch.stack([likelihood.log_prob(f, y) for f in fs]))
        if likelihood.kl() is None:
            return prediction, both
        expected = torch.stack([likelihood.expected_log_prob(f, y) for f in fs])
        return prediction, both._replace(gibbs=-expected.double().mean(0))

    return predicted


def of_function(function: Callable[[Any], Prediction]) -> Predictor:
    """The same from a function of inputs; NLLs only if it keeps its draws."""

    def predicted(x: Any, y: Tensor | None) -> tuple[Prediction, DrawNLL | None]:
        prediction = function(x)
        if not isinstance(prediction, Prediction):
            raise TypeError(
                f"the function returned {type(prediction).__name__}, not a Prediction; write e.g. "
                "lambda x: kasuri.predict(bnn, x, likelihood=kasuri.Categorical())"
            )
        if y is None:
            return prediction, None
        return prediction, _nlls(prediction, y.to(prediction.mean.device))

    return predicted


def _nlls(prediction: Prediction, y: Tensor) -> DrawNLL | None:
    if isinstance(prediction, RealPrediction) and prediction.moments.noise is not None:
        if prediction.concentration is not None:
            return _student_t_nlls(prediction, prediction.concentration, y)
        return nll_of_draws(normal_log_probs(prediction.draws, prediction.scale, y))
    if isinstance(prediction, ClassPrediction) and prediction.moments.kept is not None:
        kept = (_rows(draw, prediction.dim, y) for draw in prediction.moments.kept)
        each = [-nll(*rows).reshape(len(y), -1).sum(1) for rows in kept]
        return nll_of_draws(torch.stack(each))
    return None


def _student_t_nlls(prediction: RealPrediction, a: Tensor, y: Tensor) -> DrawNLL:
    """Of targets whose noise has a Gamma distributed precision, one for all outputs or one each."""
    residuals = (y - prediction.draws).double() / prediction.scale.double()
    draws, count = residuals.shape[:2]
    squares, number = sums_of_squares(residuals.flatten(0, 1), a)
    unit = prediction.scale.double().log().expand_as(residuals).flatten(2).sum(2)

    def logs(density: Callable[[Tensor, int, Tensor, Tensor], Tensor]) -> Tensor:
        each = density(squares, number, a, a)
        return each.reshape(draws, count, -1).sum(2) - unit

    both = nll_of_draws(logs(student_t_log_prob))
    return both._replace(gibbs=-logs(expected_normal_log_prob).mean(0))


def collect(
    predictor: Predictor, data: Any, chunk: int, unit: Unit, labels: bool = True
) -> Columns:
    """All columns of a data set; without labels, the uncertainties only."""
    parts = []
    for x, y in _chunks(data, chunk, labels):
        prediction, nlls = predictor(x, y)
        if y is not None:
            y = y.to(prediction.mean.device)
        parts.append(_columns(prediction, nlls, y, unit))
    if not parts:
        raise ValueError("the data set has no examples")
    joined = {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
    return {name: _vector(column) for name, column in joined.items()}


def _vector(column: Tensor) -> Tensor:
    """(N, 1) is (N,): one number per example."""
    return column.reshape(-1) if column.numel() == len(column) else column


def _columns(prediction: Prediction, nlls: DrawNLL | None, y: Tensor | None, unit: Unit) -> Columns:
    refuse_non_finite("predictions", prediction.mean)
    if isinstance(prediction, ClassPrediction):
        if bool((torch.as_tensor(unit.scale) != 1).any()):
            raise ValueError("target_scale is a unit of real targets; leave it out for classes")
        return _class_columns(prediction, nlls, y)
    if isinstance(prediction, RealPrediction) and prediction.moments.noise is not None:
        return _real_columns(prediction, nlls, y, unit)
    raise TypeError(
        f"{type(prediction).__name__} without a density cannot be scored: predict with a "
        "likelihood, kasuri.Categorical(), kasuri.Bernoulli() or kasuri.Gaussian()"
    )


def _class_columns(prediction: ClassPrediction, nlls: DrawNLL | None, y: Tensor | None) -> Columns:
    entropy, information = prediction.entropy, prediction.mutual_information
    found = {"entropy": entropy, "mutual_information": information}
    if y is not None:
        probs, labels = _rows(prediction.mean, prediction.dim, y)
        found |= {"label": labels, "guess": probs.argmax(1), "confidence": confidence(probs)}
        found |= {"accuracy": correct(probs, labels), "brier": brier(probs, labels)}
    found = {name: column.reshape(entropy.shape) for name, column in found.items()}
    if y is not None and nlls is not None:
        return found | _nll_columns(nlls)
    if y is not None:
        found["nll"] = nll(probs, labels).reshape(len(y), -1).sum(1)
    return found


def _real_columns(
    prediction: RealPrediction, nlls: DrawNLL | None, y: Tensor | None, own_unit: Unit
) -> Columns:
    mean = prediction.mean
    unit, zero = (
        torch.as_tensor(value).to(mean.device, torch.float64).expand(mean.shape[1:])
        for value in own_unit
    )
    if not bool((unit > 0).all()):
        raise ValueError(f"target_scale={own_unit.scale}: a unit is positive")
    found = {"std": prediction.std * unit, "epistemic": prediction.epistemic.sqrt() * unit}
    if y is None or nlls is None:
        return found
    lower, upper = prediction.interval(0.9)
    mixture = prediction.draws, prediction.scale, y, prediction.concentration
    found |= {
        "label": y * unit + zero,
        "guess": mean * unit + zero,
        "squared_error": ((mean.double() - y) * unit).square(),
        "crps": crps(*mixture) * unit,
        "pit": pit(*mixture),
        "interval_width_90": (upper - lower) * unit,
    }
    return found | {name: each + unit.log().sum() for name, each in _nll_columns(nlls).items()}


def _nll_columns(nlls: DrawNLL) -> Columns:
    return {"nll": nlls.predictive, "gibbs_nll": nlls.gibbs}


def _rows(probs: Tensor, dim: int | None, y: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, C) probabilities and (rows,) labels, one row per example and position."""
    probs = torch.stack([1 - probs, probs], -1) if dim is None else probs.movedim(dim, -1)
    if y.shape != probs.shape[:-1]:
        raise ValueError(
            f"predictions for examples of shape {tuple(probs.shape[:-1])} want labels of that "
            f"shape, got {tuple(y.shape)}; write y.reshape{tuple(probs.shape[:-1])}"
        )
    if dim is None and not bool(((y == 0) | (y == 1)).all()):
        raise ValueError("targets between yes and no have no accuracy: write y.round()")
    labels = y.long() if dim is None else y
    return probs.reshape(-1, probs.shape[-1]), labels.reshape(-1)


def _chunks(data: Any, chunk: int, labels: bool) -> Iterator[tuple[Any, Tensor | None]]:
    for x, y in _batches(data, labels):
        for start in range(0, count(x, y), chunk):
            rows = slice(start, start + chunk)
            yield take(x, rows), None if y is None else y[rows]


def _batches(data: Any, labels: bool) -> Iterator[tuple[Any, Tensor | None]]:
    if isinstance(data, Labelled):
        yield data.x, data.y if labels else None
    elif not labels and isinstance(data, Tensor | tuple | Mapping):
        yield data, None
    elif labels and isinstance(data, tuple):
        yield _pair(data)
    elif isinstance(data, Iterable) and not isinstance(data, Tensor | Mapping):
        for batch in data:
            if labels:
                yield _pair(batch)
            else:
                yield batch[0] if isinstance(batch, tuple | list) else batch, None
    else:
        raise TypeError(
            f"no examples to be had from {type(data).__name__}: give (x, y), an object with "
            "attributes x and y, or a loader, e.g. DataLoader(dataset, batch_size=100)"
        )


def _pair(batch: Any) -> tuple[Any, Tensor]:
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    told = f"{len(batch)} things" if isinstance(batch, tuple | list) else type(batch).__name__
    raise ValueError(f"evaluation wants pairs of inputs and a tensor of targets, got {told}")

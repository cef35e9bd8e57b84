"""Which temperature suits a table: several are tried on rows held out, all of them in one program."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kasuri.checks import told
from kasuri.likelihoods import Likelihood
from kasuri.priors.base import Prior
from kasuri.streams import Stream, mix
from kasuri.training.fit import fit
from kasuri.training.fitted import Fitted
from kasuri.training.many import fit_many
from kasuri.training.nonfinite import NonFiniteLoss
from kasuri.training.validation import Validation, examine

# Bayes first, which is also what is taken if no score is a number. Real targets: below 0.1 intervals were too
# narrow on every table tried, and few noisy rows have their best between 1 and 0.3. Classes that can be told
# apart almost without error want much lower ones. All are trained for as long as the network that is kept:
# after half as many steps lower temperatures are ahead that are behind in the end
REAL = (1.0, 0.55, 0.3, 0.1)
CLASSES = (1.0, 0.3, 0.1, 0.03, 0.01)
FOLDS = 5
MANY = 5000  # rows of which a part is enough to compare networks on
_DRAWS = 16  # per network, to compare temperatures by


class Rows(NamedTuple):
    """Rows to train on, and rows held out (None for none)."""

    rest: Tensor
    held: Tensor | None


class Split(NamedTuple):
    """Which rows are for what.

    Args:
        rows: of the network that is kept.
        folds: to choose its temperature on; none if it is given.
    """

    rows: Rows
    folds: list[Rows]


def split(
    count: int,
    seed: int,
    share: float,
    is_chosen: bool,
    has_patience: bool,
    classes: Tensor | None = None,
) -> Split:
    """What the rows of a table are for.

    Args:
        count: number of rows.
        seed: of all noise.
        share: of the rows, to be held out from the network that is kept; 0 for none.
        is_chosen: whether the temperature is to be chosen: by folds that are each held out once, after which
            the network is trained on all rows; if rows are many, on the rows held out, if there are any.
        has_patience: whether that network needs rows held out in any case.
        classes: of the rows.
    """
    if has_patience and not share:
        raise ValueError(
            "patience with validation_fraction=0: there are no held-out rows to wait for"
        )
    is_many = count >= MANY and share > 0
    rows = Rows(torch.arange(count), None)
    if share and (is_many or has_patience or not is_chosen):
        rows = held_out(count, seed, share, classes)
    if not is_chosen:
        return Split(rows, [])
    return Split(rows, [rows] if is_many else cross_validation(count, seed, classes))


def held_out(count: int, seed: int, share: float, classes: Tensor | None = None) -> Rows:
    """A random share of the rows; the first row of every class is always trained on."""
    order = torch.randperm(count, generator=_generator(seed, Stream.ROWS))
    movable = torch.ones(count, dtype=torch.bool)
    if classes is not None:
        labels = classes[order].tolist()
        movable[[labels.index(label) for label in set(labels)]] = False
    held = order[movable][: max(1, round(share * count))].sort().values
    rest = torch.arange(count)[~torch.isin(torch.arange(count), held)]
    if not (len(rest) and len(held)):
        missing = "to train on" if len(held) else "to hold out, since every class has one row only"
        raise ValueError(
            f"validation_fraction={share}: of {count} rows none is left {missing}; write "
            "validation_fraction=0"
        )
    return Rows(rest, held)


def cross_validation(count: int, seed: int, classes: Tensor | None = None) -> list[Rows]:
    """Folds of equal size, each held out once; rows that do not fit into equal folds are always trained on.

    Args:
        count: number of rows, two or more.
        seed: of their order.
        classes: of the rows, to be spread over the folds evenly.

    Examples:
        >>> [(len(rows.rest), len(rows.held)) for rows in cross_validation(7, seed=0)]
        [(6, 1), (6, 1), (6, 1), (6, 1), (6, 1)]
    """
    order = torch.randperm(count, generator=_generator(seed, Stream.FOLDS))
    folds = min(FOLDS, count)
    dealt = order[: count - count % folds]
    if classes is not None:
        dealt = dealt[classes[dealt].argsort(stable=True)]
    rows = torch.arange(count)
    return [
        Rows(rows[~torch.isin(rows, held)], held)
        for held in (dealt[fold::folds].sort().values for fold in range(folds))
    ]


def _generator(seed: int, stream: Stream) -> torch.Generator:
    return torch.Generator().manual_seed(mix(seed, stream))


@dataclass(frozen=True)
class TemperatureTrial:
    """A network to be trained on a table, all but its temperature.

    Args:
        net: makes a new one, from torch's global generator.
        x: scaled inputs (rows, columns).
        y: targets as the network sees them.
        likelihood: of the targets.
        prior: of the weights.
        options: of `kasuri.fit`.
        patience: validations without improvement before a network with rows held out stops.
        seed: of all noise.
    """

    net: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    prior: Prior
    options: Mapping[str, Any]
    patience: int | None
    seed: int

    def data(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows."""
        return self.x[rows], self.y[rows]

    def fit(self, rows: Rows, temperature: Any) -> Fitted:
        """One network, by the rows held out if there are any; without them there is nothing to wait for."""
        valid = None
        if rows.held is not None:
            valid = Validation(self.data(rows.held), patience=self.patience)
        parts = self._parts()
        return fit(self.net(), self.data(rows.rest), valid, temperature=temperature, **parts)

    def fit_many(self, folds: Sequence[Rows], temperatures: Sequence[float]) -> list[Fitted]:
        """A network for every fold and temperature; the epochs of a single fold are chosen on it as well."""
        # networks on the same rows are given the same tensors, which are then held once
        trains = [self.data(rows.rest) for rows in folds]
        only = folds[0].held if len(folds) == 1 else None
        count = len(temperatures)
        return fit_many(
            [self.net() for _ in range(len(folds) * count)],
            [train for train in trains for _ in range(count)],
            None if only is None else [self.data(only)] * count,
            temperature=list(temperatures) * len(folds),
            **self._parts(),
        )

    def _parts(self) -> dict[str, Any]:
        return {
            "likelihood": copy.deepcopy(self.likelihood),  # every network learns its own
            "prior": copy.deepcopy(self.prior),
            "seed": self.seed,
            **self.options,
        }


class Choice(NamedTuple):
    """What trying several temperatures found.

    Args:
        temperature: the best.
        scores: held-out NLL per row of every temperature.
        fitted: the network that had it, if there was one fold only.
    """

    temperature: Any
    scores: dict[float, float]
    fitted: Fitted | None


def choose(trial: TemperatureTrial, folds: Sequence[Rows], temperatures: Sequence[float]) -> Choice:
    """The temperature whose networks predict rows best that they were not trained on."""
    fits = _trained(trial, folds, temperatures)
    scores = dict.fromkeys(temperatures, 0.0)
    for number, rows in enumerate(folds):
        assert rows.held is not None
        x, y = trial.data(rows.held)
        for place, temperature in enumerate(temperatures):
            fitted = fits[number * len(temperatures) + place]
            nll = math.inf if fitted is None else _score(fitted, x, y, trial.seed)
            scores[temperature] += nll / len(folds)
    best = min(scores, key=lambda t: scores[t] if math.isfinite(scores[t]) else math.inf)
    return Choice(best, scores, fits[temperatures.index(best)] if len(folds) == 1 else None)


def _score(fitted: Fitted, x: Tensor, y: Tensor, seed: int) -> float:
    return examine(fitted.objective, x, y, _DRAWS, mix(seed, Stream.SCORES))[1]["nll"]


def _trained(
    trial: TemperatureTrial, folds: Sequence[Rows], temperatures: Sequence[float]
) -> Sequence[Fitted | None]:
    """A network for every fold and temperature, None for one that diverged."""
    try:
        return trial.fit_many(folds, temperatures)
    except MemoryError:
        raise
    except Exception as error:
        # priors and families of the user's own may not run as a stack; and if it is something else, the
        # fit of one network says what
        reason = told(error)
    fits: list[Fitted | None] = []
    for rows in folds:
        for temperature in temperatures:
            try:
                fits.append(
                    trial.fit(rows if len(folds) == 1 else Rows(rows.rest, None), temperature)
                )
            except NonFiniteLoss as error:
                fits.append(None)
                failure = error
    if not any(fits):
        raise failure
    warnings.warn(
        f"the networks could not be trained together ({reason}), so one after the other, which takes "
        "longer; a temperature of your own, e.g. temperature=0.3, saves choosing it",
        stacklevel=6,
    )
    return fits

"""Which temperature suits a table: several are tried on rows held out, all of them in one program."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kasuri.streams import Stream, mix
from kasuri.training.fit import fit
from kasuri.training.fitted import Fitted
from kasuri.training.many import fit_many
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


def split(
    count: int,
    seed: int,
    share: float,
    is_chosen: bool,
    has_patience: bool,
    classes: Tensor | None = None,
) -> tuple[Rows, list[Rows]]:
    """(rows of the network that is kept, folds to choose its temperature on: none if it is given).

    Below MANY rows each fold is held out once, and the network is then trained on all rows, unless it has
    patience. From MANY on `share` of the rows is held out for both.
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
        return rows, []
    return rows, [rows] if is_many else cross_validation(count, seed, classes)


def held_out(count: int, seed: int, share: float, classes: Tensor | None = None) -> Rows:
    """A random share of the rows; the first row of every class is always trained on."""
    order = torch.randperm(count, generator=_generator(seed, Stream.ROWS))
    movable = torch.ones(count, dtype=torch.bool)
    if classes is not None:
        labels = classes[order].tolist()
        movable[[labels.index(label) for label in set(labels)]] = False
    held = order[movable][: max(1, round(share * count))].sort().values
    if not 0 < len(held) < count:
        missing = "to train on" if len(held) else "to hold out, since every class has one row only"
        raise ValueError(
            f"validation_fraction={share}: of {count} rows none is left {missing}; write "
            "validation_fraction=0"
        )
    return Rows(_others(count, held), held)


def cross_validation(count: int, seed: int, classes: Tensor | None = None) -> list[Rows]:
    """Folds of equal size, each held out once, with an even share of every class.

    Networks of the folds are trained together, so the folds must be equal: rows that do not fit are always
    trained on.
    """
    order = torch.randperm(count, generator=_generator(seed, Stream.FOLDS))
    folds = min(FOLDS, count)
    dealt = order[: count - count % folds]
    if classes is not None:
        dealt = dealt[classes[dealt].argsort(stable=True)]
    parts = [dealt[fold::folds].sort().values for fold in range(folds)]
    return [Rows(_others(count, held), held) for held in parts]


def _others(count: int, held: Tensor) -> Tensor:
    rows = torch.arange(count)
    return rows[~torch.isin(rows, held)]


def _generator(seed: int, stream: Stream) -> torch.Generator:
    return torch.Generator().manual_seed(mix(seed, stream))


@dataclass(frozen=True)
class TemperatureTrial:
    """A network to be trained on a table, all but its temperature.

    `net` makes a new one from torch's global generator; `options` are those of `kasuri.fit`.
    """

    net: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    options: dict[str, Any]
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
        own = copy.deepcopy(self.options)  # every network learns its own likelihood and prior
        train = self.data(rows.rest)
        return fit(self.net(), train, valid, temperature=temperature, seed=self.seed, **own)


def choose(
    trial: TemperatureTrial, folds: Sequence[Rows], temperatures: Sequence[float]
) -> tuple[float, dict[float, float], Fitted | None]:
    """The temperature whose networks predict rows best that they were not trained on.

    (The best, the held-out NLL per row of each, the network that had the best if there was one fold only.)
    """
    held = [trial.data(rows.held) for rows in folds if rows.held is not None]
    trains = [trial.data(rows.rest) for rows in folds]  # copied once, for all temperatures
    count = len(temperatures)
    try:
        fits = fit_many(
            [trial.net() for _ in range(count * len(folds))],
            [train for train in trains for _ in range(count)],
            held * count if len(folds) == 1 else None,  # the epochs are chosen on them as well
            temperature=list(temperatures) * len(folds),
            seed=trial.seed,
            **trial.options,
        )
    except Exception as error:  # priors and families of the user's own may not run as a stack
        error.add_note(
            'temperature="auto" trains several networks in one program; a number, e.g. temperature=0.3, '
            "trains one alone"
        )
        raise
    noise, scores = mix(trial.seed, Stream.SCORES), dict.fromkeys(temperatures, 0.0)
    for index, fitted in enumerate(fits):
        nll = examine(fitted.objective, *held[index // count], _DRAWS, noise)[1]["nll"]
        scores[temperatures[index % count]] += nll / len(folds)
    best = min(scores, key=lambda t: scores[t] if math.isfinite(scores[t]) else math.inf)
    return best, scores, fits[temperatures.index(best)] if len(folds) == 1 else None

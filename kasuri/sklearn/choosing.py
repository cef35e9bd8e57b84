"""Which temperature suits a table: several are tried on rows held out, all of them in one program."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kasuri.streams import Stream, mix
from kasuri.training.fit import Fitted
from kasuri.training.many import fit_many
from kasuri.training.validation import examine

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
    """Rows to train on, and rows held out."""

    rest: Tensor
    held: Tensor

    @classmethod
    def without(cls, held: Tensor, count: int) -> "Rows":
        """The rows to train on, all of `count` rows but those held out."""
        rows, held = torch.arange(count), held.sort().values
        return cls(rows[~torch.isin(rows, held)], held)


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
    rows = Rows.without(torch.arange(0), count)
    if share and (is_many or has_patience or not is_chosen):
        rows = held_out(count, seed, share, classes)
    if not is_chosen:
        return rows, []
    return rows, [rows] if is_many else cross_validation(count, seed, classes)


def held_out(count: int, seed: int, share: float, classes: Tensor | None = None) -> Rows:
    """A random share of the rows; the first row of every class is always trained on."""
    order = _shuffled(count, seed, Stream.ROWS)
    movable = torch.ones(count, dtype=torch.bool)
    if classes is not None:
        labels = classes[order].tolist()
        movable[[labels.index(label) for label in set(labels)]] = False
    held = order[movable][: max(1, round(share * count))]
    if not 0 < len(held) < count:
        missing = "to train on" if len(held) else "to hold out, since every class has one row only"
        raise ValueError(
            f"validation_fraction={share}: of {count} rows none is left {missing}; write "
            "validation_fraction=0"
        )
    return Rows.without(held, count)


def cross_validation(count: int, seed: int, classes: Tensor | None = None) -> list[Rows]:
    """Folds of equal size, each held out once, with an even share of every class.

    Networks of the folds are trained together, so the folds must be equal: rows that do not fit are always
    trained on.
    """
    order = _shuffled(count, seed, Stream.FOLDS)
    folds = min(FOLDS, count)
    dealt = order[: count - count % folds]
    if classes is not None:
        dealt = dealt[classes[dealt].argsort(stable=True)]
    return [Rows.without(dealt[fold::folds], count) for fold in range(folds)]


def _shuffled(count: int, seed: int, stream: Stream) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, stream)))


def choose(
    net: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    folds: Sequence[Rows],
    temperatures: Sequence[float],
    options: dict[str, Any],
) -> tuple[float, dict[float, float], Fitted | None]:
    """The temperature whose networks predict rows best that they were not trained on.

    `net` makes a new network from torch's global generator; `options` are those of `kasuri.fit`.

    Returns the best, the held-out NLL per row of each, and with one fold the network trained at the best.
    """
    held = [(x[rows.held], y[rows.held]) for rows in folds]
    trains = [(x[rows.rest], y[rows.rest]) for rows in folds]  # copied once, for all temperatures
    count = len(temperatures)
    try:
        fits = fit_many(
            [net() for _ in range(count * len(folds))],
            [train for train in trains for _ in range(count)],
            held * count if len(folds) == 1 else None,  # the epochs are chosen on them as well
            temperature=list(temperatures) * len(folds),
            **options,
        )
    except Exception as error:  # priors and families of the user's own may not run as a stack
        error.add_note(
            'temperature="auto" trains several networks in one program; a number, e.g. temperature=0.3, '
            "trains one alone"
        )
        raise
    noise, scores = mix(options["seed"], Stream.SCORES), dict.fromkeys(temperatures, 0.0)
    for index, fitted in enumerate(fits):
        nll = examine(fitted.objective, *held[index // count], _DRAWS, noise)[1]["nll"]
        scores[temperatures[index % count]] += nll / len(folds)
    best = min(scores, key=lambda t: scores[t] if math.isfinite(scores[t]) else math.inf)
    return best, scores, fits[temperatures.index(best)] if len(folds) == 1 else None

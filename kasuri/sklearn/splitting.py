"""Rows to train on and rows to hold out."""

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from kasuri.streams import mix
from kasuri.training.sources import hold_out

FOLDS = 5
MANY = 5000  # rows of which a part is enough to compare networks on
_ROWS, _FOLDS = 11, 17  # streams of random numbers


class Rows(NamedTuple):
    """Rows to train on, and rows held out (None for none)."""

    rest: Tensor
    held: Tensor | None


class Split(NamedTuple):
    """Which rows are for what.

    Args:
        seed: that all noise follows from.
        rows: of the network that is kept.
        folds: to choose its temperature on; none if it is given.
    """

    seed: int
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
    everything = Rows(torch.arange(count), None)
    is_many = count >= MANY and share > 0
    rows = everything
    if share and (is_many or has_patience or not is_chosen):
        rows = _held_out(count, seed, share, classes)
    if not is_chosen:
        return Split(seed, rows, [])
    return Split(seed, rows, [rows] if is_many else cross_validation(count, seed, classes))


def _held_out(count: int, seed: int, share: float, classes: Tensor | None) -> Rows:
    index = torch.arange(count)
    (rest, _), (held, _) = hold_out((index, index), share, mix(seed, _ROWS))
    if not len(rest):
        raise ValueError(f"validation_fraction={share}: of {count} rows none is left to train on")
    if classes is not None:
        rest, held = with_every_class(rest, held, classes)
    if not len(held):
        raise ValueError(
            f"validation_fraction={share}: every class has one row only, and none can be held out; write "
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
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, _FOLDS)))
    folds = min(FOLDS, count)
    dealt = order[: count - count % folds]
    if classes is not None:
        dealt = dealt[classes[dealt].argsort(stable=True)]
    rows = torch.arange(count)
    return [
        Rows(rows[~torch.isin(rows, held)], held)
        for held in (dealt[fold::folds].sort().values for fold in range(folds))
    ]


def with_every_class(rest: Tensor, held: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to train on that have every class, and rows held out: as many as before if there are enough."""
    training, out = rest.tolist(), held.tolist()
    labels = classes.tolist()
    counts = Counter(labels[row] for row in training)
    for row in list(out):
        if counts[labels[row]]:
            continue
        out.remove(row)
        training.append(row)
        counts[labels[row]] += 1
        instead = next((one for one in training if counts[labels[one]] > 1), None)
        if instead is not None:
            training.remove(instead)
            out.append(instead)
            counts[labels[instead]] -= 1
    return torch.tensor(sorted(training)), torch.tensor(sorted(out), dtype=torch.int64)

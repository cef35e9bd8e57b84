"""Rows to train on and rows to hold out."""

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Rows to train on, rows held out (None for none), and the seed that all noise follows from."""

    seed: int
    rest: Tensor
    held: Tensor | None


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

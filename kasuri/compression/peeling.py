"""Peeling: how much every row and column of a matrix is needed, when the noise of others is gone.

The ratio of a row is Σ_j signal_ij / Σ_j noise_ij. Dead columns add noise to every row, so that a network
with many dead inputs would seem to need none of its outputs. Hence the least needed row or column is taken
away first, then the least needed of what is left, and so on. What a row or column is worth is the
largest ratio that had to go until it went; keeping all above a threshold is then the same as taking away
the worst until none is below.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ratios:
    """Signal and noise of the entries of one matrix, (out, in), as rows and as columns see them.

    Args:
        row_signal: summed along rows.
        row_noise: summed along rows.
        column_signal: summed along columns.
        column_noise: summed along columns.
    """

    row_signal: Tensor
    row_noise: Tensor
    column_signal: Tensor
    column_noise: Tensor


def quotient(signal: Tensor, noise: Tensor) -> Tensor:
    """Signal / noise; 0 where there is no signal, infinite where there is no noise."""
    return torch.where(signal > 0, signal / noise.clamp(min=0), 0.0)


def peel(matrix: Ratios, rows: bool = True, columns: bool = True) -> tuple[Tensor, Tensor]:
    """What every row (out,) and column (in,) is worth; with one side alone, its plain ratios.

    Examples:
        >>> signal = torch.tensor([[4.0, 0.0], [0.1, 0.0]])
        >>> peel(Ratios(signal, torch.ones(2, 2), signal, torch.ones(2, 2)))
        (tensor([4.0000, 0.1000]), tensor([4., 0.]))
    """
    sums = [
        [matrix.row_signal.sum(1), matrix.row_noise.sum(1)],
        [matrix.column_signal.sum(0), matrix.column_noise.sum(0)],
    ]
    if not (rows and columns):
        return quotient(*sums[0]), quotient(*sums[1])
    # what a side loses with a row (column) is in the parts as the columns (rows) see them
    parts = [
        (matrix.column_signal, matrix.column_noise),
        (matrix.row_signal, matrix.row_noise),
    ]
    worth = [torch.full_like(sums[side][0], math.inf) for side in (0, 1)]
    here = [torch.ones_like(one, dtype=torch.bool) for one in worth]
    ratios = [quotient(*one) for one in sums]
    highest = 0.0
    for _ in range(sum(map(len, worth))):
        best = [float(one.min()) for one in ratios]
        side = 0 if best[0] <= best[1] else 1
        place = int(ratios[side].argmin())
        if not math.isfinite(best[side]):
            break
        highest = max(highest, best[side])
        worth[side][place], here[side][place] = highest, False
        ratios[side][place] = math.inf
        other = 1 - side
        for total, part in zip(sums[other], parts[side], strict=True):
            total -= part.select(side, place)
            total.clamp_(min=0)
        # without any entry left nothing is known any more: a lone row keeps its last ratio
        if bool(here[side].any()):
            ratios[other] = torch.where(here[other], quotient(*sums[other]), math.inf)
    return worth[0], worth[1]

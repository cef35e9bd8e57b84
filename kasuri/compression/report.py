"""What compression did: counts, what stayed and why; and latency."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.compression.counting import Counts
from kasuri.compression.units import Key, Masks
from kasuri.inputs import call


@dataclass(frozen=True)
class UnitsLeft:
    """Units of one group before and after.

    Args:
        layer: that makes them.
        before: how many there were.
        after: how many are left.
        obstacle: why none could go, if so.
    """

    layer: str
    before: int
    after: int
    obstacle: str | None = None


@dataclass(frozen=True)
class MatrixLeft:
    """What is left of one weight matrix; rows and columns of all its blocks are counted.

    Args:
        name: of the parameter.
        shape: (*blocks, out, in).
        weights: number of weights.
        weights_left: of which are left.
        rows: number of rows (outputs).
        rows_left: of which have a weight left.
        columns: number of columns (inputs).
        columns_left: of which have a weight left.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    weights_left: int
    rows: int
    rows_left: int
    columns: int
    columns_left: int

    @property
    def dropped(self) -> float:
        """The share of weights that is dropped."""
        return 1 - self.weights_left / self.weights

    def cells(self) -> tuple[str, ...]:
        """Its line in a table."""
        return (
            self.name,
            f"{self.weights:,}",
            f"{self.weights_left:,}",
            f"{100 * self.dropped:.1f} %",
            f"{self.rows_left:,} of {self.rows:,}",
            f"{self.columns_left:,} of {self.columns:,}",
        )

    @staticmethod
    def of(name: str, mask: Tensor) -> "MatrixLeft":
        """From a mask in the layout of the matrix, True where a weight is left."""
        rows, columns = mask.any(-1), mask.any(-2)
        counts = [n for part in (mask, rows, columns) for n in (part.numel(), int(part.sum()))]
        return MatrixLeft(name, tuple(mask.shape), *counts)


@torch.no_grad()
def latency(before: nn.Module, after: nn.Module, example: Any) -> tuple[float, float]:
    """Median seconds of 20 calls of each network on the same input, in turn, after a warm-up.

    Only the ratio of the two means something for another machine.

    Args:
        before: a plain network, in evaluation mode.
        after: another one.
        example: input of both.

    Examples:
        >>> slow, fast = latency(nn.Linear(9, 300), nn.Linear(9, 3), torch.zeros(64, 9))
        >>> slow > 0, fast > 0
        (True, True)
    """
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(22):
        for net, times in zip((before, after), seconds, strict=True):
            start = time.perf_counter()
            call(net, example)
            times.append(time.perf_counter() - start)
    return statistics.median(seconds[0][2:]), statistics.median(seconds[1][2:])


@dataclass(frozen=True)
class CompressionReport:
    """What `kasuri.compress` did; print it, or read its fields.

    Args:
        criterion: by which units were judged.
        structure: what could go.
        before: counts of the posterior mean.
        after: counts of the small network.
        matrices: what is left of every weight matrix with a posterior.
        units: of every group of layers, heads of attention among them.
        difference: largest difference between the outputs of the small and of the masked network in
            double precision, on probes, relative to the largest output and at least 1.
        trials: validation losses of the masked networks that a search tried, the first one without masks.
        loss: of the masked network on these data, if there was a search.
        variational: parameters of the posterior before and after, if it was kept.
        notes: what stayed, and why.
        masks: by name of a weight, False where the masked network has 0.
        statistics: by layer (or weight) and side, logarithms of the criterion for every unit.
        levels: by the same, below which units were not needed.
    """

    criterion: str
    structure: str | tuple[str, ...]
    before: Counts
    after: Counts
    matrices: tuple[MatrixLeft, ...]
    units: tuple[UnitsLeft, ...] = ()
    difference: float = 0.0
    trials: tuple[float, ...] = ()
    loss: float | None = None
    variational: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    masks: Masks = field(default_factory=dict, repr=False, compare=False)
    statistics: Mapping[Key, Tensor] = field(default_factory=dict, repr=False, compare=False)
    levels: Mapping[Key, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def total(self) -> MatrixLeft:
        """What is left of all matrices together."""
        counts = [f.name for f in fields(MatrixLeft)][2:]
        sums = {key: sum(getattr(matrix, key) for matrix in self.matrices) for key in counts}
        return MatrixLeft("total", (), **sums)

    def as_dict(self) -> dict[str, Any]:
        """All but masks, statistics and levels, ready for JSON; infinite losses are None."""
        entries: dict[str, Any] = _ready(self)
        return entries

    def __str__(self) -> str:
        titles = {
            "parameters": "parameters",
            "nonzero": "weights not 0",
            "macs": "multiply-accumulates",
            "flops": "FLOPs",
            "table_flops": "FLOPs as tables count",
        }
        lines = [("", "before", "after", "ratio")]
        for key, title in titles.items():
            old, new = getattr(self.before, key), getattr(self.after, key)
            if old:
                ratio = old / new if new else math.inf
                lines.append((title, f"{old:,}", f"{new:,}", f"{ratio:.1f}"))
        for row in self.units:
            if row.obstacle is None:
                title = f"units of {row.layer or 'the layer'}"
                lines.append((title, f"{row.before:,}", f"{row.after:,}", ""))
        tables = [_aligned(lines)]
        if not self.units:
            head = ("", "weights", "left", "dropped", "rows left", "columns left")
            tables.append(_aligned([head, *(m.cells() for m in (*self.matrices, self.total))]))
        return "\n".join([*tables, *(f"- {note}" for note in self.notes)])


def _ready(value: Any) -> Any:
    """A value for JSON: objects as mappings of their fields and properties."""
    if is_dataclass(value):
        names = [f.name for f in fields(value) if f.repr]
        names += [name for name, kind in vars(type(value)).items() if isinstance(kind, property)]
        return {name: _ready(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [_ready(entry) for entry in value]
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    return None if is_infinite else value


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = []
    for first, *others in lines:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        rows.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(rows)

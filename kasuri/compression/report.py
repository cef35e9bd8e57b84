"""What compression did: counts, thresholds with their histograms, bits, time, and what stayed and why."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole
from kasuri.compression.counting import Counts
from kasuri.compression.coupling import OUTPUTS
from kasuri.compression.importance import Weight
from kasuri.compression.search import Trial
from kasuri.compression.units import Masks
from kasuri.inputs import call

BINS = 40
FULL = 32  # bits of a number that is stored as it is


@dataclass(frozen=True)
class Histogram:
    """A statistic of one side of one layer, and where it was cut.

    Args:
        layer: name of the layer, or of the weight if weights go one by one.
        side: "out" for units it makes, "in" for those it reads, and so on.
        edges: of the bins, logarithms.
        counts: in the bins.
        zero: how many are certainly 0, at -inf.
        level: the cut, a logarithm; -inf if there is none.
        below: how many are below it.
        units: how many there are.
    """

    layer: str
    side: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zero: int
    level: float
    below: int
    units: int

    @staticmethod
    def of(layer: str, side: str, logs: Tensor, level: float) -> "Histogram":
        """From the logarithms themselves."""
        known = logs[logs.isfinite()].double().flatten()
        edges: tuple[float, ...] = ()
        counts: tuple[int, ...] = ()
        if len(known):
            low, high = float(known.min()), float(known.max())
            high = high if high > low else low + 1
            counts = tuple(map(int, torch.histc(known, BINS, low, high)))
            edges = tuple(low + (high - low) * i / BINS for i in range(BINS + 1))
        zero, below = int((logs == -math.inf).sum()), int((logs < level).sum())
        return Histogram(layer, side, edges, counts, zero, level, below, logs.numel())


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

    def notes(self) -> list[str]:
        """Why they stayed, unless that is plain: outputs of the network always do."""
        if self.obstacle in (None, OUTPUTS):
            return []
        return [f"units of {self.layer!r} stay: {self.obstacle}"]


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
        """Its line of a table."""
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


@dataclass(frozen=True)
class Latency:
    """Seconds of one call, before and after; only their ratio says anything elsewhere.

    Args:
        before: median of the network as it was.
        after: of the small one.
        calls: of each.
    """

    before: float
    after: float
    calls: int

    @property
    def ratio(self) -> float:
        """How many times faster."""
        return self.before / self.after


@torch.no_grad()
def latency(before: nn.Module, after: nn.Module, example: Any, calls: int = 20) -> Latency:
    """Median times of both networks on the same input, called in turn, after a warm-up.

    Args:
        before: a plain network.
        after: another one.
        example: input of both.
        calls: of each.

    Examples:
        >>> latency(nn.Linear(300, 300), nn.Linear(300, 3), torch.zeros(64, 300), calls=5).calls
        5
    """
    if not is_whole(calls, 1):
        raise ValueError(f"latency: calls must be a whole number, 1 or more, got {calls!r}")
    modes = [net.training for net in (before, after)]
    seconds: dict[nn.Module, list[float]] = {before: [], after: []}
    try:
        for _ in range(calls + 2):
            for net, times in seconds.items():
                net.eval()
                start = time.perf_counter()
                call(net, example)
                times.append(time.perf_counter() - start)
    finally:
        before.train(modes[0])
        after.train(modes[1])
    medians = [statistics.median(times[2:]) for times in seconds.values()]
    return Latency(medians[0], medians[-1], calls)


@dataclass(frozen=True)
class Bits:
    """How many bits of the weights of one tensor the posterior can tell apart.

    Rounding adds an error of its own. As long as its mean square stays below the mean posterior variance of
    the layer, it is lost in what nobody knows anyway. Numbers spaced evenly by Δ have a mean square error
    of Δ²/12.

    Args:
        name: of the parameter.
        weights: left of it.
        fixed: bits for evenly spaced numbers between the smallest and the largest.
    """

    name: str
    weights: int
    fixed: int


def bits_of(name: str, mean: Tensor, variance: Tensor) -> Bits:
    """Bits that the weights with these means and variances need.

    Examples:
        >>> bits_of("w", torch.linspace(-1, 1, 100), torch.full((100,), 0.1**2)).fixed
        3
    """
    if not bool((mean != 0).any()):
        return Bits(name, len(mean), 0)
    noise = float(variance.double().mean())
    if noise <= 0:
        return Bits(name, len(mean), FULL)
    steps = float(mean.max() - mean.min()) / math.sqrt(12 * noise)
    return Bits(name, len(mean), min(math.ceil(math.log2(1 + steps)), FULL))


@torch.no_grad()
def bit_widths(weights: Mapping[str, Weight], left: Masks) -> list[Bits]:
    """Bits of every random weight, of what is left of it (True in the masks; without one all)."""
    widths = []
    for name, weight in weights.items():
        if weight.is_random:
            posterior, view = weight.posterior, weight.view
            parts = (posterior.mean, posterior.variance)
            mean, variance = (view.tensor(part).detach().cpu() for part in parts)
            here = left.get(name, torch.ones_like(mean, dtype=torch.bool))
            here = here & ((mean != 0) | (variance > 0))
            widths.append(bits_of(name, mean[here], variance[here]))
    return widths


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
        histograms: of every statistic, with its threshold.
        difference: largest difference between the outputs of the small and of the masked network in
            double precision, on probes, relative to the largest output and at least 1.
        bits: per weight, from the posterior.
        latency: before and after, if it was measured.
        unused_inputs: by layer, inputs of the network that it no longer looks at.
        trials: of the search on validation data.
        loss: of the masked network on these, if there was a search.
        variational: parameters of the posterior before and after, if it was kept.
        notes: what stayed, and why.
        masks: by name of a weight, False where the masked network has 0; not in `as_dict`.
    """

    criterion: str
    structure: str | tuple[str, ...]
    before: Counts
    after: Counts
    matrices: tuple[MatrixLeft, ...]
    units: tuple[UnitsLeft, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    difference: float = 0.0
    bits: tuple[Bits, ...] = ()
    latency: Latency | None = None
    unused_inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    trials: tuple[Trial, ...] = ()
    loss: float | None = None
    variational: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    masks: Masks = field(default_factory=dict, repr=False, compare=False)

    @property
    def total(self) -> MatrixLeft:
        """What is left of all matrices together."""
        counts = [f.name for f in fields(MatrixLeft)][2:]
        sums = {key: sum(getattr(matrix, key) for matrix in self.matrices) for key in counts}
        return MatrixLeft("total", (), **sums)

    @property
    def stored_ratio(self) -> float:
        """How many times fewer bits: 32 per parameter before, now for weights what the posterior needs."""
        random = sum(tensor.weights for tensor in self.bits)
        now = sum(tensor.weights * tensor.fixed for tensor in self.bits)
        rest = max(self.after.parameters - self.after.weights + self.after.nonzero - random, 0)
        total = now + FULL * rest
        return FULL * self.before.parameters / total if total else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; infinite levels are None."""

        def ready(value: Any) -> Any:
            if isinstance(value, Counts):
                return value.as_dict()
            if isinstance(value, MatrixLeft):
                return asdict(value) | {"dropped": value.dropped}
            if isinstance(value, Latency):
                return asdict(value) | {"ratio": value.ratio}
            if is_dataclass(value):
                return {f.name: ready(getattr(value, f.name)) for f in fields(value)}
            if isinstance(value, tuple):
                return [ready(entry) for entry in value]
            is_infinite = isinstance(value, float) and not math.isfinite(value)
            return None if is_infinite else value

        entries = {f.name: ready(getattr(self, f.name)) for f in fields(self) if f.name != "masks"}
        return entries | {"stored_ratio": ready(self.stored_ratio)}

    def __str__(self) -> str:
        titles = {
            "parameters": "parameters",
            "nonzero": "weights not 0",
            "macs": "multiply-accumulates",
            "flops": "FLOPs",
            "table_flops": "FLOPs as tables count",
        }
        before, after = self.before.as_dict(), self.after.as_dict()
        lines = [("", "before", "after", "ratio")]
        for key, title in titles.items():
            if old := before[key]:
                ratio = old / after[key] if after[key] else math.inf
                lines.append((title, f"{old:,}", f"{after[key]:,}", f"{ratio:.1f}"))
        if self.bits and self.after.nonzero:
            mean = sum(tensor.weights * tensor.fixed for tensor in self.bits) / self.after.nonzero
            stored = f"{self.stored_ratio:.1f}"
            lines.append(("bits per weight, if stored so", f"{FULL}", f"{mean:.1f}", stored))
        if self.latency is not None:
            slow, quick = (f"{1e3 * t:.3g}" for t in (self.latency.before, self.latency.after))
            lines.append(("milliseconds here", slow, quick, f"{self.latency.ratio:.1f}"))
        for row in self.units:
            if row.obstacle is None:
                title = f"units of {row.layer or 'the layer'}"
                lines.append((title, f"{row.before:,}", f"{row.after:,}", ""))
        tables = [_aligned(lines)]
        if not self.units:
            head = ("", "weights", "left", "dropped", "rows left", "columns left")
            tables.append(
                _aligned([head, *(matrix.cells() for matrix in (*self.matrices, self.total))])
            )
        return "\n".join([*tables, *(f"- {note}" for note in self.notes)])


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = []
    for line in lines:
        first, *others = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        rows.append("  ".join(cells).rstrip())
    return "\n".join(rows)

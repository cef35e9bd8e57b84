"""What compression did: counts, thresholds with their histograms, and what stayed and why."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kasuri.compression.bits import FULL, Bits
from kasuri.compression.counting import Counts, ratios
from kasuri.compression.graph import OUTPUTS
from kasuri.compression.latency import Latency
from kasuri.compression.thresholds import Trial

BINS = 40


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
class Units:
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

    def said(self) -> list[str]:
        """Why they stayed, unless that is plain: outputs of the network always do."""
        if self.obstacle in (None, OUTPUTS):
            return []
        return [f"units of {self.layer!r} stay: {self.obstacle}"]


@dataclass(frozen=True)
class CompressionReport:
    """What `kasuri.compress` did; print it, or read its fields.

    Args:
        criterion: by which units were judged.
        structure: what could go.
        agree: who had to agree.
        before: counts of the posterior mean.
        after: counts of the small network.
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
    structure: str
    agree: str
    before: Counts
    after: Counts
    units: tuple[Units, ...]
    histograms: tuple[Histogram, ...]
    difference: float
    bits: tuple[Bits, ...] = ()
    latency: Latency | None = None
    unused_inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    trials: tuple[Trial, ...] = ()
    loss: float | None = None
    variational: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    masks: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def stored_ratio(self) -> float:
        """How many times fewer bits: 32 per parameter before, now for weights what the posterior needs."""
        random = sum(one.weights for one in self.bits)
        now = sum(one.weights * one.fixed for one in self.bits)
        rest = max(self.after.parameters - self.after.weights + self.after.nonzero - random, 0)
        total = now + FULL * rest
        return FULL * self.before.parameters / total if total else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; infinite levels are None."""
        told = asdict(replace(self, masks={}))
        del told["masks"]
        told["before"], told["after"] = self.before.as_dict(), self.after.as_dict()
        for one in told["histograms"]:
            one["level"] = one["level"] if math.isfinite(one["level"]) else None
        told["trials"] = [asdict(one) for one in self.trials]
        for row in told["trials"]:
            row["level"] = row["level"] if math.isfinite(row["level"]) else None
        told["bits"] = [asdict(one) | {"floating": one.floating} for one in self.bits]
        if self.latency is not None:
            told["latency"] = asdict(self.latency) | {"ratio": self.latency.ratio}
        told["stored_ratio"] = self.stored_ratio
        return {key: _lists(value) for key, value in told.items()}

    def table(self) -> str:
        """A table for people."""
        lines = [("", "before", "after", "ratio")]
        times = ratios(self.before, self.after)
        names = {
            "parameters": "parameters",
            "nonzero": "weights not 0",
            "macs": "multiply-accumulates",
            "flops": "FLOPs",
            "table_flops": "FLOPs as tables count",
        }
        old, new = self.before.as_dict(), self.after.as_dict()
        for key, title in names.items():
            lines.append((title, f"{old[key]:,}", f"{new[key]:,}", f"{times[key]:.1f}"))
        if self.bits and self.after.nonzero:
            mean = sum(one.weights * one.fixed for one in self.bits) / self.after.nonzero
            stored = f"{self.stored_ratio:.1f}"
            lines.append(("bits per weight, if stored so", f"{FULL}", f"{mean:.1f}", stored))
        if self.latency is not None:
            slow, quick = (f"{1e3 * t:.3g}" for t in (self.latency.before, self.latency.after))
            lines.append(("milliseconds here", slow, quick, f"{self.latency.ratio:.1f}"))
        for one in self.units:
            if one.obstacle is None:
                lines.append(
                    (
                        f"units of {one.layer or 'the layer'}",
                        f"{one.before:,}",
                        f"{one.after:,}",
                        "",
                    )
                )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = [
            "  ".join(
                cell.rjust(width) if index else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*rows, *(f"- {note}" for note in self.notes)])

    def __str__(self) -> str:
        """The table."""
        return self.table()


def _lists(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {key: _lists(one) for key, one in value.items()}
    return [_lists(one) for one in value] if isinstance(value, tuple | list) else value

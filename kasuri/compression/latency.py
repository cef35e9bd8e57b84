"""Latency: how long two networks take on this machine's processor, in the same run."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kasuri.checks import is_whole
from kasuri.compression.running import call


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
        >>> found = latency(nn.Linear(300, 300), nn.Linear(300, 3), torch.zeros(64, 300), calls=5)
        >>> found.calls, found.ratio > 0
        (5, True)
    """
    if not is_whole(calls, 1):
        raise ValueError(f"latency(calls={calls}): a whole number of calls, 1 or more")
    nets = (before, after)
    modes = [net.training for net in nets]
    times: tuple[list[float], list[float]] = ([], [])
    try:
        for index in range(calls + 2):
            for net, told in zip(nets, times, strict=True):
                net.eval()
                start = time.perf_counter()
                call(net, example)
                if index >= 2:
                    told.append(time.perf_counter() - start)
    finally:
        for net, mode in zip(nets, modes, strict=True):
            net.train(mode)
    return Latency(statistics.median(times[0]), statistics.median(times[1]), calls)

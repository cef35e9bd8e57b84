"""A level for every layer, in steps: units go where the loss grows least for what is saved."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.compression.graph import Group
from kasuri.compression.searching import Levels
from kasuri.compression.statistics import Key, Statistic
from kasuri.compression.thresholds import Trial

SHARE = 8  # a step takes an eighth of what is left, and half of that if it costs too much
FREE = 1e-6  # nats that count as nothing
Masks = Mapping[str, Tensor]


@dataclass
class Block:
    """Statistics that decide about the same units, and how far their common level has come.

    Args:
        keys: of the statistics.
        values: of all of them without offsets, in ascending order.
        at: number of values below the level.
        step: number of values that the next step takes; 0 if there is none.
        gain: what the next step saves for each nat; inf as long as that is not known.
        after: loss and saving after it, if they were measured since another block went on.
    """

    keys: tuple[Key, ...]
    values: list[float]
    at: int = 0
    step: int = -1
    gain: float = math.inf
    after: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Start with the largest step."""
        if self.step < 0:
            self.step = self._largest()

    def _largest(self) -> int:
        left = len(self.values) - self.at
        return min(left, max(1, left // SHARE))

    def level(self, at: int) -> float:
        """Just above so many values, so that the last unit itself goes."""
        return math.nextafter(self.values[at - 1], math.inf) if at else -math.inf

    def go(self) -> None:
        """Take the step."""
        self.at += self.step
        self.step = min(self.step, self._largest())
        self.gain, self.after = math.inf, None


def blocks_of(groups: Sequence[Group], statistics: Mapping[Key, Statistic]) -> list[Block]:
    """Statistics by the units they decide about; those of layers that share units are one block.

    Examples:
        >>> from kasuri.compression.graph import Member
        >>> one = Member("0", "out", ((0,), (1,))), Member("2", "in", ((0,), (1,)))
        >>> logs = {key: Statistic(*key, torch.tensor([0.0, 1.0])) for key in (("0", "out"), ("2", "in"))}
        >>> [block.keys for block in blocks_of([Group("0", 2, one)], logs)]
        [(('0', 'out'), ('2', 'in'))]
    """
    owner = {key: {key} for key in statistics}
    for group in groups:
        shared = [(m.layer, m.side) for m in group.members if (m.layer, m.side) in statistics]
        together = set().union(*(owner[key] for key in shared))
        for key in together:
            owner[key] = together
    found = []
    for one in {id(keys): keys for keys in owner.values()}.values():
        keys = tuple(key for key in statistics if key in one)
        logs = torch.cat([(statistics[k].logs - statistics[k].offset).flatten() for k in keys])
        found.append(Block(keys, logs[logs.isfinite()].unique().tolist()))
    return found


class Search:
    """Levels at which the loss of the masked network stays within a tolerance.

    At every step the block goes on whose next units save most for each nat of loss. What was measured
    before others went on is measured again before it is believed.

    Args:
        blocks: all at their starts.
        statistics: of all sides.
        keep: masks at certain levels.
        loss: of the network with such masks, on validation data.
        saved: what is saved at certain levels.
        tolerance: by how much the loss may exceed that of the network as it is.
        wanted: what masks have to save, whatever it costs.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        statistics: Mapping[Key, Statistic],
        keep: Callable[[Levels], Masks],
        loss: Callable[[Masks], float],
        saved: Callable[[Levels], float],
        tolerance: float,
        wanted: float = 0.0,
    ) -> None:
        if not tolerance >= 0:
            raise ValueError(
                f"compress(tolerance={tolerance}): by how much the loss may grow, 0 or more"
            )
        self.blocks, self.statistics = blocks, statistics
        self.keep, self.loss, self.saved, self.wanted = keep, loss, saved, wanted
        self.trials: list[Trial] = []
        start = self.levels()
        self.now = self._measure(start, -math.inf), saved(start)
        self.limit = self.now[0] + tolerance

    def run(self) -> tuple[Levels, list[Trial]]:
        """Go on until every further step would cost too much: the levels, and all that was tried."""
        while any(block.step for block in self.blocks):
            best = max((b for b in self.blocks if b.step), key=lambda block: block.gain)
            if best.after is None:
                self._look(best)
                continue
            self.now = best.after
            best.go()
            for block in self.blocks:
                block.after = None
        return self.levels(), self.trials

    def levels(self, moved: Block | None = None) -> Levels:
        """The level of every statistic, if one block took its step."""
        found: Levels = {}
        for block in self.blocks:
            level = block.level(block.at + block.step if block is moved else block.at)
            found |= {key: level + self.statistics[key].offset for key in block.keys}
        return found

    def _look(self, block: Block) -> None:
        """What the next step that saves anything would cost."""
        while block.step:
            levels = self.levels(block)
            value = self.saved(levels)
            if value == self.now[1]:  # the other side of these units does not agree yet
                block.go()
                continue
            if value < self.now[1]:  # all would go, so that none does
                block.step //= 2
                continue
            after = self._measure(levels, block.level(block.at + block.step))
            if after <= self.limit or self._must(block, value):
                block.gain = self._gain(after, value)
                block.after = after, value
                return
            block.step //= 2

    def _gain(self, loss: float, value: float) -> float:
        """What a step saves for each nat; what is beyond a budget that is not kept yet counts nothing."""
        if self.now[1] < self.wanted:
            value = min(value, self.wanted)
        return (value - self.now[1]) / max(loss - self.now[0], FREE)

    def _must(self, block: Block, value: float) -> bool:
        """Whether a step is due at any cost; the last ones are small, so that no more goes than has to."""
        return self.now[1] < self.wanted and (value <= self.wanted or block.step == 1)

    def _measure(self, levels: Levels, level: float) -> float:
        self.trials.append(Trial(level, self.loss(self.keep(levels))))
        return self.trials[-1].loss


@dataclass(frozen=True)
class Savings:
    """What masks save: weights that are not 0 yet, each at the price of its matrix.

    Args:
        net: plain.
        prices: by name of a matrix; what has none is free. Without any, every matrix has price 1.

    Examples:
        >>> net = nn.Linear(3, 1)
        >>> net.weight.data = torch.tensor([[1.0, 2.0, 0.0]])
        >>> savings = Savings(net, {"weight": 64.0})
        >>> savings({"weight": torch.tensor([[True, False, False]])}), savings.total
        (64.0, 128.0)
    """

    net: nn.Module
    prices: Mapping[str, float]

    @property
    def total(self) -> float:
        """What there is to save."""
        names = [name for name, weight in self.net.named_parameters() if weight.dim() >= 2]
        return sum(self._worth(name, self.net.get_parameter(name) != 0) for name in names)

    def __call__(self, masks: Masks) -> float:
        """What these save."""
        left = {name: self.net.get_parameter(name) != 0 for name in masks}
        return sum(self._worth(name, left[name] & ~mask) for name, mask in masks.items())

    def _worth(self, name: str, entries: Tensor) -> float:
        price = self.prices.get(name, 0.0) if self.prices else 1.0
        return price * int(entries.sum())

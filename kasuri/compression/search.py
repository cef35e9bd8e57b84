"""Where to cut: a number, the largest gap of each statistic, or what validation data allow."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kasuri import inputs
from kasuri.checks import is_number, is_whole
from kasuri.compression.coupling import Group, connected
from kasuri.compression.decisions import Decider, Levels
from kasuri.compression.importance import LOG_MODE, Key, Statistic
from kasuri.compression.units import Masks, masked_net
from kasuri.inputs import Labelled
from kasuri.objectives.elbo import ELBO

MIN_GAP = 1.0  # in nats: a factor e between the worst that stays and the best that goes
BATCH = 500
SHARE = (
    8  # a step of one layer takes an eighth of what is left, and half of that if it costs too much
)
FREE = 1e-6  # nats that count as nothing

Validation = tuple[Any, Tensor] | Labelled | Callable[[nn.Module], float]
LossOf = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Gap:
    """Cut at the largest gap in the sorted statistic, on each side of each layer.

    A gap is at least a factor e wide, and begins below as much signal as noise; where there is none, nothing
    goes but what is certainly 0.
    """


@dataclass(frozen=True)
class Loss:
    """Cut the most that validation data allow, at one level for the whole network.

    Args:
        tolerance: by how much the validation loss may grow: nats per example, with validation=(x, y).
        price: what a budget counts, and `PerLayer` saves: "weights", or "macs" (multiply-accumulates).
        budget: how many weights that are not 0 (or, by price, multiply-accumulates with these) may be left
            at most, whatever the loss; within the tolerance more may go. None for any number.
    """

    tolerance: float = 0.01
    price: str = "weights"
    budget: int | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not (is_number(self.tolerance) and self.tolerance >= 0):
            raise ValueError(
                f"{kind}(tolerance={self.tolerance!r}): tolerance, by how much the loss may grow, must be a "
                "number, 0 or more"
            )
        if self.price not in ("weights", "macs"):
            raise ValueError(
                f'{kind}(price={self.price!r}): write "weights", or "macs" for multiply-accumulates'
            )
        if self.budget is not None and not is_whole(self.budget, 0):
            raise ValueError(
                f"{kind}(budget={self.budget!r}): budget, how many weights may be left, must be a whole "
                "number, 0 or more"
            )


@dataclass(frozen=True)
class PerLayer(Loss):
    """The same with a level for every layer, which takes longer and leaves less."""


Threshold = float | Gap | Loss


@dataclass(frozen=True)
class SearchResult:
    """Where to cut.

    Args:
        levels: of all statistics.
        notes: remarks for the report.
        trials: losses of the masked networks that were tried, the first one without masks.
        loss: of the network that is cut there, if it was searched for.
    """

    levels: Levels
    notes: Sequence[str] = ()
    trials: Sequence[float] = ()
    loss: float | None = None


def find_cut(
    decider: Decider,
    threshold: Threshold,
    criterion: str,
    loss: Callable[[Masks], float] | None,
    prices: Mapping[str, float],
) -> SearchResult:
    """Where to cut.

    Args:
        decider: says what goes at given levels.
        threshold: of `kasuri.compress`.
        criterion: by which statistics were made.
        loss: of the network with such masks, on validation data; needed to search.
        prices: of the weights of each matrix, to search.
    """
    if isinstance(threshold, Gap):
        return _gaps(decider, criterion)
    if not isinstance(threshold, Loss):
        return SearchResult(_fixed(decider.statistics, threshold, criterion))
    assert loss is not None
    return _searched(decider, threshold, loss, prices)


def _fixed(statistics: Mapping[Key, Statistic], threshold: float, criterion: str) -> Levels:
    """The same threshold everywhere: a ratio, or for radii a log-mode."""
    if criterion == LOG_MODE:
        return dict.fromkeys(statistics, threshold)
    if not threshold >= 0:
        raise ValueError(
            f"compress(threshold={threshold}, criterion={criterion!r}): the ratio below which a unit is not "
            "needed must be 0 or more, e.g. 0.05"
        )
    return dict.fromkeys(statistics, math.log(threshold) if threshold > 0 else -math.inf)


def _gaps(decider: Decider, criterion: str) -> SearchResult:
    """The largest gap of every side; where there is none, only what is certainly 0 goes."""
    levels, notes = {}, []
    free = [group for group in decider.groups if group.obstacle is None]
    asked = {(member.layer, member.side) for group in free for member in group.members}
    ceiling = math.inf if criterion == LOG_MODE else 0.0  # of a ratio: as much signal as noise
    for key, statistic in decider.statistics.items():
        logs = statistic.logs
        levels[key] = largest_gap(logs, ceiling)
        if levels[key] == -math.inf:
            known = logs[logs > -math.inf]
            if 0 < len(known) < len(logs):
                levels[key] = float(known.min())
            if key in asked:
                notes.append(f"no gap in the statistic of {key[0]!r} ({key[1]})")
    return SearchResult(levels, notes)


def largest_gap(logs: Tensor, ceiling: float = math.inf) -> float:
    """The middle of the largest gap in sorted numbers; -inf where there is none.

    A gap counts if it is at least `MIN_GAP` wide and what lies below it is below the ceiling. What
    is at -inf is below every cut, and is no end of a gap.

    Examples:
        >>> largest_gap(torch.tensor([-6.0, -5.0, 1.0, 2.0]))
        -2.0
        >>> largest_gap(torch.tensor([0.1, 0.2, 0.3]))
        -inf
    """
    known = logs[logs > -math.inf].double().clamp(max=1e300).flatten().sort().values
    if len(known) < 2:
        return -math.inf
    gaps = torch.where(known[:-1] < ceiling, known.diff(), -math.inf)
    place = int(gaps.argmax())
    if not float(gaps[place]) >= MIN_GAP:
        return -math.inf
    low, high = float(known[place]), float(known[place + 1])
    return (low + high) / 2 if high < 1e299 else low + MIN_GAP


def _searched(
    decider: Decider,
    threshold: Loss,
    loss: Callable[[Masks], float],
    prices: Mapping[str, float],
) -> SearchResult:
    """As far as the loss, or a budget, allows; by halves if there is one level for all."""
    statistics, budget = decider.statistics, threshold.budget
    if isinstance(threshold, PerLayer):
        blocks = blocks_of(decider.groups, statistics)
    else:
        blocks = [Block.of(statistics, tuple(statistics), share=2)]
    total = saved_by({name: torch.tensor(False) for name in prices}, decider.net, prices)
    wanted = 0.0 if budget is None else total - budget
    known: dict[int, float] = {}  # by masks, of which many levels have the same

    def loss_at(levels: Levels) -> float:
        masks = decider.masks(levels)
        key = hash(tuple((name, masks[name].numpy().tobytes()) for name in sorted(masks)))
        if key not in known:
            known[key] = loss(masks)
        return known[key]

    search = Search(
        blocks,
        statistics,
        loss_at,
        lambda levels: saved_by(decider.masks(levels, whole=True), decider.net, prices),
        threshold.tolerance,
        wanted,
    )
    levels = search.run()
    notes = []
    if search.saved < wanted:
        notes.append(f"{round(total - search.saved)} are left, the budget was {budget}")
    return SearchResult(levels, notes, search.trials, search.loss)


@dataclass
class Block:
    """Statistics that decide about the same units, and how far their common level has come.

    Args:
        keys: of the statistics.
        values: of all of them without offsets, in ascending order.
        share: a step takes at most this part of what is left: an eighth if it is 8.
        at: number of values below the level.
        step: number of values that the next step takes; 0 if there is none.
        gain: what the next step saves for each nat; inf as long as that is not known.
        after: loss and saving after it, if they were measured since another block went on.
    """

    keys: tuple[Key, ...]
    values: list[float]
    share: int = SHARE
    at: int = 0
    step: int = field(init=False)
    gain: float = math.inf
    after: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.step = self._largest()

    @staticmethod
    def of(statistics: Mapping[Key, Statistic], keys: tuple[Key, ...], share: int) -> "Block":
        """All values of some statistics."""
        logs = torch.cat([(statistics[k].logs - statistics[k].offset).flatten() for k in keys])
        return Block(keys, logs[logs.isfinite()].unique().tolist(), share)

    def _largest(self) -> int:
        left = len(self.values) - self.at
        return min(left, max(1, left // self.share))

    def level(self, at: int) -> float:
        """Just above so many values, so that the last unit itself goes."""
        return math.nextafter(self.values[at - 1], math.inf) if at else -math.inf

    def go(self) -> None:
        """Take the step."""
        self.at += self.step
        self.step = min(self.step, self._largest())
        self.gain, self.after = math.inf, None


def blocks_of(groups: Sequence[Group], statistics: Mapping[Key, Statistic]) -> list[Block]:
    """Statistics by the units they decide about; those of layers that share units are one block."""
    shared = [{(m.layer, m.side) for m in group.members} & statistics.keys() for group in groups]
    blocks = []
    for members in connected([*([key] for key in statistics), *shared]):
        keys = tuple(key for key in statistics if key in members)
        blocks.append(Block.of(statistics, keys, SHARE))
    return blocks


class Search:
    """Levels at which the loss of the masked network stays within a tolerance.

    Every step takes the next units of the block in which they save most for each nat of loss. What was
    measured before the step of another block is measured again before it is used.

    Args:
        blocks: all at their starts.
        statistics: of all sides.
        loss_at: loss of the masked network at certain levels, on validation data.
        saved_at: what is saved at certain levels.
        tolerance: by how much the loss may exceed that of the network as it is.
        wanted: what has to be saved, whatever it costs.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        statistics: Mapping[Key, Statistic],
        loss_at: Callable[[Levels], float],
        saved_at: Callable[[Levels], float],
        tolerance: float,
        wanted: float = 0.0,
    ) -> None:
        self.blocks, self.statistics = blocks, statistics
        self.loss_at, self.saved_at, self.wanted = loss_at, saved_at, wanted
        self.trials: list[float] = []
        start = self.levels()
        self.loss, self.saved = self._measure(start), saved_at(start)
        self.limit = self.loss + tolerance

    def run(self) -> Levels:
        """Go on until every further step would cost too much: the levels."""
        while any(block.step for block in self.blocks):
            best = max((b for b in self.blocks if b.step), key=lambda block: block.gain)
            if best.after is None:
                self._look(best)
                continue
            self._take(best, *best.after)
        return self.levels()

    def levels(self, moved: Block | None = None) -> Levels:
        """The level of every statistic, if one block took its step."""
        levels: Levels = {}
        for block in self.blocks:
            level = block.level(block.at + block.step if block is moved else block.at)
            levels |= {key: level + self.statistics[key].offset for key in block.keys}
        return levels

    def _look(self, block: Block) -> None:
        """What the next step that saves anything would cost."""
        while block.step:
            levels = self.levels(block)
            saved = self.saved_at(levels)
            if saved == self.saved:  # the other side does not agree yet, or is gone already
                loss = self.loss_at(levels)
                if loss <= max(self.loss, self.limit) or self._must(block, saved):
                    self._take(block, loss, saved)
                else:
                    block.step //= 2
                continue
            if saved < self.saved:  # all would go, so that none does
                block.step //= 2
                continue
            loss = self._measure(levels)
            if loss <= self.limit or self._must(block, saved):
                block.gain = self._gain(loss, saved)
                block.after = loss, saved
                return
            block.step //= 2

    def _take(self, block: Block, loss: float, saved: float) -> None:
        """Take a block's step; what it changes has to be measured again for all others."""
        block.go()
        if (loss, saved) != (self.loss, self.saved):
            for other in self.blocks:
                other.after = None
        self.loss, self.saved = loss, saved

    def _gain(self, loss: float, saved: float) -> float:
        """What a step saves for each nat; until a budget is kept, savings beyond it do not count."""
        if self.saved < self.wanted:
            saved = min(saved, self.wanted)
        return (saved - self.saved) / max(loss - self.loss, FREE)

    def _must(self, block: Block, saved: float) -> bool:
        """Whether a step is due at any cost; the last ones are small, so that no more goes than has to."""
        return self.saved < self.wanted and (saved <= self.wanted or block.step == 1)

    def _measure(self, levels: Levels) -> float:
        self.trials.append(self.loss_at(levels))
        return self.trials[-1]


def saved_by(masks: Masks, net: nn.Module, prices: Mapping[str, float]) -> float:
    """What masks save: weights that are not 0 yet, each at the price of its matrix.

    Args:
        masks: by name of a matrix.
        net: plain.
        prices: of a weight of each matrix, by name; what has none is free.

    Examples:
        >>> net = nn.Linear(3, 1)
        >>> net.weight.data = torch.tensor([[1.0, 2.0, 0.0]])
        >>> saved_by({"weight": torch.tensor([[True, False, False]])}, net, {"weight": 64.0})
        64.0
    """
    return sum(
        prices.get(name, 0.0) * int(((net.get_parameter(name) != 0) & ~mask).sum())
        for name, mask in masks.items()
    )


def validation_loss(validation: Any, model: nn.Module) -> LossOf:
    """A function from a plain network to its validation loss.

    Args:
        validation: such a function; or (x, y), for minus the mean log-likelihood under the objective's
            likelihood.
        model: what was given to compress.
    """
    if callable(validation) and not isinstance(validation, nn.Module):
        given: LossOf = validation
        return torch.no_grad()(lambda net: float(given(net)))
    if isinstance(validation, Labelled):
        validation = (validation.x, validation.y)
    if not (isinstance(validation, tuple | list) and len(validation) == 2):
        raise TypeError(
            "compress(validation=...): give (x, y), an object with .x and .y, or a function from a network "
            "to its loss"
        )
    if not isinstance(model, ELBO):
        raise ValueError(
            "compress(bnn, validation=(x, y)): a network alone does not say what its loss is; hand the "
            "kasuri.ELBO to compress, or give validation=lambda net: loss(net(x), y)"
        )
    x, y = validation
    if not inputs.count(x, y):
        raise ValueError("compress(validation=(x, y)): x and y must hold at least one example")
    likelihood, output = model.likelihood, model.output

    @torch.no_grad()
    def nll(net: nn.Module) -> float:
        total = 0.0
        for part, targets in zip(inputs.split(x, BATCH), y.split(BATCH), strict=True):
            f = inputs.run(net, part, output)
            total += float(likelihood.log_prob(f, targets).double().sum())
        return -total / len(y)

    return nll


def masked_loss(loss: LossOf, plain: nn.Module) -> Callable[[Masks], float]:
    """The loss as a function of masks; refused if it is not finite without any.

    The network keeps its own precision: a loss needs no more, and double takes several times as long.
    """
    start = loss(copy.deepcopy(plain).eval())
    if not math.isfinite(start):
        raise ValueError(
            f"compress: the validation loss of the uncompressed network is {start}, so nothing can be "
            "compared with it; look at the data and the network, or give a number as threshold"
        )
    return lambda masks: loss(masked_net(plain, masks).eval())

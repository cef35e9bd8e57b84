"""Where to cut: a number, the largest gap of each statistic, or what validation data allow."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kasuri.checks import is_number, is_whole, one_of
from kasuri.compression.coupling import connected
from kasuri.compression.decisions import Decider, Levels
from kasuri.compression.units import Key, Masks, masked_net
from kasuri.inputs import Labelled
from kasuri.objectives.elbo import ELBO
from kasuri.prediction.evaluate import evaluate

MIN_GAP = 1.0  # in nats: a factor e between the worst that stays and the best that goes
# a step of one layer takes an eighth of what is left, and half of that if it costs too much
SHARE = 8
FREE = 1e-6  # nats that count as nothing

Price = Literal["weights", "macs"]
Validation = tuple[Any, Tensor] | Labelled | Iterable[Any] | Callable[[nn.Module], float]


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
    price: Price = "weights"
    budget: int | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not (is_number(self.tolerance) and self.tolerance >= 0):
            raise ValueError(
                f"{kind}(tolerance={self.tolerance!r}): tolerance, by how much the loss may grow, must be a "
                "number, 0 or more"
            )
        one_of(price=(self.price, Price))
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
class Cut:
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


def at_number(statistics: Mapping[Key, Tensor], threshold: float) -> Cut:
    """The same threshold everywhere."""
    return Cut(dict.fromkeys(statistics, math.log(threshold) if threshold > 0 else -math.inf))


def at_gaps(decider: Decider) -> Cut:
    """The largest gap of every side; where there is none, only what is certainly 0 goes."""
    levels, notes = {}, []
    asked = {member.key for group in decider.groups if group.makers for member in group.members}
    for key, logs in decider.statistics.items():
        levels[key] = largest_gap(logs)
        if levels[key] == -math.inf:
            known = logs[logs > -math.inf]
            if 0 < len(known) < len(logs):
                levels[key] = float(known.min())
            if key in asked:
                notes.append(f"no gap in the statistic of {key[0]!r} ({key[1]})")
    return Cut(levels, notes)


def largest_gap(logs: Tensor) -> float:
    """The middle of the largest gap in sorted numbers; -inf where there is none.

    A gap counts if it is at least `MIN_GAP` wide and begins below 0: less signal than noise, or any mode but
    the largest. What is at -inf is below every cut, and is no end of a gap.

    Examples:
        >>> largest_gap(torch.tensor([-6.0, -5.0, 1.0, 2.0]))
        -2.0
        >>> largest_gap(torch.tensor([-2.0, -1.0, 5.0, 20.0]))
        2.0
        >>> largest_gap(torch.tensor([0.1, 0.2, 5.0]))
        -inf
    """
    known = logs[logs > -math.inf].double().clamp(max=1e300).flatten().sort().values
    if len(known) < 2:
        return -math.inf
    gaps = torch.where(known[:-1] < 0, known.diff(), -math.inf)
    place = int(gaps.argmax())
    if not float(gaps[place]) >= MIN_GAP:
        return -math.inf
    low, high = float(known[place]), float(known[place + 1])
    return (low + high) / 2 if high < 1e299 else low + MIN_GAP


class Block:
    """Statistics that decide about the same units, and how far their common level has come.

    `at` values are below the level, and the next step takes `step` more, or none if it is 0. It saves `gain`
    for each nat: inf as long as that is not known. Loss and saving after it are in `after`, if they were
    measured since another block went on.

    Args:
        decider: has the statistics.
        keys: of those in this block.
        share: a step takes at most this part of what is left: an eighth if it is 8.
    """

    def __init__(self, decider: Decider, keys: Sequence[Key], share: int = SHARE) -> None:
        self.keys, self.share = keys, share
        logs = torch.cat([decider.statistics[key].flatten() for key in keys])
        self.values: list[float] = logs[logs.isfinite()].unique().tolist()
        self.at, self.step = 0, len(self.values)
        self.go(0)

    def go(self, step: int) -> None:
        """Take a step; the next one is no longer."""
        self.at += step
        left = len(self.values) - self.at
        self.step = min(self.step, left, max(1, left // self.share))
        self.gain = math.inf
        self.after: tuple[float, float] | None = None

    def levels(self, step: int) -> Levels:
        """After such a step: just above the last value that goes."""
        at = self.at + step
        level = math.nextafter(self.values[at - 1], math.inf) if at else -math.inf
        return dict.fromkeys(self.keys, level)


class Search:
    """Levels at which the loss of the masked network stays within a tolerance, or a budget is kept.

    Every step takes the next units of the block in which they save most for each nat of loss. What was
    measured before the step of another block is measured again before it is used.

    Args:
        decider: says what goes at given levels.
        threshold: tolerance, price and budget; one level for all, or per layer.
        loss: of the network with such masks, on validation data.
        prices: of the weights of each matrix; 1 by default.
    """

    def __init__(
        self,
        decider: Decider,
        threshold: Loss,
        loss: Callable[[Masks], float],
        prices: Mapping[str, float] | None = None,
    ) -> None:
        if prices is None:
            matrices = (name for name, p in decider.net.named_parameters() if p.dim() >= 2)
            prices = dict.fromkeys(matrices, 1.0)
        self.decider, self.measured, self.prices = decider, loss, prices
        self.known: dict[int, float] = {}  # losses by masks, of which many levels have the same
        statistics, self.budget = decider.statistics, threshold.budget
        self.blocks = [Block(decider, tuple(statistics), share=2)]
        if isinstance(threshold, PerLayer):  # statistics of layers that share units are one block
            shared = [
                {m.key for m in group.members} & statistics.keys() for group in decider.groups
            ]
            links = [*([key] for key in statistics), *shared]
            self.blocks = [Block(decider, keys) for keys in connected(links)]
        left = {name: int(decider.net.get_parameter(name).count_nonzero()) for name in prices}
        self.total = sum(prices[name] * left[name] for name in prices)
        self.wanted = 0.0 if self.budget is None else self.total - self.budget
        start = self._levels()
        self.loss, self.saved = self._loss_at(start), self._saved_at(start)
        self.trials, self.limit = [self.loss], self.loss + threshold.tolerance

    def run(self) -> Cut:
        """Go on until every further step would cost too much."""
        while moving := [block for block in self.blocks if block.step]:
            best = max(moving, key=lambda block: block.gain)
            if best.after is None:
                self._look(best)
            else:
                self._take(best, *best.after)
        notes = []
        if self.saved < self.wanted:
            notes.append(f"{round(self.total - self.saved)} are left, the budget was {self.budget}")
        return Cut(self._levels(), notes, self.trials, self.loss)

    def _levels(self, moved: Block | None = None) -> Levels:
        """The level of every statistic, if one block took its step."""
        levels: Levels = {}
        for block in self.blocks:
            levels |= block.levels(block.step if block is moved else 0)
        return levels

    def _loss_at(self, levels: Levels) -> float:
        masks = self.decider.masks(levels)
        key = hash(tuple((name, masks[name].numpy().tobytes()) for name in sorted(masks)))
        if key not in self.known:
            self.known[key] = self.measured(masks)
        return self.known[key]

    def _saved_at(self, levels: Levels) -> float:
        """Weights that are not 0 yet and go, each at the price of its matrix."""
        net, masks = self.decider.net, self.decider.masks(levels, whole=True)
        return sum(
            self.prices.get(name, 0.0) * int(((net.get_parameter(name) != 0) & ~mask).sum())
            for name, mask in masks.items()
        )

    def _look(self, block: Block) -> None:
        """What the next step that saves anything would cost."""
        while block.step:
            levels = self._levels(block)
            saved = self._saved_at(levels)
            if saved < self.saved:  # all would go, so that none does
                block.step //= 2
                continue
            loss, limit = self._loss_at(levels), self.limit
            # until a budget is kept a step is due at any cost; the last ones are small, so that no more goes
            # than has to
            is_due = self.saved < self.wanted and (saved <= self.wanted or block.step == 1)
            if saved == self.saved:  # the other side does not agree yet, or is gone already
                limit = max(self.loss, limit)
            else:
                self.trials.append(loss)
            if not (loss <= limit or is_due):
                block.step //= 2
            elif saved == self.saved:
                self._take(block, loss, saved)
            else:
                # savings beyond a budget that is not kept yet do not count
                counted = min(saved, self.wanted) if self.saved < self.wanted else saved
                block.gain = (counted - self.saved) / max(loss - self.loss, FREE)
                block.after = loss, saved
                return

    def _take(self, block: Block, loss: float, saved: float) -> None:
        """Take a block's step; what it changes has to be measured again for all others."""
        block.go(block.step)
        if (loss, saved) != (self.loss, self.saved):
            for other in self.blocks:
                other.after = None
        self.loss, self.saved = loss, saved


def validation_loss(
    validation: Any, model: nn.Module, plain: nn.Module
) -> Callable[[Masks], float]:
    """The validation loss of a plain network as a function of masks.

    The network keeps its own precision: a loss needs no more, and double takes several times as long.

    Args:
        validation: a function from a network to its loss; or data of `kasuri.evaluate`, for minus the mean
            log-likelihood under the objective's likelihood.
        model: what was given to compress.
        plain: its posterior mean; refused if its loss without masks is not finite.
    """
    if callable(validation) and not isinstance(validation, nn.Module):
        loss = validation
    elif isinstance(model, ELBO):
        options: Any = {"likelihood": model.likelihood, "output": model.output}

        def loss(net: nn.Module) -> float:
            return evaluate(net, validation, **options)["nll"]

    else:
        raise ValueError(
            "compress(bnn, validation=(x, y)): a network alone does not say what its loss is; hand the "
            "kasuri.ELBO to compress, or give validation=lambda net: loss(net(x), y)"
        )

    @torch.no_grad()
    def of_masks(masks: Masks) -> float:
        return float(loss(masked_net(plain, masks).eval()))

    start = of_masks({})
    if not math.isfinite(start):
        raise ValueError(
            f"compress: the validation loss of the uncompressed network is {start}, so nothing can be "
            "compared with it; look at the data and the network, or give a number as threshold"
        )
    return of_masks

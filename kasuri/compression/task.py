"""What compression knows before anything is cut, and where it will cut."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from kasuri.compression.criteria import RADII, Random, entries_of, is_radial
from kasuri.compression.decisions import Decision, Rule, decide, keep_masks, with_units
from kasuri.compression.graph import Group
from kasuri.compression.masking import masked_net
from kasuri.compression.peeling import quotient
from kasuri.compression.searching import (
    Levels,
    fixed_levels,
    gap_levels,
    loss_of,
    searched_levels,
)
from kasuri.compression.statistics import Key, Statistic, unit_statistics
from kasuri.compression.stepping import Savings, Search, blocks_of
from kasuri.compression.thresholds import Trial

Validation = tuple[Any, Tensor] | Callable[[nn.Module], float]


@dataclass(frozen=True)
class Task:
    """What is known before anything is cut.

    Args:
        model: what was given to compress.
        plain: the posterior mean.
        net: the same on the CPU in double precision.
        groups: of its units.
        weights: its random weights.
        statistics: of units, or of single weights.
        criterion: by which they were made.
        rule: what may go.
        inputs: layers that read the inputs of the network.
    """

    model: nn.Module
    plain: nn.Module
    net: nn.Module
    groups: list[Group]
    weights: dict[str, Random]
    statistics: dict[Key, Statistic]
    criterion: str
    rule: Rule
    inputs: frozenset[str]

    def decision(self, levels: Levels) -> Decision:
        """The units that go at these levels."""
        return decide(self.groups, self.statistics, levels, self.rule, self.inputs)

    def keep(self, levels: Levels) -> dict[str, Tensor]:
        """Masks of the weights that are set to 0."""
        if self.rule.structure == "weights":
            masks = {key[0]: one.logs >= levels[key] for key, one in self.statistics.items()}
            return {name: mask for name, mask in masks.items() if not bool(mask.all())}
        return keep_masks(self.net, self.decision(levels))

    def gone(self, levels: Levels) -> dict[str, Tensor]:
        """Masks of the weights that go, with those that nobody would miss then."""
        if self.rule.structure == "weights":
            return self.keep(levels)
        return keep_masks(self.net, with_units(self.decision(levels), self.groups))


@dataclass(frozen=True)
class Found:
    """Where to cut.

    Args:
        levels: of all statistics.
        trials: the steps of a search.
        notes: what is to be said.
        loss: of the network that is cut there, if it was searched for.
    """

    levels: Levels
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loss: float | None = None


def statistics_of(
    net: nn.Module, weights: Mapping[str, Random], criterion: str, rule: Rule
) -> dict[Key, Statistic]:
    """Statistics of units, or of weights one by one; refuse a criterion that no layer has."""
    radial = criterion not in RADII or any(map(is_radial, weights.values()))
    if not radial:
        found = {}
    elif rule.structure != "weights":
        found = unit_statistics(net, weights, criterion, rule.rows, rule.columns)
    else:
        found = {
            (name, "weights"): Statistic(
                name, "weights", quotient(*entries_of(name, one, criterion).row).log()
            )
            for name, one in weights.items()
        }
    if not found:
        raise ValueError(
            f"compress(criterion={criterion!r}): no layer has such a statistic; "
            '"log_mode" and "product_mode" are for kasuri.Radial, and layers need random weights'
        )
    return found


def levels_of(
    task: Task,
    threshold: float | str,
    validation: Validation | None,
    tolerance: float,
    prices: Mapping[str, float],
    budget: int | None,
) -> Found:
    """Where to cut."""
    if not isinstance(threshold, str):
        return Found(fixed_levels(task.statistics, threshold, task.criterion))
    if threshold == "gap" or validation is None:
        levels, gapless = gap_levels(task.statistics, task.criterion)
        asked = {(m.layer, m.side) for g in task.groups if g.obstacle is None for m in g.members}
        notes = [
            f"no gap in the statistic of {key[0]!r} ({key[1]})" for key in gapless if key in asked
        ]
        return Found(levels, notes=notes)
    loss = loss_of(validation, task.model)
    start = loss(copy.deepcopy(task.plain).eval())
    if not math.isfinite(start):
        raise ValueError(
            f"compress: the validation loss of the network as it is is {start}, so nothing can be compared "
            "with it; look at the data and the network, or choose threshold=..."
        )

    # in the network's own precision: a loss needs no more, and double takes several times as long
    def loss_with(masks: Mapping[str, Tensor]) -> float:
        return loss(masked_net(task.plain, masks).eval())

    if threshold == "layers":
        blocks = blocks_of(task.groups, task.statistics)
        worth = Savings(task.net, prices)
        wanted = 0.0 if budget is None else worth.total - budget
        search = Search(
            blocks,
            task.statistics,
            task.keep,
            loss_with,
            lambda levels: worth(task.gone(levels)),
            tolerance,
            wanted,
        )
        levels, trials = search.run()
        left = round(worth.total - search.now[1])
        short = [f"{left} are left, the budget was {budget}"] if search.now[1] < wanted else []
        return Found(levels, trials, short, search.now[0])
    levels, trials = searched_levels(
        task.statistics, lambda levels: loss_with(task.keep(levels)), tolerance
    )
    within = [one.loss for one in trials if one.loss <= trials[0].loss + tolerance]
    return Found(levels, trials, loss=within[-1])  # each was tried at a higher level than before

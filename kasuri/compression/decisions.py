"""Which units go at given levels: those that the layers which make or read them can do without."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.compression.coupling import Group, Member
from kasuri.compression.importance import WEIGHTS, Key, Statistic
from kasuri.compression.units import IN, MAKES, masks_without

STRUCTURES = ("either", "both", "rows", "columns", "weights")
Levels = dict[Key, float]


def sides_asked(structure: str | Collection[str]) -> frozenset[str]:
    """What may go: "rows" (units as their makers see them), "columns" (as readers do), "weights"."""
    if structure in ("either", "both"):
        return frozenset({"rows", "columns"})
    return frozenset({structure} if isinstance(structure, str) else structure)


Gone = dict[Key, set[int]]
"""By layer and side, units whose weights go: of layers that make them incoming ones, else outgoing ones."""


@dataclass(frozen=True)
class Decider:
    """Which units go, as a function of the levels below which they are not needed.

    Args:
        net: plain.
        groups: of its units, heads of attention too.
        statistics: of units, or of single weights.
        structure: who has to agree, of `kasuri.compress`.
        inputs: by layer, True where it reads inputs of the network.
    """

    net: nn.Module
    groups: Sequence[Group]
    statistics: Mapping[Key, Statistic]
    structure: str
    inputs: Mapping[str, Tensor]

    def masks(self, levels: Levels, whole: bool = False) -> dict[str, Tensor]:
        """Masks of the weights that are set to 0; with `whole`, of all weights of units that go."""
        if self.structure == WEIGHTS:
            masks = {
                key[0]: statistic.logs >= levels[key] for key, statistic in self.statistics.items()
            }
        else:
            gone = self.decision(levels)
            masks = masks_without(self.net, self._whole(gone) if whole else gone)
        return {name: mask for name, mask in masks.items() if not bool(mask.all())}

    def _whole(self, gone: Gone) -> Gone:
        """The same, and all weights of units that no layer makes any more, or no layer reads."""
        all_gone = {key: set(units) for key, units in gone.items()}

        def dropped(members: Sequence[Member], unit: int) -> bool:
            return bool(members) and all(
                all_gone.get((m.layer, m.side), set()).issuperset(m.places[unit]) for m in members
            )

        for group in self.groups:
            for unit in range(group.size) if group.obstacle is None else ():
                if dropped(group.makers, unit) or dropped(group.readers, unit):
                    for member in (*group.makers, *group.readers):
                        places = all_gone.setdefault((member.layer, member.side), set())
                        places.update(member.places[unit])
        return all_gone

    def decision(self, levels: Levels) -> Gone:
        """The units that go at these levels."""
        gone: Gone = {}
        low = {key: statistic.logs < levels[key] for key, statistic in self.statistics.items()}
        for group in self.groups:
            if group.obstacle is None:
                self._decide_group(gone, group, low)
        if "columns" in sides_asked(self.structure):
            self._decide_inputs(gone, low)
        return gone

    def _goes(self, rows: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """(units whose rows are set to 0, units whose columns are), from what the sides say."""
        asked = sides_asked(self.structure)
        rows = rows if "rows" in asked else None
        columns = columns if "columns" in asked else None
        if rows is not None and columns is not None and self.structure == "both":
            return rows & columns, rows & columns
        known = rows if rows is not None else columns
        if known is None:
            return None
        none = torch.zeros_like(known)
        return none if rows is None else rows, none if columns is None else columns

    def _decide_group(self, gone: Gone, group: Group, low: Mapping[Key, Tensor]) -> None:
        makers, readers = group.makers, group.readers
        chosen = self._goes(_agreed(makers, low, group.size), _agreed(readers, low, group.size))
        if chosen is None:
            return
        rows, columns = _one_left(*chosen, self._worth(group))
        for member in (*makers, *readers):
            places = gone.setdefault((member.layer, member.side), set())
            places.update(member.of(rows if member.side in MAKES else columns))
            is_spread = any(len(spread) > 1 for spread in member.places)
            if member.side not in MAKES and is_spread and "columns" in sides_asked(self.structure):
                places.update(self._unread(member, low))

    def _unread(self, reader: Member, low: Mapping[Key, Tensor]) -> list[int]:
        """Columns of a reader that takes a unit at many places, such as a dense layer behind a convolution.

        The unit stays as long as one place is read; columns of the others are set to 0.
        """
        below = low.get((reader.layer, reader.side))
        if below is None:
            return []
        places = [place for spread in reader.places for place in spread]
        gone = [place for place in places if bool(below[place])]
        return gone if len(gone) < len(places) else self._but_best(gone, reader.layer, reader.side)

    def _but_best(self, gone: Sequence[int], *key: str) -> list[int]:
        """All but the most needed."""
        logs = self.statistics[key[0], key[1]].logs
        best = max(gone, key=lambda place: float(logs[place]))
        return [place for place in gone if place != best]

    def _worth(self, group: Group) -> Tensor:
        """How much a unit is needed, by the side that needs it most."""
        worth = torch.full((group.size,), -math.inf, dtype=torch.float64)
        for member in group.members:
            known = self.statistics.get((member.layer, member.side))
            if known is not None:
                logs = known.logs - known.offset
                best = [max((float(logs[p]) for p in s), default=-math.inf) for s in member.places]
                worth = torch.maximum(worth, torch.tensor(best, dtype=torch.float64))
        return worth

    def _decide_inputs(self, gone: Gone, low: Mapping[Key, Tensor]) -> None:
        """Columns of inputs of the network, where nobody else has a say; one column always stays."""
        for name, here in self.inputs.items():
            if (name, IN) not in low:
                continue
            unneeded = (low[name, IN] & here).nonzero().flatten().tolist()
            others = gone.setdefault((name, IN), set())
            if unneeded and len(others.union(unneeded)) == len(here):
                unneeded = self._but_best(unneeded, name, IN)
            others.update(unneeded)


def _agreed(members: Sequence[Member], low: Mapping[Key, Tensor], size: int) -> Tensor | None:
    """Units that all members can do without; None if one of them has no statistic."""
    if not members or any((member.layer, member.side) not in low for member in members):
        return None
    agreed = torch.ones(size, dtype=torch.bool)
    for member in members:
        agreed &= member.all(low[member.layer, member.side])
    return agreed


def _one_left(rows: Tensor, columns: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """Spare the best unit if all would go: a layer of no units is no layer."""
    if bool((rows | columns).all()):
        best = int(worth.argmax())
        rows, columns = rows.clone(), columns.clone()
        rows[best] = columns[best] = False
    return rows, columns

"""Which units go at given levels: those that the layers which make or read them can do without."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.compression.coupling import Group, Member
from kasuri.compression.importance import WEIGHTS
from kasuri.compression.units import MAKES, READS, Key, Masks, add_to, masks_without

STRUCTURES = ("either", "both", "rows", "columns", "weights")
Levels = dict[Key, float]


def sides_asked(structure: str | Collection[str]) -> frozenset[str]:
    """What may go: "rows" (units as their makers see them), "columns" (as readers do), "weights"."""
    if structure in ("either", "both"):
        return frozenset({"rows", "columns"})
    return frozenset({structure} if isinstance(structure, str) else structure)


@dataclass(frozen=True)
class Decider:
    """Which units go, as a function of the levels below which they are not needed.

    Args:
        net: plain.
        groups: of its units that may go, of heads, and of inputs.
        statistics: of units, or of single weights.
        structure: who has to agree, of `kasuri.compress`.
    """

    net: nn.Module
    groups: Sequence[Group]
    statistics: Mapping[Key, Tensor]
    structure: str

    def masks(self, levels: Levels, whole: bool = False) -> dict[str, Tensor]:
        """Masks of the weights that are set to 0; with `whole`, of all weights of units that go."""
        others = {"rows": READS, "columns": MAKES}.get(self.structure, ())  # who is not asked
        low = {
            key: logs < levels[key] for key, logs in self.statistics.items() if key[1] not in others
        }
        if self.structure == WEIGHTS:
            masks: Masks = {name: ~below for (name, _), below in low.items()}
        else:
            masks = masks_without(self.net, self._gone(low, whole))
        return {name: mask for name, mask in masks.items() if not bool(mask.all())}

    def _gone(self, low: Mapping[Key, Tensor], whole: bool) -> dict[Key, Tensor]:
        """Units whose weights go: of layers that make them incoming ones, else outgoing ones; whole: all."""
        gone: dict[Key, Tensor] = {}
        for group in self.groups:
            rows, columns = _agreed(group.makers, low), _agreed(group.readers, low)
            if rows is None and columns is None:
                continue
            none = torch.zeros(group.size, dtype=torch.bool)
            if self.structure == "both" and rows is not None and columns is not None:
                rows = columns = rows & columns
            rows, columns = none if rows is None else rows, none if columns is None else columns
            if bool((rows | columns).all()):  # a layer of no units is no layer: the best one stays
                best = torch.arange(group.size) == self._worth(group).argmax()
                rows, columns = rows & ~best, columns & ~best
            for member in (*group.makers, *group.readers):
                own = rows if member.side in MAKES else columns
                here = member.at(rows | columns if whole else own)
                if member.side in READS and member.key in low:
                    here |= _unread(member, low[member.key])
                add_to(gone, member.key, here)
        return gone

    def _worth(self, group: Group) -> Tensor:
        """How much a unit is needed, by the side that needs it most."""
        known = [member for member in group.members if member.key in self.statistics]
        return torch.stack([m.largest(self.statistics[m.key]) for m in known]).amax(0)


def _unread(reader: Member, low: Tensor) -> Tensor:
    """Columns of a reader that takes a unit at many places, such as a dense layer behind a convolution.

    The unit stays as long as one place is read; columns of the others are set to 0.
    """
    return low & reader.at(~reader.all(low))


def _agreed(members: Sequence[Member], low: Mapping[Key, Tensor]) -> Tensor | None:
    """Units that all members can do without; None if one of them is not asked, or there are none."""
    if not members or any(member.key not in low for member in members):
        return None
    return torch.stack([member.all(low[member.key]) for member in members]).all(0)

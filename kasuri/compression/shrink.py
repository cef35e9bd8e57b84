"""Shrinking: a plain network without its dead units, equal to what it was.

A unit is dead for a layer that reads it with weights 0; and for any layer if its own incoming weights are 0
and what it gives is the same everywhere: its contribution is then a constant, which the bias of the reader
takes over. There is one catch: a convolution with zero padding reads zeros beside the constant at the
border. Such units can share one channel that stays (a carrier) and bears the constants of all.

First all weights of dead units become 0 and readers take their constants over, which may make further units
dead. Then dead units are cut out.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.attention import shrink_heads
from kasuri.compression.coupling import Group, Member
from kasuri.compression.probes import TOLERANCE, distance, outputs, watched
from kasuri.compression.units import (
    IN,
    OUT,
    OWN,
    Gone,
    Key,
    add_to,
    alive,
    by_unit,
    is_depthwise,
    masks_without,
    set_to_zero,
    take_out,
    unit_index,
    zero_padded,
)

ROUNDING = 1e-12  # relative: sums of the same numbers differ by the order they are taken in


@dataclass(frozen=True)
class Shrunk:
    """What shrinking gives.

    Args:
        net: the small network, in double precision.
        gone: the units that were taken out, in the indices of the layers as they were.
        removed: number of units that are gone, by group.
        notes: what stayed, and why.
    """

    net: nn.Module
    gone: Gone
    removed: Mapping[str, int]
    notes: Sequence[str] = ()


def shrink(
    net: nn.Module, inputs: list[Any], groups: Sequence[Group], keep_posterior: bool = False
) -> Shrunk:
    """The network without units that do not matter; where outputs would change, units stay.

    Args:
        net: plain, in double precision, in evaluation mode; it is not changed.
        inputs: of `probes`; the first is the example.
        groups: of `find_groups`.
        keep_posterior: whether a posterior is to be cut in the same way: then no unit can bear the
            constants of others, and heads of attention stay.

    Examples:
        >>> from kasuri.compression.coupling import find_groups
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
        >>> net[0].weight.data[:2] = 0
        >>> x = torch.randn(5, 3).double()
        >>> small = shrink(net, [x], find_groups(net, x)[0]).net
        >>> small[0].out_features, torch.allclose(small(x), net(x))
        (2, True)
    """
    free = [group for group in groups if group.obstacle is None]
    before = outputs(net, inputs)

    def attempt(chosen: list[Group]) -> Shrunk | None:
        try:
            shrunk = _cut(net, inputs, chosen, carry=not keep_posterior)
            is_same = distance(before, outputs(shrunk.net, inputs)) <= TOLERANCE
        except Exception:  # of the network's own code, which may raise anything
            return None
        return shrunk if is_same else None

    shrunk, kept, notes = attempt(free), list[Group](), list[str]()
    if shrunk is None:  # not all together: one group after the other, as far as they can
        shrunk = Shrunk(net, {}, {})
        for group in free:
            further = attempt([*kept, group])
            if further is None:
                notes.append(f"units of {group.name!r} stay: without them the outputs would change")
            else:
                kept.append(group)
                shrunk = further
    small, heads, head_notes = shrink_heads(shrunk.net, inputs, keep_posterior)
    return Shrunk(
        small, shrunk.gone, {**shrunk.removed, **heads}, [*shrunk.notes, *notes, *head_notes]
    )


@torch.no_grad()
def _cut(net: nn.Module, inputs: list[Any], groups: Sequence[Group], carry: bool) -> Shrunk:
    """The network without the dead units of some groups.

    A unit that reads constants only is constant itself, so groups are looked at until nothing more goes.
    """
    net = copy.deepcopy(net)
    dead = {group.name: torch.zeros(group.size, dtype=torch.bool) for group in groups}
    before = -1
    while (total := sum(int(units.sum()) for units in dead.values())) > before:
        before, notes = total, []
        constants = find_constants(net, inputs, groups)
        for group in groups:
            dead[group.name], group_notes = _kill(net, group, constants, carry, dead[group.name])
            notes += group_notes
    gone: dict[Key, Tensor] = {}
    for group in groups:
        for member in group.members if bool(dead[group.name].any()) else ():
            add_to(gone, member.key, member.at(dead[group.name]))
    take_out(net, gone)
    return Shrunk(net, gone, {name: int(units.sum()) for name, units in dead.items()}, notes)


Constants = Mapping[str, Tensor]
"""By layer, its inputs that are the same for every example, position and time step; NaN where they vary."""


def find_constants(net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group]) -> Constants:
    """Constant inputs of the layers that read units."""
    ends: dict[str, list[Tensor]] = {
        member.layer: [] for group in groups for member in group.on(IN)
    }

    def look(name: str, module: nn.Module, given: list[Any]) -> None:
        if name in ends:
            x = by_unit(module, given[0])
            ends[name] += [x.amin(0), x.amax(0)]

    for x in inputs:
        watched(net, x, look)
    constants = {}
    for name, values in ends.items():
        if values:
            low, high = torch.stack(values).aminmax(dim=0)
            same = (high - low).abs() <= ROUNDING * torch.maximum(high.abs(), low.abs())
            constants[name] = torch.where(same, (low + high) / 2, math.nan)
    return constants


def _kill(
    net: nn.Module, group: Group, constants: Constants, carry: bool, gone: Tensor
) -> tuple[Tensor, list[str]]:
    """Units of a group that can go, all of whose weights become 0; and why others stay.

    Args:
        net: the masked network, in place.
        group: without an obstacle.
        constants: of the network.
        carry: whether carriers may be made.
        gone: units that nobody needs already.
    """
    makers = [(maker, net.get_submodule(maker.layer)) for maker in group.on(OUT)]
    makers = [(maker, module) for maker, module in makers if not is_depthwise(module)]
    idle = torch.full((group.size,), bool(makers))
    for maker, module in makers:
        idle &= ~maker.any(alive(module, OUT))
    # a recurrent unit without inputs still swings in: what looks constant may vary in longer sequences
    silent = idle & (not any(isinstance(module, nn.RNNBase) for _, module in makers))
    dead, edge = torch.ones_like(idle), torch.zeros_like(idle)
    for reader in group.on(IN, OWN):
        without, at_edge = _reads(net, reader, silent, constants)
        edge |= at_edge
        dead &= without | at_edge
    notes = []
    if bool((idle & ~dead).any()):
        notes.append(f"units of {group.name!r} without inputs stay: what they give is not constant")
    edge &= dead
    carrier = _carrier(net, group, edge, constants) if carry else None
    if carrier is not None:
        dead[carrier] = False
    elif bool(edge.any()):
        dead &= ~edge
        notes.append(
            f"{int(edge.sum())} units of {group.name!r} stay: what they give is constant, but meets zero "
            "padding"
        )
    dead = _spared(net, group, dead, gone)
    _absorb(net, group, dead, constants, carrier)
    all_gone = {member.key: member.at(dead) for member in group.on(OUT, IN, OWN)}
    set_to_zero(net, masks_without(net, all_gone))
    return dead, notes


def _reads(
    net: nn.Module, reader: Member, silent: Tensor, constants: Constants
) -> tuple[Tensor, Tensor]:
    """Units that a layer does not read, or as a constant; those read as one that ends at the border."""
    module = net.get_submodule(reader.layer)
    unread = ~reader.any(alive(module, reader.side))
    values = constants.get(reader.layer)
    none = torch.zeros_like(unread)
    if values is None or reader.side == OWN:
        return unread, none
    fixed, zero = reader.all(~values.isnan()) & silent, reader.all(values == 0) & silent
    if zero_padded(module):
        plain = isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed
        return unread | zero, fixed & ~zero & ~unread if plain else none
    has_bias = not isinstance(module, nn.RNNBase) or module.bias
    return unread | (fixed if has_bias else zero), none


def _carrier(net: nn.Module, group: Group, edge: Tensor, constants: Constants) -> int | None:
    """The unit that bears the others' constants: its own is not 0 wherever one is needed."""
    if int(edge.sum()) < 2:
        return None
    smallest = torch.where(edge, torch.inf, -1.0).double()
    for reader in group.on(IN):
        if zero_padded(net.get_submodule(reader.layer)):
            size = -reader.largest(-constants[reader.layer].nan_to_num(0.0).abs())
            if bool(reader.at(edge).any()):  # a unit that is not read here can bear nothing
                size = torch.where(size.isinf(), 0.0, size)
            smallest = torch.minimum(smallest, size)
    best = int(smallest.argmax())
    return best if float(smallest[best]) > 0 else None


def _spared(net: nn.Module, group: Group, dead: Tensor, gone: Tensor) -> Tensor:
    """The dead units that can go while every layer keeps a unit, and groups of convolutions equal sizes."""
    dead = dead.clone()

    def in_order() -> list[int]:
        """Those first that are gone already: if one has to stay, it is a later one."""
        return sorted(dead.nonzero().flatten().tolist(), key=lambda unit: not gone[unit])

    layers = [(member, net.get_submodule(member.layer)) for member in group.on(OUT, IN)]
    before = None
    while before is None or not torch.equal(dead, before):
        before = dead.clone()
        for member, module in layers:
            groups = 1 if is_depthwise(module) else getattr(module, "groups", 1)
            size = len(member.units) // groups
            units: list[list[int]] = [[] for _ in range(groups)]
            for unit in in_order():
                for place in (member.units == unit).nonzero().flatten().tolist():
                    units[place // size].append(unit)
            # one of every group stays, as a layer without units is none
            fewest = min(min(map(len, units)), size - 1)
            for part in units:
                dead[part[fewest:]] = False
    return dead


def _absorb(
    net: nn.Module, group: Group, dead: Tensor, constants: Constants, carrier: int | None
) -> None:
    """Constants that dead units give go to where they are read, in place."""
    for reader in group.on(IN):
        module = net.get_submodule(reader.layer)
        values = constants.get(reader.layer)
        if values is None:
            continue
        # what varies is read with weights 0
        given = torch.where(reader.at(dead), values.nan_to_num(0.0), 0.0)
        ((name, index),) = unit_index(module, IN).items()
        weight = module.get_parameter(name)
        share = weight * given[index]
        if not bool(share.any()):
            continue
        if not zero_padded(module):
            _add_to_bias(module, share.flatten(1).sum(1))
        elif carrier is not None:
            to = int((reader.units == carrier).nonzero()[0])
            weight[:, to] += share.sum(1) / values[to]


def _add_to_bias(module: nn.Module, total: Tensor) -> None:
    """Add to a layer's bias, which it gets if it has none."""
    title = "bias_ih_l0" if isinstance(module, nn.RNNBase) else "bias"
    if module._parameters.get(title) is None:
        like = module.get_parameter("weight")
        new = nn.Parameter(like.new_zeros(len(total)), requires_grad=like.requires_grad)
        module.register_parameter(title, new)
    module.get_parameter(title).add_(total)

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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.coupling import Group, Member
from kasuri.compression.probes import TOLERANCE, distance, outputs, watched
from kasuri.compression.units import (
    IN,
    OUT,
    OWN,
    alive,
    entries_left,
    feature_dim,
    is_depthwise,
    masks_without,
    set_to_zero,
    take_out,
    tensor_of,
    unit_index,
    units_on,
    zero_padded,
)

ROUNDING = 1e-12  # relative: sums of the same numbers differ by the order they are taken in


CuttingPlan = dict[str, dict[str, set[int]]]
"""By layer and side, units that go, in the indices of the layer as it was."""


def left_of(net: nn.Module, plan: CuttingPlan) -> dict[str, Tensor]:
    """For each parameter of a layer that is cut, True at the entries that stay."""
    return {
        f"{name}.{title}" if name else title: left
        for name, gone in plan.items()
        for title, left in entries_left(net.get_submodule(name), gone).items()
    }


@dataclass(frozen=True)
class Shrunk:
    """What shrinking gives.

    Args:
        net: the small network, in double precision.
        plan: what was done to which layer.
        removed: number of units that are gone, by group.
        notes: what stayed, and why.
    """

    net: nn.Module
    plan: CuttingPlan
    removed: Mapping[str, int]
    notes: Sequence[str] = ()


def shrink(
    net: nn.Module, inputs: list[Any], groups: Sequence[Group], carry: bool = True
) -> Shrunk:
    """The network without units that do not matter; where outputs would change, units stay.

    Args:
        net: plain, in double precision, in evaluation mode; it is not changed.
        inputs: of `probes`; the first is the example.
        groups: of `find_groups`.
        carry: whether a unit may stay to bear the constants of others.

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
    shrunk = _attempt(net, inputs, free, carry, before)
    if shrunk is not None:
        return shrunk
    # not all together: one group after the other, as far as they can
    kept: list[Group] = []
    notes = []
    for group in free:
        further = _attempt(net, inputs, [*kept, group], carry, before)
        if further is None:
            notes.append(f"units of {group.name!r} stay: without them the outputs would change")
        else:
            kept.append(group)
            shrunk = further
    shrunk = shrunk or Shrunk(net, {}, {})
    return replace(shrunk, notes=[*shrunk.notes, *notes])


def _attempt(
    net: nn.Module, inputs: list[Any], groups: Sequence[Group], carry: bool, before: list[Tensor]
) -> Shrunk | None:
    """The network without the dead units of some groups, if its outputs are the same."""
    try:
        shrunk = _cut(net, inputs, groups, carry)
        difference = distance(before, outputs(shrunk.net, inputs))
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return None
    return shrunk if difference <= TOLERANCE else None


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
            units, carrier, group_notes = _dead(net, group, constants, carry, dead[group.name])
            _absorb(net, group, units, constants, carrier)
            dead[group.name] = units
            notes += group_notes
    plan: CuttingPlan = {}
    for group in groups:
        for member in group.members if bool(dead[group.name].any()) else ():
            gone = plan.setdefault(member.layer, {}).setdefault(member.side, set())
            gone.update(member.of(dead[group.name]))
    for name, sides in plan.items():
        take_out(net.get_submodule(name), sides)
    removed = {name: int(units.sum()) for name, units in dead.items()}
    return Shrunk(net, plan, removed, notes)


Constants = Mapping[str, Tensor]
"""By layer, its inputs that are the same for every example, position and time step; NaN where they vary."""


def find_constants(net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group]) -> Constants:
    """Constant inputs of the layers that read units."""
    readers = {member.layer for group in groups for member in group.on(IN)}
    ranges: dict[str, tuple[Tensor, Tensor]] = {}

    def look(name: str, module: nn.Module, given: Any, out: Any) -> None:
        if name in readers:
            x, dim = tensor_of(given[0]), feature_dim(module)
            flat = x.movedim(dim, -1).reshape(-1, x.shape[dim])
            low, high = flat.amin(0), flat.amax(0)
            least, most = ranges.get(name, (low, high))
            ranges[name] = torch.minimum(low, least), torch.maximum(high, most)

    for x in inputs:
        watched(net, x, look)

    def fixed(low: Tensor, high: Tensor) -> Tensor:
        same = (high - low).abs() <= ROUNDING * torch.maximum(high.abs(), low.abs())
        return torch.where(same, (low + high) / 2, math.nan)

    return {name: fixed(*pair) for name, pair in ranges.items()}


def _dead(
    net: nn.Module, group: Group, constants: Constants, carry: bool, gone: Tensor
) -> tuple[Tensor, int | None, list[str]]:
    """Units of a group that can go, one that bears the constants of others, and why others stay.

    Args:
        net: the masked network.
        group: without an obstacle.
        constants: of the network.
        carry: whether carriers may be made.
        gone: units that nobody needs already.
    """
    makers = [
        member for member in group.on(OUT) if not is_depthwise(net.get_submodule(member.layer))
    ]
    idle = torch.full((group.size,), bool(makers))
    silent, dead = idle.clone(), torch.ones(group.size, dtype=torch.bool)
    for maker in makers:
        module = net.get_submodule(maker.layer)
        without_inputs = ~maker.any(alive(module, OUT))
        idle &= without_inputs
        # a recurrent unit without inputs still swings in: what looks constant may vary in longer sequences
        silent &= without_inputs & (not isinstance(module, nn.RNNBase))
    edge = torch.zeros(group.size, dtype=torch.bool)
    for reader in group.on(IN, OWN):
        unread_here, constant, at_edge = _reads(net, reader, silent, constants)
        edge |= at_edge
        dead &= unread_here | constant | at_edge
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
    if bool(dead.all()):
        dead[_in_order(dead, gone)[-1]] = False
    return _balanced(net, group, _spare_inputs(net, group, dead, gone), gone), carrier, notes


def _in_order(dead: Tensor, gone: Tensor) -> list[int]:
    """Numbers of dead units, those first that are gone already: if one has to stay, it is a later one."""
    return sorted(dead.nonzero().flatten().tolist(), key=lambda unit: not gone[unit])


def _reads(
    net: nn.Module, reader: Member, silent: Tensor, constants: Constants
) -> tuple[Tensor, Tensor, Tensor]:
    """How a layer reads every unit: not at all; as a constant; as a constant that ends at the border."""
    module = net.get_submodule(reader.layer)
    unread = ~reader.any(alive(module, reader.side))
    values = constants.get(reader.layer)
    none = torch.zeros_like(unread)
    if values is None or reader.side == OWN:
        return unread, none, none
    fixed, zero = reader.all(~values.isnan()) & silent, reader.all(values == 0) & silent
    if isinstance(module, nn.RNNBase) and not module.bias:
        return unread, zero, none
    if zero_padded(module):
        plain = isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed
        return unread, zero, fixed & ~zero & ~unread if plain else none
    return unread, fixed, none


def _carrier(net: nn.Module, group: Group, edge: Tensor, constants: Constants) -> int | None:
    """The unit that bears the others' constants: its own is not 0 wherever one is needed."""
    if int(edge.sum()) < 2:
        return None
    smallest = torch.full((group.size,), torch.inf, dtype=torch.float64)
    for reader in group.on(IN):
        if not zero_padded(net.get_submodule(reader.layer)):
            continue
        values = constants[reader.layer].nan_to_num(0.0).abs().cpu()
        # a unit that this layer does not read can bear constants only if it reads none of them
        read = any(reader.places[unit] for unit in edge.nonzero().flatten().tolist())
        fallback = 0.0 if read else torch.inf
        size = [min((float(values[p]) for p in s), default=fallback) for s in reader.places]
        smallest = torch.minimum(smallest, torch.tensor(size, dtype=torch.float64))
    smallest = torch.where(edge, smallest, -1.0)
    best = int(smallest.argmax())
    return best if float(smallest[best]) > 0 else None


def _spare_inputs(net: nn.Module, group: Group, dead: Tensor, gone: Tensor) -> Tensor:
    """One of every layer's inputs stays: a layer that reads nothing is none."""
    dead = dead.clone()
    for reader in group.on(IN):
        units = [unit for unit in _in_order(dead, gone) if reader.places[unit]]
        places = {place for unit in units for place in reader.places[unit]}
        if len(places) == units_on(net.get_submodule(reader.layer), IN):
            dead[units[-1]] = False
    return dead


def _balanced(net: nn.Module, group: Group, dead: Tensor, gone: Tensor) -> Tensor:
    """The dead units that can go while groups of convolutions keep equal sizes."""
    grouped = [
        (member, module.groups, units_on(module, member.side) // module.groups)
        for member in group.on(OUT, IN)
        if isinstance(module := net.get_submodule(member.layer), _ConvNd)
        and module.groups > 1
        and not is_depthwise(module)
    ]
    changed = True
    while changed:
        changed = False
        for member, groups, size in grouped:
            units: list[list[int]] = [[] for _ in range(groups)]
            for unit in _in_order(dead, gone):
                for place in member.places[unit]:
                    units[place // size].append(unit)
            # one of every group stays, as a convolution without channels is none
            fewest = min(min(map(len, units)), size - 1)
            for extra in (unit for part in units for unit in part[fewest:]):
                dead[extra] = False
                changed = True
    return dead


def _absorb(
    net: nn.Module, group: Group, dead: Tensor, constants: Constants, carrier: int | None
) -> None:
    """Set all weights of the dead units to 0, in place; constants go to where they are read."""
    for reader in group.on(IN):
        module, places = net.get_submodule(reader.layer), reader.of(dead)
        values = constants.get(reader.layer)
        if values is None or not places:
            continue
        given = torch.zeros_like(values)
        given[places] = values[places].nan_to_num(0.0)  # what varies is read with weights 0
        ((name, index),) = unit_index(module, IN).items()
        weight = module.get_parameter(name)
        share = weight * given[index]
        if not bool(share.any()):
            continue
        if not zero_padded(module):
            _add_to_bias(module, share.flatten(1).sum(1))
        elif carrier is not None:
            to = reader.places[carrier][0]
            weight[:, to] += share.sum(1) / values[to]
    gone = {(m.layer, m.side): m.of(dead) for m in group.on(OUT, IN, OWN)}
    set_to_zero(net, masks_without(net, gone))


def _add_to_bias(module: nn.Module, total: Tensor) -> None:
    """Add to a layer's bias, which it gets if it has none."""
    title = "bias_ih_l0" if isinstance(module, nn.RNNBase) else "bias"
    if module._parameters.get(title) is None:
        like = module.get_parameter("weight")
        new = nn.Parameter(like.new_zeros(len(total)), requires_grad=like.requires_grad)
        module.register_parameter(title, new)
    module.get_parameter(title).add_(total)

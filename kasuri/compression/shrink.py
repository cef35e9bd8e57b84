"""Shrinking: a plain network without its dead units, equal to what it was.

A unit is dead for a layer that reads it with weights 0; and for any layer if its own incoming weights are 0
and what it gives is the same everywhere: its contribution is then a constant, which the bias of the reader
takes over. There is one catch: a convolution with zero padding reads zeros beside the constant at the
border. Such units can share one channel that stays (a carrier) and bears the constants of all.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.coupling import Group, Member
from kasuri.compression.probes import TOLERANCE, distance, outputs, watched
from kasuri.compression.units import (
    FOLLOWS,
    IN,
    OUT,
    OWN,
    alive,
    entries_left,
    feature_dim,
    is_depthwise,
    masked_net,
    masks_without,
    sides_of,
    take_out,
    tensor_of,
    unit_index,
    units_on,
    zero_padded,
)

ROUNDING = 1e-12  # relative: sums of the same numbers differ by the order they are taken in
TRIAL_CUTS = 2
WRONG = "a trial without some of them changed the outputs: they are outputs, or their ways are not known"


@dataclass
class Cut:
    """What becomes of one layer, in the indices of the layer as it was.

    Args:
        out: units it no longer makes.
        ins: units it no longer reads.
        bias: what its bias takes over, one number per entry of the bias.
        carriers: for an input that stays, what its weights (out, positions) take over.
    """

    out: set[int] = field(default_factory=set)
    ins: set[int] = field(default_factory=set)
    bias: Tensor | None = None
    carriers: dict[int, Tensor] = field(default_factory=dict)


CuttingPlan = dict[str, Cut]


@torch.no_grad()
def apply_plan(net: nn.Module, plan: CuttingPlan) -> nn.Module:
    """The network with a plan carried out on it (in place)."""
    for name, cut in plan.items():
        module = net.get_submodule(name)
        for place, extra in cut.carriers.items():
            weight = module.get_parameter("weight")
            weight[:, place] += extra.reshape(weight[:, place].shape).to(weight)
        if cut.bias is not None:
            title = "bias_ih_l0" if isinstance(module, nn.RNNBase) else "bias"
            if module._parameters.get(title) is None:
                like = module.get_parameter("weight")
                new = nn.Parameter(like.new_zeros(len(cut.bias)), requires_grad=like.requires_grad)
                module.register_parameter(title, new)
            module.get_parameter(title).add_(cut.bias)
        take_out(module, cut.out, cut.ins)
    return net


def left_of(net: nn.Module, plan: CuttingPlan) -> dict[str, Tensor]:
    """For each parameter of a layer that is cut, True at the entries that stay."""
    return {
        f"{name}.{title}" if name else title: left
        for name, cut in plan.items()
        for title, left in entries_left(net.get_submodule(name), cut.out, cut.ins).items()
    }


@dataclass(frozen=True)
class Shrunk:
    """What shrinking gives.

    Args:
        net: the small network, in double precision.
        plan: what was done to which layer.
        notes: what stayed, and why.
    """

    net: nn.Module
    plan: CuttingPlan
    notes: list[str]


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
    constants = find_constants(net, inputs, free)
    before = outputs(net, inputs)

    def attempt(groups: Sequence[Group]) -> Shrunk | None:
        return _attempt(net, groups, constants, carry, inputs, before)

    kept = _together(free, lambda groups: attempt(groups) is not None)
    shrunk = attempt(kept)
    assert shrunk is not None
    names = {group.name for group in kept}
    notes = [
        f"units of {group.name!r} stay: without them the outputs would change"
        for group in free
        if group.name not in names
    ]
    return replace(shrunk, notes=[*shrunk.notes, *notes])


def _together(groups: Sequence[Group], works: Callable[[Sequence[Group]], bool]) -> Sequence[Group]:
    """All groups if they work together, else those that work when they are added one by one."""
    if works(groups):
        return groups
    kept: list[Group] = []
    for group in groups:
        if works([*kept, group]):
            kept.append(group)
    return kept


def _attempt(
    net: nn.Module,
    groups: Sequence[Group],
    constants: "Constants",
    carry: bool,
    inputs: list[Any],
    before: list[Tensor],
) -> Shrunk | None:
    """The network without the dead units of some groups, if its outputs are the same."""
    plan, notes = _plan(net, groups, constants, carry)
    try:
        small = apply_plan(copy.deepcopy(net), plan)
        difference = distance(before, outputs(small, inputs))
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return None
    return Shrunk(small, plan, notes) if difference <= TOLERANCE else None


def trusted(net: nn.Module, inputs: list[Any], groups: Sequence[Group]) -> list[Group]:
    """The groups, those that turn out to be wrong with an obstacle.

    Half of the units of every group lose all weights that lead to them and from them, in a network
    with other weights. No layer needs them then: taking them out has to leave the outputs as they are. Where
    it does not, the group is wrong, or its units are outputs as well.

    Args:
        net: plain, in double precision, in evaluation mode.
        inputs: of `probes`.
        groups: of `find_groups`.
    """
    right: Sequence[Group] = [group for group in groups if group.obstacle is None]
    for seed in range(TRIAL_CUTS):
        trial = _disturbed(net, torch.Generator().manual_seed(seed))
        right = _together(right, partial(_holds, trial, inputs, seed))
    names = {group.name for group in right}
    return [
        group if group.obstacle or group.name in names else replace(group, obstacle=WRONG)
        for group in groups
    ]


@torch.no_grad()
def _disturbed(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with noise of half their size on all parameters: what is constant would show nothing."""
    other = copy.deepcopy(net)
    for parameter in other.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            size = float(parameter.square().mean().sqrt()) or 0.1
            parameter.add_(noise.to(parameter), alpha=0.5 * size)
    return other


def _holds(net: nn.Module, inputs: list[Any], seed: int, groups: Sequence[Group]) -> bool:
    """Whether half of the units of these groups can go once nobody needs them."""
    generator = torch.Generator().manual_seed(seed)
    gone: dict[tuple[str, str], set[int]] = {}
    for group in groups:
        units = torch.rand(group.size, generator=generator) < 0.5
        for member in group.on(OUT, IN, OWN):
            gone.setdefault((member.layer, member.side), set()).update(member.of(units))
    masked = masked_net(net, masks_without(net, gone))
    before = outputs(masked, inputs)
    return _attempt(masked, groups, {}, False, inputs, before) is not None


Constants = Mapping[tuple[str, str], Tensor]
"""By layer and side, what is the same for every example, position and time step; NaN where it varies."""


def find_constants(net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group]) -> Constants:
    """Constant inputs of the layers that read units, and constant outputs of recurrent ones."""
    wanted = {(member.layer, member.side) for group in groups for member in group.on(IN, OWN)}
    ranges: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def look(name: str, module: nn.Module, given: Any, out: Any) -> None:
        for side, value in ((IN, given), (OWN, out)):
            if (name, side) not in wanted:
                continue
            x, dim = tensor_of(value[0]), feature_dim(module)
            flat = x.movedim(dim, -1).reshape(-1, x.shape[dim])
            low, high = flat.amin(0), flat.amax(0)
            least, most = ranges.get((name, side), (low, high))
            ranges[name, side] = torch.minimum(low, least), torch.maximum(high, most)

    for x in inputs:
        watched(net, x, look)

    def fixed(low: Tensor, high: Tensor) -> Tensor:
        same = (high - low).abs() <= ROUNDING * torch.maximum(high.abs(), low.abs())
        return torch.where(same, (low + high) / 2, math.nan)

    return {key: fixed(*pair) for key, pair in ranges.items()}


def _plan(
    net: nn.Module, groups: Sequence[Group], constants: Constants, carry: bool
) -> tuple[CuttingPlan, list[str]]:
    """What can be taken out, and why other dead units stay.

    A unit that reads constants only is constant itself, so groups are looked at until nothing more goes.
    """
    plan: CuttingPlan = {}
    while True:
        further: CuttingPlan = {}
        notes: list[str] = []
        for group in groups:
            dead, carrier, group_notes = _dead(net, group, constants, carry, plan)
            _add_cuts(further, net, group, dead, constants, carrier)
            notes += group_notes
        if all(name in plan and cut.out == plan[name].out for name, cut in further.items()):
            return further, notes
        plan = further


def _dead(
    net: nn.Module, group: Group, constants: Constants, carry: bool, plan: CuttingPlan
) -> tuple[Tensor, int | None, list[str]]:
    """Units of a group that can go, one that bears the constants of others, and why others stay.

    Args:
        net: the masked network.
        group: without an obstacle.
        constants: of the network.
        carry: whether carriers may be made.
        plan: what goes in any case.
    """
    makers = [
        member for member in group.on(OUT) if not is_depthwise(net.get_submodule(member.layer))
    ]
    idle = torch.full((group.size,), bool(makers))
    silent, dead = idle.clone(), torch.ones(group.size, dtype=torch.bool)
    for maker in makers:
        module, cut = net.get_submodule(maker.layer), plan.get(maker.layer, Cut())
        unread = {
            side: gone for side, gone in ((IN, cut.ins), (OWN, cut.out)) if side in sides_of(module)
        }
        here = alive(module, OUT, unread)
        idle &= ~maker.any(here)
        if (maker.layer, OWN) in constants:
            # without inputs a recurrent unit still swings in, unless it starts at 0 and stays there:
            # what looks constant in the example is not in longer sequences
            here = here | (constants[maker.layer, OWN].cpu() != 0)
        silent &= ~maker.any(here)
    edge = torch.zeros(group.size, dtype=torch.bool)
    for reader in group.on(IN, OWN):
        cut = plan.get(reader.layer, Cut())
        unread_here, constant, at_edge = _reads(net, reader, cut.out, silent, constants)
        edge |= at_edge
        dead &= unread_here | constant | at_edge
    notes = []
    if bool((idle & ~dead).any()):
        notes.append(f"units of {group.name!r} without inputs stay: what they give is not constant")
    edge &= dead
    carrier = _carrier(net, group, edge, constants) if carry else None
    if carrier is not None:
        dead[carrier] = False
        notes.append(f"a unit of {group.name!r} stays and bears the constants of {int(edge.sum())}")
    elif bool(edge.any()):
        dead &= ~edge
        notes.append(
            f"{int(edge.sum())} units of {group.name!r} stay: what they give is constant, but meets zero "
            "padding"
        )
    if bool(dead.all()):
        dead[0] = False
    return _balanced(net, group, _spare_inputs(net, group, dead)), carrier, notes


def _reads(
    net: nn.Module, reader: Member, gone: set[int], silent: Tensor, constants: Constants
) -> tuple[Tensor, Tensor, Tensor]:
    """How a layer reads every unit: not at all; as a constant; as a constant that ends at the border."""
    module = net.get_submodule(reader.layer)
    unread = ~reader.any(alive(module, reader.side, {OUT: gone}))
    values = constants.get((reader.layer, reader.side))
    none = torch.zeros_like(unread)
    if values is None:
        return unread, none, none
    fixed, zero = reader.all(~values.isnan()) & silent, reader.all(values == 0) & silent
    if reader.side == OWN or (isinstance(module, nn.RNNBase) and not module.bias):
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
        values = constants[reader.layer, IN].nan_to_num(0.0).abs().cpu()
        # a unit that this layer does not read can bear constants only if it reads none of them
        read = any(reader.places[unit] for unit in edge.nonzero().flatten().tolist())
        fallback = 0.0 if read else torch.inf
        size = [min((float(values[p]) for p in s), default=fallback) for s in reader.places]
        smallest = torch.minimum(smallest, torch.tensor(size, dtype=torch.float64))
    smallest = torch.where(edge, smallest, -1.0)
    best = int(smallest.argmax())
    return best if float(smallest[best]) > 0 else None


def _spare_inputs(net: nn.Module, group: Group, dead: Tensor) -> Tensor:
    """One of every layer's inputs stays: a layer that reads nothing is none."""
    dead = dead.clone()
    for reader in group.on(IN):
        units = [unit for unit in dead.nonzero().flatten().tolist() if reader.places[unit]]
        places = {place for unit in units for place in reader.places[unit]}
        if len(places) == units_on(net.get_submodule(reader.layer), IN):
            dead[units[0]] = False
    return dead


def _balanced(net: nn.Module, group: Group, dead: Tensor) -> Tensor:
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
            for unit in dead.nonzero().flatten().tolist():
                for place in member.places[unit]:
                    units[place // size].append(unit)
            # one of every group stays, as a convolution without channels is none
            fewest = min(min(map(len, units)), size - 1)
            for extra in (unit for part in units for unit in part[fewest:]):
                dead[extra] = False
                changed = True
    return dead


def _add_cuts(
    plan: CuttingPlan,
    net: nn.Module,
    group: Group,
    dead: Tensor,
    constants: Constants,
    carrier: int | None,
) -> None:
    """Take the dead units of a group out of all its layers, constants going to where they are read."""
    if not bool(dead.any()):
        return
    for member in group.on(OUT, FOLLOWS):
        plan.setdefault(member.layer, Cut()).out.update(member.of(dead))
    for reader in group.on(IN):
        module, places = net.get_submodule(reader.layer), reader.of(dead)
        cut = plan.setdefault(reader.layer, Cut())
        cut.ins.update(places)
        values = constants.get((reader.layer, IN))
        if values is None or not places:
            continue
        given = torch.zeros_like(values)
        given[places] = values[places].nan_to_num(0.0)  # what varies is read with weights 0
        ((name, index),) = unit_index(module, IN).items()
        share = module.get_parameter(name).detach() * given[index]
        if not zero_padded(module):
            total = share.flatten(1).sum(1)
            if bool(total.any()):
                cut.bias = total if cut.bias is None else cut.bias + total
        elif carrier is not None:
            to = reader.places[carrier][0]
            cut.carriers[to] = share.sum(1) / values[to]

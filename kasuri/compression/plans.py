"""Plans: which units of a masked network are dead, and what their readers have to take over.

A unit is dead for a layer that reads it with weights 0; and for any layer if its own incoming weights are 0
and what it gives is the same everywhere: its contribution is then a constant, which the bias of the reader
takes over. There is one catch: a convolution with zero padding reads zeros beside the constant at the
border. Such units can share one channel that stays (a carrier) and bears the constants of all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.graph import FOLLOWS, Group, Member
from kasuri.compression.layers import (
    IN,
    OUT,
    OWN,
    blocks,
    is_depthwise,
    units_on,
    weights_on,
    zero_padded,
)


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


Plan = dict[str, Cut]


@dataclass(frozen=True)
class Seen:
    """Constants of the masked network: inputs of readers and outputs of recurrent layers."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def alive(module: nn.Module, side: str) -> Tensor:
    """Which units of a side have a weight that is not 0.

    Examples:
        >>> layer = nn.Linear(3, 2)
        >>> layer.weight.data[1] = 0
        >>> alive(layer, OUT)
        tensor([ True, False])
    """
    found = torch.zeros(units_on(module, side), dtype=torch.bool)
    for name in weights_on(module, side):
        weight = module.get_parameter(name).detach().cpu() != 0
        if isinstance(module, nn.RNNBase):
            size = module.hidden_size
            found |= (
                weight.reshape(-1, size, weight.shape[1]).any(0).any(1)
                if side == OUT
                else weight.any(0)
            )
        elif isinstance(module, nn.Embedding):
            found |= weight.any(0)
        else:
            split = blocks(module, weight).any(-1)
            found |= (split.any(2) if side == OUT else split.any(1)).flatten()
    return found


def plan_group(net: nn.Module, group: Group, seen: Seen, carry: bool) -> tuple[Plan, list[str]]:
    """What can be taken out of one group, and why other dead units stay.

    Args:
        net: the masked network.
        group: without an obstacle.
        seen: constants.
        carry: whether carriers may be made.
    """
    makers = [one for one in group.on(OUT) if not is_depthwise(net.get_submodule(one.layer))]
    idle = torch.full((group.size,), bool(makers))
    silent = idle.clone()
    for one in makers:
        here = alive(net.get_submodule(one.layer), OUT)
        idle &= ~_any(one, here)
        if one.layer in seen.outputs:
            # without inputs a recurrent unit still swings in, unless it starts at 0 and stays there:
            # what looks constant in the example is not in longer sequences
            here = here | (seen.outputs[one.layer].cpu() != 0)
        silent &= ~_any(one, here)
    dead = torch.full((group.size,), bool(makers))
    edge = torch.zeros(group.size, dtype=torch.bool)
    for reader in group.on(IN, OWN):
        status = _for_reader(net, reader, silent, seen)
        edge |= status.edge
        dead &= status.unread | status.constant | status.edge
    restless = bool((idle & ~dead).any())
    edge &= dead
    notes = []
    carrier = _carrier(net, group, edge, seen) if carry else None
    if carrier is not None:
        dead[carrier] = False
        notes.append(f"a unit of {group.name!r} stays and bears the constants of {int(edge.sum())}")
    elif bool(edge.any()):
        dead &= ~edge
        notes.append(
            f"{int(edge.sum())} units of {group.name!r} stay: what they give is constant, but meets zero "
            "padding"
        )
    if restless:
        notes.append(f"units of {group.name!r} without inputs stay: what they give is not constant")
    dead = _balanced(net, group, _spare_inputs(net, group, _spare_one(dead)))
    return _cuts(net, group, dead, seen, carrier), notes


def _any(member: Member, here: Tensor) -> Tensor:
    """Units with at least one of their places among those."""
    return torch.tensor([any(bool(here[p]) for p in spread) for spread in member.places])


@dataclass(frozen=True)
class _Status:
    unread: Tensor
    constant: Tensor
    edge: Tensor


def _for_reader(net: nn.Module, reader: Member, silent: Tensor, seen: Seen) -> _Status:
    """How one layer reads every unit: not at all, as a constant, or as one that ends at the border."""
    module = net.get_submodule(reader.layer)
    here = alive(module, reader.side)
    unread = ~_any(reader, here)
    source = seen.outputs if reader.side == OWN else seen.inputs
    values = source.get(reader.layer)
    none = torch.zeros_like(unread)
    if values is None:
        return _Status(unread, none, none)
    fixed = torch.tensor([all(not values[p].isnan() for p in s) for s in reader.places]) & silent
    zero = torch.tensor([all(bool(values[p] == 0) for p in s) for s in reader.places]) & silent
    lost = reader.side == OWN or (isinstance(module, nn.RNNBase) and not module.bias)
    if lost:
        return _Status(unread, zero, none)
    if zero_padded(module):
        plain = isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed
        return _Status(unread, zero, fixed & ~zero & ~unread if plain else none)
    return _Status(unread, fixed, none)


def _carrier(net: nn.Module, group: Group, edge: Tensor, seen: Seen) -> int | None:
    """The unit that bears the others' constants: its own is not 0 wherever one is needed."""
    if int(edge.sum()) < 2:
        return None
    padded = [one for one in group.on(IN) if zero_padded(net.get_submodule(one.layer))]
    smallest = torch.full((group.size,), torch.inf, dtype=torch.float64)
    for one in padded:
        values = seen.inputs[one.layer].nan_to_num(0.0).abs().cpu()
        # a unit that this layer does not read can bear constants only if it reads none of them
        read = any(one.places[unit] for unit in edge.nonzero().flatten().tolist())
        away = 0.0 if read else torch.inf
        size = [min((float(values[p]) for p in s), default=away) for s in one.places]
        smallest = torch.minimum(smallest, torch.tensor(size, dtype=torch.float64))
    smallest = torch.where(edge, smallest, -1.0)
    best = int(smallest.argmax())
    return best if float(smallest[best]) > 0 else None


def _spare_one(dead: Tensor) -> Tensor:
    if bool(dead.all()):
        dead = dead.clone()
        dead[0] = False
    return dead


def _spare_inputs(net: nn.Module, group: Group, dead: Tensor) -> Tensor:
    """One of every layer's inputs stays: a layer that reads nothing is none."""
    dead = dead.clone()
    for one in group.on(IN):
        units = [unit for unit in dead.nonzero().flatten().tolist() if one.places[unit]]
        places = {place for unit in units for place in one.places[unit]}
        if len(places) == units_on(net.get_submodule(one.layer), IN):
            dead[units[0]] = False
    return dead


def _balanced(net: nn.Module, group: Group, dead: Tensor) -> Tensor:
    """The dead units that can go while groups of convolutions keep equal sizes."""
    grouped = [
        (one, module.groups, units_on(module, one.side) // module.groups)
        for one in group.on(OUT, IN)
        if isinstance(module := net.get_submodule(one.layer), _ConvNd)
        and module.groups > 1
        and not is_depthwise(module)
    ]
    dead = dead.clone()
    changed = True
    while changed:
        changed = False
        for one, groups, size in grouped:
            units: list[list[int]] = [[] for _ in range(groups)]
            for unit in dead.nonzero().flatten().tolist():
                for place in one.places[unit]:
                    units[place // size].append(unit)
            # one of every group stays, as a convolution without channels is none
            fewest = min(min(map(len, units)), size - 1)
            for extra in (unit for part in units for unit in part[fewest:]):
                dead[extra] = False
                changed = True
    return dead


def _cuts(net: nn.Module, group: Group, dead: Tensor, seen: Seen, carrier: int | None) -> Plan:
    plan: Plan = {}
    gone = dead.nonzero().flatten().tolist()
    if not gone:
        return plan
    for one in group.on(OUT, FOLLOWS):
        plan.setdefault(one.layer, Cut()).out.update(p for unit in gone for p in one.places[unit])
    for one in group.on(IN):
        module = net.get_submodule(one.layer)
        places = [p for unit in gone for p in one.places[unit]]
        cut = plan.setdefault(one.layer, Cut())
        cut.ins.update(places)
        values = seen.inputs.get(one.layer)
        if values is None:
            continue
        values = values.nan_to_num(0.0)  # what varies is read with weights 0
        if zero_padded(module):
            if carrier is not None and places:
                _carry(module, cut, places, one.places[carrier][0], values)
        else:
            _fold(module, cut, places, values)
    return plan


def _carry(module: nn.Module, cut: Cut, places: list[int], to: int, values: Tensor) -> None:
    weight = module.get_parameter("weight").detach()
    weight = weight.reshape(weight.shape[0], weight.shape[1], -1)
    share = values[places] / values[to]
    cut.carriers[to] = (weight[:, places] * share[None, :, None]).sum(1)


def _fold(module: nn.Module, cut: Cut, places: list[int], values: Tensor) -> None:
    """Σ over dropped inputs of weight times constant."""
    if isinstance(module, nn.RNNBase):
        total = module.get_parameter(weights_on(module, IN)[0]).detach()[:, places] @ values[places]
    else:
        weight = blocks(module, module.get_parameter("weight").detach()).sum(
            -1
        )  # (groups, out, in)
        chosen = torch.zeros_like(values)
        chosen[places] = values[places]
        per_group = chosen.reshape(weight.shape[0], 1, -1)
        total = (weight * per_group).sum(2).flatten()
    if bool((total != 0).any()):
        cut.bias = total if cut.bias is None else cut.bias + total

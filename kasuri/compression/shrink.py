"""Shrinking: a plain network without its dead units, equal to what it was.

A unit is dead for a layer that reads it with weights 0; and for any layer if its own incoming weights are 0
and what it gives is the same everywhere: its contribution is then a constant, which the bias of the reader
takes over. There is one catch: a convolution with zero padding reads zeros beside the constant at the
border. Such units can share one channel that stays (a carrier) and bears the constants of all.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.rnn import PackedSequence

from kasuri.compression.coupling import FOLLOWS, Group, Member, find_groups
from kasuri.compression.cutting import Cut, CuttingPlan, apply_plan, kept
from kasuri.compression.probes import TOLERANCE, distance, outputs, run
from kasuri.compression.units import (
    IN,
    OUT,
    OWN,
    alive,
    blocks,
    feature_dim,
    is_depthwise,
    masked_net,
    masks_without,
    units_on,
    weights_on,
    zero_padded,
)
from kasuri.network.contexts import plain_path

ROUNDING = 1e-12  # relative: sums of the same numbers differ by the order they are taken in
TRIAL_CUTS = 2
WRONG = "a trial without some of them changed the outputs: they are outputs, or their ways are not known"


@dataclass(frozen=True)
class Shrunk:
    """What shrinking gives.

    Args:
        net: the small network, in double precision.
        plan: what was done to which layer.
        difference: largest difference of outputs to those of the network before, on probes.
        notes: what stayed, and why.
    """

    net: nn.Module
    plan: CuttingPlan
    difference: float
    notes: list[str]


def shrink(
    net: nn.Module, inputs: list[Any], groups: Sequence[Group], carry: bool = True
) -> Shrunk:
    """The network without units that do not matter; where outputs would change, units stay.

    A unit that reads constants only is constant itself once they are in its bias, so what is left is
    looked at again until nothing more goes.

    Args:
        net: plain, in double precision, in evaluation mode; it is not changed.
        inputs: of `probes`; the first is the example.
        groups: of `find_groups`.
        carry: whether a unit may stay to bear the constants of others.

    Examples:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
        >>> net[0].weight.data[:2] = 0
        >>> x = torch.randn(5, 3).double()
        >>> small = shrink(net, [x], find_groups(net, x)[0])
        >>> small.net[0].out_features, small.difference < 1e-12
        (2, True)
    """
    done = _once(net, inputs, groups, carry)
    more = done.plan
    while more:
        again, _ = find_groups(done.net, inputs[0])
        step = _once(done.net, inputs, again, carry=False)
        more = step.plan
        done = Shrunk(step.net, _composed(net, done, more), done.difference, done.notes)
    return replace(done, difference=distance(outputs(net, inputs), outputs(done.net, inputs)))


def _once(net: nn.Module, inputs: list[Any], groups: Sequence[Group], carry: bool) -> Shrunk:
    free = [group for group in groups if group.obstacle is None]
    readers = {member.layer for group in free for member in group.on(IN)}
    own = {member.layer for group in free for member in group.on(OWN)}
    constants = find_constants(net, inputs, readers, own)
    plans, notes = {}, []
    for group in free:
        plan, said = _plan_group(net, group, constants, carry)
        notes += said
        if plan:
            plans[group.name] = plan
    before = outputs(net, inputs)
    whole = _merged(plans.values())
    small, difference = _attempt(net, whole, inputs, before)
    if small is not None:
        return Shrunk(small, whole, difference, notes)
    done: CuttingPlan = {}
    small, difference = copy.deepcopy(net), 0.0
    for name, plan in plans.items():
        further = _merged([done, plan])
        trial, change = _attempt(net, further, inputs, before)
        if trial is None:
            notes.append(f"units of {name!r} stay: without them the outputs would change")
        else:
            small, done, difference = trial, further, change
    return Shrunk(small, done, difference, notes)


def _attempt(
    net: nn.Module, plan: CuttingPlan, inputs: list[Any], before: list[Tensor]
) -> tuple[nn.Module | None, float]:
    """The network with a plan carried out, if its outputs are the same."""
    try:
        small = apply_plan(copy.deepcopy(net), plan)
        after = outputs(small, inputs)
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return None, float("nan")
    difference = distance(before, after)
    return (small, difference) if difference <= TOLERANCE else (None, difference)


def _composed(net: nn.Module, first: Shrunk, then: CuttingPlan) -> CuttingPlan:
    """Two plans, one after the other, in the indices of the network as it was at first.

    What biases and carriers take over is that of the first plan; the rest is in the network.
    """
    whole = {
        name: replace(cut, out=set(cut.out), ins=set(cut.ins)) for name, cut in first.plan.items()
    }
    for name, cut in then.items():
        module, joint = net.get_submodule(name), whole.setdefault(name, Cut())
        if cut.out:
            stay = kept(units_on(module, OUT), joint.out)
            joint.out |= {stay[index] for index in cut.out}
        # a convolution may have become depthwise, where an output goes with its input
        paired = is_depthwise(first.net.get_submodule(name)) and not is_depthwise(module)
        if ins := cut.out if paired else cut.ins:
            stay = kept(units_on(module, IN), joint.ins)
            joint.ins |= {stay[index] for index in ins}
    return whole


def _merged(plans: Any) -> CuttingPlan:
    """Several plans in one; what biases and carriers take over adds up."""
    whole: CuttingPlan = {}
    for plan in plans:
        for name, cut in plan.items():
            joint = whole.setdefault(name, Cut())
            joint.out |= cut.out
            joint.ins |= cut.ins
            if cut.bias is not None:
                joint.bias = cut.bias if joint.bias is None else joint.bias + cut.bias
            joint.carriers |= cut.carriers
    return whole


def trusted(net: nn.Module, inputs: list[Any], groups: Sequence[Group]) -> list[Group]:
    """The groups; those that the dependency graph is wrong about with an obstacle.

    Half of the units of every group lose all weights that lead to them and from them, in a network
    with other weights. Nobody can miss them then: taking them out has to leave the outputs as they are. Where
    it does not, the graph is wrong about the group, or its units are outputs as well.

    Args:
        net: plain, in double precision, in evaluation mode.
        inputs: of `probes`.
        groups: of `find_groups`.
    """
    free = [group for group in groups if group.obstacle is None]
    wrong: set[str] = set()
    for seed in range(TRIAL_CUTS):
        trial = _disturbed(net, torch.Generator().manual_seed(seed))
        free = [group for group in free if group.name not in wrong]
        if not _holds(trial, inputs, free, seed):
            wrong |= {group.name for group in free if not _holds(trial, inputs, [group], seed)}
    return [replace(one, obstacle=WRONG) if one.name in wrong else one for one in groups]


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


def _holds(net: nn.Module, inputs: list[Any], groups: Sequence[Group], seed: int) -> bool:
    """Whether half of the units of these groups can go once nobody needs them."""
    generator = torch.Generator().manual_seed(seed)
    gone: dict[tuple[str, str], set[int]] = {}
    for group in groups:
        units = torch.rand(group.size, generator=generator) < 0.5
        for member in group.on(OUT, IN, OWN):
            gone.setdefault((member.layer, member.side), set()).update(member.of(units))
    masked = masked_net(net, masks_without(net, gone))
    plans = [_plan_group(masked, group, Constants({}, {}), carry=False)[0] for group in groups]
    return _attempt(masked, _merged(plans), inputs, outputs(masked, inputs))[0] is not None


@dataclass(frozen=True)
class Constants:
    """What is the same for every example, position and time step; NaN where it varies.

    Args:
        inputs: of layers, by name.
        outputs: of recurrent layers.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


@torch.no_grad()
def find_constants(
    net: nn.Module, inputs: Sequence[Any], reading: set[str], making: set[str]
) -> Constants:
    """Constant inputs of the layers `reading`, and constant outputs of recurrent layers, `making`."""
    ranges: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def note(key: tuple[str, str], value: Tensor, dim: int) -> None:
        flat = value.detach().movedim(dim, -1).reshape(-1, value.shape[dim])
        low, high = flat.amin(0), flat.amax(0)
        if key in ranges:
            low = torch.minimum(low, ranges[key][0])
            high = torch.maximum(high, ranges[key][1])
        ranges[key] = (low, high)

    handles = []
    for name in reading | making:

        def seen(module: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            x = x.data if isinstance(x, PackedSequence) else x
            note((name, IN), x, feature_dim(module))
            if name in making:
                y = out[0].data if isinstance(out[0], PackedSequence) else out[0]
                note((name, OUT), y, -1)

        handles.append(net.get_submodule(name).register_forward_hook(seen, with_kwargs=True))
    try:
        with plain_path():
            for x in inputs:
                run(net, x)
    finally:
        for handle in handles:
            handle.remove()
    found = {key: _fixed(*pair) for key, pair in ranges.items()}
    return Constants(
        {name: value for (name, side), value in found.items() if side == IN},
        {name: value for (name, side), value in found.items() if side == OUT},
    )


def _fixed(low: Tensor, high: Tensor) -> Tensor:
    same = (high - low).abs() <= ROUNDING * torch.maximum(high.abs(), low.abs())
    return torch.where(same, (low + high) / 2, math.nan)


def _plan_group(
    net: nn.Module, group: Group, constants: Constants, carry: bool
) -> tuple[CuttingPlan, list[str]]:
    """What can be taken out of one group, and why other dead units stay.

    Args:
        net: the masked network.
        group: without an obstacle.
        constants: of it.
        carry: whether carriers may be made.
    """
    makers = [one for one in group.on(OUT) if not is_depthwise(net.get_submodule(one.layer))]
    idle = torch.full((group.size,), bool(makers))
    silent, dead = idle.clone(), idle.clone()
    for maker in makers:
        here = alive(net.get_submodule(maker.layer), OUT)
        idle &= ~maker.any(here)
        if maker.layer in constants.outputs:
            # without inputs a recurrent unit still swings in, unless it starts at 0 and stays there:
            # what looks constant in the example is not in longer sequences
            here = here | (constants.outputs[maker.layer].cpu() != 0)
        silent &= ~maker.any(here)
    edge = torch.zeros(group.size, dtype=torch.bool)
    for reader in group.on(IN, OWN):
        unread, constant, at_edge = _reads(net, reader, silent, constants)
        edge |= at_edge
        dead &= unread | constant | at_edge
    restless = bool((idle & ~dead).any())
    edge &= dead
    notes = []
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
    if restless:
        notes.append(f"units of {group.name!r} without inputs stay: what they give is not constant")
    if bool(dead.all()):
        dead[0] = False
    dead = _balanced(net, group, _spare_inputs(net, group, dead))
    return _cuts(net, group, dead, constants, carrier), notes


def _reads(
    net: nn.Module, reader: Member, silent: Tensor, constants: Constants
) -> tuple[Tensor, Tensor, Tensor]:
    """How a layer reads every unit: not at all; as a constant; as a constant that ends at the border."""
    module = net.get_submodule(reader.layer)
    unread = ~reader.any(alive(module, reader.side))
    source = constants.outputs if reader.side == OWN else constants.inputs
    values = source.get(reader.layer)
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
        values = constants.inputs[reader.layer].nan_to_num(0.0).abs().cpu()
        # a unit that this layer does not read can bear constants only if it reads none of them
        read = any(reader.places[unit] for unit in edge.nonzero().flatten().tolist())
        away = 0.0 if read else torch.inf
        size = [min((float(values[p]) for p in s), default=away) for s in reader.places]
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
    dead = dead.clone()
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


def _cuts(
    net: nn.Module, group: Group, dead: Tensor, constants: Constants, carrier: int | None
) -> CuttingPlan:
    plan: CuttingPlan = {}
    if not bool(dead.any()):
        return plan
    for member in group.on(OUT, FOLLOWS):
        plan.setdefault(member.layer, Cut()).out.update(member.of(dead))
    for reader in group.on(IN):
        module, places = net.get_submodule(reader.layer), reader.of(dead)
        cut = plan.setdefault(reader.layer, Cut())
        cut.ins.update(places)
        values = constants.inputs.get(reader.layer)
        if values is None:
            continue
        values = values.nan_to_num(0.0)  # what varies is read with weights 0
        if not zero_padded(module):
            _fold(module, cut, places, values)
        elif carrier is not None and places:
            _carry(module, cut, places, reader.places[carrier][0], values)
    return plan


def _carry(module: nn.Module, cut: Cut, places: list[int], to: int, values: Tensor) -> None:
    weight = module.get_parameter("weight").detach().flatten(2)
    share = values[places] / values[to]
    cut.carriers[to] = (weight[:, places] * share[None, :, None]).sum(1)


def _fold(module: nn.Module, cut: Cut, places: list[int], values: Tensor) -> None:
    """Σ over dropped inputs of weight times constant, for the bias."""
    if isinstance(module, nn.RNNBase):
        total = module.get_parameter(weights_on(module, IN)[0]).detach()[:, places] @ values[places]
    else:
        weight = blocks(module, module.get_parameter("weight").detach()).sum(-1)
        chosen = torch.zeros_like(values)
        chosen[places] = values[places]
        total = (weight * chosen.reshape(weight.shape[0], 1, -1)).sum(2).flatten()
    if bool((total != 0).any()):
        cut.bias = total if cut.bias is None else cut.bias + total

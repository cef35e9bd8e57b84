"""Shrinking: a plain network without its dead units, equal to what it was."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.compression.constants import constants
from kasuri.compression.cutting import apply_plan, kept
from kasuri.compression.graph import Group, find_groups
from kasuri.compression.layers import IN, OUT, OWN, is_depthwise, units_on
from kasuri.compression.plans import Cut, Plan, Seen, plan_group
from kasuri.compression.running import run
from kasuri.network.contexts import plain_path

TOLERANCE = 1e-10  # of outputs in double precision, relative to the largest one and at least 1


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
    plan: Plan
    difference: float
    notes: list[str]


def shrink(
    net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group], carry: bool = True
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
        >>> from kasuri.compression.graph import find_groups
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


def _once(net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group], carry: bool) -> Shrunk:
    free = [one for one in groups if one.obstacle is None]
    readers = {m.layer for one in free for m in one.on(IN)}
    own = {m.layer for one in free for m in one.on(OWN)}
    seen = Seen(*constants(net, inputs, readers, own))
    wanted, notes = [], []
    for group in free:
        plan, said = plan_group(net, group, seen, carry)
        notes += said
        if plan:
            wanted.append((group.name, plan))
    before = outputs(net, inputs)
    whole = merged([plan for _, plan in wanted])
    small, difference = attempt(net, whole, inputs, before)
    if small is not None:
        return Shrunk(small, whole, difference, notes)
    done: Plan = {}
    for name, plan in wanted:
        further = merged([done, plan])
        trial, change = attempt(net, further, inputs, before)
        if trial is None:
            notes.append(f"units of {name!r} stay: without them the outputs would change")
        else:
            small, done, difference = trial, further, change
    if small is None:
        return Shrunk(copy.deepcopy(net), {}, 0.0, notes)
    return Shrunk(small, done, difference, notes)


def attempt(
    net: nn.Module, plan: Plan, inputs: Sequence[Any], before: Sequence[Tensor]
) -> tuple[nn.Module | None, float]:
    """The network with a plan carried out, if its outputs are the same."""
    try:
        small = apply_plan(copy.deepcopy(net), plan)
        after = outputs(small, inputs)
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return None, float("nan")
    difference = distance(before, after)
    return (small, difference) if difference <= TOLERANCE else (None, difference)


@torch.no_grad()
def outputs(net: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """All tensors a network gives for these inputs, floating-point ones."""
    found = []
    with plain_path():
        for one in inputs:
            leaves = torch.utils._pytree.tree_leaves(run(net, one))
            found += [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
    return found


def distance(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Largest difference relative to the largest number (and at least 1); infinite if shapes differ."""
    if [t.shape for t in before] != [t.shape for t in after]:
        return float("inf")
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if a.numel():
            size = max(1.0, float(a.nan_to_num(0.0).abs().max()))
            same = torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs())
            worst = max(worst, float(same.nan_to_num(float("inf")).max()) / size)
    return worst


def _composed(net: nn.Module, first: Shrunk, then: Plan) -> Plan:
    """Two plans, one after the other, in the indices of the network as it was at first.

    What biases and carriers take over is that of the first plan; the rest is in the network.
    """
    whole = {
        name: replace(cut, out=set(cut.out), ins=set(cut.ins)) for name, cut in first.plan.items()
    }
    for name, cut in then.items():
        module, one = net.get_submodule(name), whole.setdefault(name, Cut())
        if cut.out:
            stay = kept(units_on(module, OUT), one.out)
            one.out |= {stay[index] for index in cut.out}
        # a convolution may have become depthwise, where an output goes with its input
        paired = is_depthwise(first.net.get_submodule(name)) and not is_depthwise(module)
        if ins := cut.out if paired else cut.ins:
            stay = kept(units_on(module, IN), one.ins)
            one.ins |= {stay[index] for index in ins}
    return whole


def merged(plans: Sequence[Plan]) -> Plan:
    """Several plans in one; what biases and carriers take over adds up."""
    whole: Plan = {}
    for plan in plans:
        for name, cut in plan.items():
            one = whole.setdefault(name, Cut())
            one.out |= cut.out
            one.ins |= cut.ins
            if cut.bias is not None:
                one.bias = cut.bias if one.bias is None else one.bias + cut.bias
            one.carriers |= cut.carriers
    return whole

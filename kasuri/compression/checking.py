"""Trial cuts: whether the units that a graph puts together really are one and the same.

Before anything is decided, half of the units of every group lose all weights that lead to them and from
them. Nobody can miss them then: taking them out has to leave the outputs as they are. Where it does not, the
graph is wrong about the group, or its units are outputs as well.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kasuri.compression.decisions import Decision, keep_masks, places_of
from kasuri.compression.graph import Group
from kasuri.compression.layers import IN, OUT, OWN
from kasuri.compression.masking import masked_net
from kasuri.compression.plans import Seen, plan_group
from kasuri.compression.shrinking import attempt, merged, outputs

TRIALS = 2
WRONG = "a trial without some of them changed the outputs: they are outputs, or their ways are not known"


def checked(net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group]) -> list[Group]:
    """The groups, those that fail with an obstacle.

    Args:
        net: plain, in double precision, in evaluation mode.
        inputs: of `probes`.
        groups: of `find_groups`.
    """
    free = [one for one in groups if one.obstacle is None]
    wrong: set[str] = set()
    for seed in range(TRIALS):
        trial = _disturbed(net, torch.Generator().manual_seed(seed))
        free = [one for one in free if one.name not in wrong]
        if not _holds(trial, inputs, free, seed):
            wrong |= {one.name for one in free if not _holds(trial, inputs, [one], seed)}
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


def _holds(net: nn.Module, inputs: Sequence[Any], groups: Sequence[Group], seed: int) -> bool:
    """Whether half of the units of these groups can go once nobody needs them."""
    generator = torch.Generator().manual_seed(seed)
    decision = Decision()
    for group in groups:
        units = torch.rand(group.size, generator=generator) < 0.5
        for one in group.on(OUT):
            decision.rows.setdefault(one.layer, set()).update(places_of(one, units))
        for one in group.on(IN, OWN):
            key = (one.layer, one.side)
            decision.columns.setdefault(key, set()).update(places_of(one, units))
    masked = masked_net(net, keep_masks(net, decision))
    plans = [plan_group(masked, one, Seen({}, {}), carry=False)[0] for one in groups]
    small, _ = attempt(masked, merged(plans), inputs, outputs(masked, inputs))
    return small is not None

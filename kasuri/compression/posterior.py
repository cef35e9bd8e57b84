"""The smaller Bayesian network: the small plain one with marginals of the posterior in it."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.cutting import apply_plan
from kasuri.compression.parts import Part
from kasuri.compression.plans import Cut, Plan
from kasuri.compression.slicing import (
    family_of,
    independent,
    set_apart,
    settle_mean,
    slice_posterior,
)
from kasuri.network.convert import Plan as ConversionPlan
from kasuri.network.convert import apply_plans
from kasuri.network.random import Conversion, named_layers, posterior_of
from kasuri.network.views import View, view_of
from kasuri.posteriors.base import Builder, Posterior
from kasuri.posteriors.masked import behind_mask


def small_posterior(
    bnn: nn.Module, plain: nn.Module, small: nn.Module, plan: Plan
) -> tuple[nn.Module, list[str]]:
    """The small network with posteriors, and which families could not be kept.

    Its mean is the small network: what removed units contribute is in the means of biases. Their
    uncertainty is gone with them.

    Args:
        bnn: Bayesian, with certain zeros in the place of what was masked.
        plain: the network before shrinking.
        small: after it.
        plan: what was done.
    """
    index = indexed(plain, plan)
    notes: list[str] = []
    conversions, families = [], {}
    for name, layer, conversion in named_layers(bnn):
        builders: dict[str, Builder] = {}
        for parameter, view in conversion.views.items():
            full = f"{name}.{parameter}" if name else parameter
            q = posterior_of(layer, parameter)
            new = _new(full, view, _gates(layer, conversion), q, (plain, small, index), notes)
            builders[parameter] = partial(_instead, new)
            families[full] = family_of(new, conversion.families[parameter])
        gates = _gates(layer, conversion)
        conversions.append(ConversionPlan(name, builders, gates, conversion.estimator))
    result = apply_plans(small, conversions)
    for name, _, conversion in named_layers(result):
        for parameter in conversion.views:
            conversion.families[parameter] = families[f"{name}.{parameter}" if name else parameter]
    result.train(bnn.training)
    return result, notes


def _instead(new: Posterior, weight: Tensor) -> Posterior:
    """A posterior that is there already, in the place of one built around the weight."""
    return new


@torch.no_grad()
def indexed(plain: nn.Module, plan: Plan) -> nn.Module:
    """The plain network cut like the small one, each parameter holding where its entries came from."""
    index = copy.deepcopy(plain).double()
    for parameter in index.parameters():
        places = torch.arange(parameter.numel(), dtype=torch.float64, device=parameter.device)
        parameter.data = places.reshape(parameter.shape)
    bare = {name: Cut(cut.out, cut.ins) for name, cut in plan.items()}
    return apply_plan(index, bare)


@torch.no_grad()
def _new(
    full: str,
    view: View,
    gates: bool,
    q: Posterior,
    nets: tuple[nn.Module, nn.Module, nn.Module],
    notes: list[str],
) -> Posterior:
    plain, small, index = (net.get_parameter(full).detach() for net in nets)
    if index.shape == plain.shape:
        new: Posterior | None = copy.deepcopy(q)
        after = view
    else:
        owner = nets[1].get_submodule(full.rpartition(".")[0])
        after = view_of(owner, small, gates)
        part = _part(view.matrix(_count(plain)), after.matrix(index.long()))
        new = slice_posterior(q, part)
        if new is None:
            new = independent(q, part)
            kind = type(behind_mask(q)).__name__
            notes.append(
                f"the posterior of {full!r} is now independent normal weights with the same means and "
                f"variances: this part of a {kind.removesuffix('Posterior')} is none"
            )
    assert new is not None
    settle_mean(new, after.matrix(small))
    set_apart(new)
    _freeze(new, q)
    return new.train(q.training)


def _freeze(new: Posterior, old: Posterior) -> None:
    """What was not trained is not trained: by name, or where the family is another one as a whole."""
    flags = {name.removeprefix("base."): p.requires_grad for name, p in old.named_parameters()}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(flags.get(name.removeprefix("base."), any(flags.values())))


def _count(like: Tensor) -> Tensor:
    return torch.arange(like.numel(), device=like.device).reshape(like.shape)


def _part(before: Tensor, after: Tensor) -> Part:
    """From positions in the tensor to positions in blocks of the matrix."""
    if before.dim() == 1:
        return Part(after)
    size = before.shape[-2] * before.shape[-1]
    where = torch.empty(before.numel(), dtype=torch.long, device=before.device)
    where[before.flatten()] = torch.arange(before.numel(), device=before.device)
    places = where[after]
    blocks = (places.reshape(-1, *places.shape[-2:])[:, 0, 0] // size).flatten()
    same = len(blocks) * size == before.numel()
    return Part(places % size, before.shape[-1], None if same else blocks)


def _gates(layer: nn.Module, conversion: Conversion) -> bool:
    """Whether gates and attention maps are matrices of their own."""
    blocks = any(view.blocks > 1 for view in conversion.views.values())
    return blocks and not isinstance(layer, _ConvNd)

"""The smaller Bayesian network: masked posteriors, marginals of what is left."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.shrink import CuttingPlan, left_of
from kasuri.compression.units import Masks, part_of
from kasuri.network.convert import Plan, apply_plans, replace_posteriors
from kasuri.network.estimators import check, shared
from kasuri.network.random import Conversion, named_layers, posterior_of
from kasuri.network.views import View, view_of
from kasuri.posteriors.base import Builder, Family, Located, Posterior
from kasuri.posteriors.masked import Masked, MaskedPosterior, behind_mask, masked
from kasuri.posteriors.mean_field import MeanField, independent
from kasuri.posteriors.parts import entries
from kasuri.posteriors.point import PointPosterior


def masked_posteriors(bnn: nn.Module, keep: Masks) -> nn.Module:
    """A copy of a Bayesian network whose weights are 0 with certainty wherever a mask is False.

    Layers with correlated posteriors draw whole weights from then on (estimator "shared").

    Args:
        bnn: from `bayesianize`.
        keep: by name of a parameter, in the layout of its tensor.
    """
    net = copy.deepcopy(bnn)
    new: dict[str, tuple[Posterior, Builder]] = {}
    for title, layer, conversion in named_layers(net):
        for name, view in conversion.views.items():
            full = f"{title}.{name}" if title else name
            mask = keep.get(full)
            if mask is None or bool(mask.all()):
                continue
            posterior, family = posterior_of(layer, name), conversion.families[name]
            mask = view.matrix(mask).to(posterior.mean.device)
            if isinstance(posterior, PointPosterior):
                posterior.loc.data.masked_fill_(~mask, 0.0)
                continue
            covered = masked(posterior, mask)
            if isinstance(family, Family) and not isinstance(family, Masked):
                family = Masked(family=family)
            try:
                check(conversion.estimator, covered, full, conversion.obstacle)
            except ValueError:
                conversion.estimator = shared
            new[full] = covered, family
    replace_posteriors(net, new)
    return net


def small_posterior(
    bnn: nn.Module, plain: nn.Module, small: nn.Module, plan: CuttingPlan
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
    left = left_of(plain, plan)
    notes: list[str] = []
    conversions, families = [], {}
    for name, layer, conversion in named_layers(bnn):
        gates = _gates(layer, conversion)
        builders: dict[str, Builder] = {}
        for parameter, view in conversion.views.items():
            full = f"{name}.{parameter}" if name else parameter
            posterior = posterior_of(layer, parameter)
            family = conversion.families[parameter]
            mean = small.get_parameter(full).detach()
            after = view_of(small.get_submodule(name), mean, gates)
            new, families[full] = _part(posterior, family, view, after, mean, left.get(full))
            if type(behind_mask(new)) is not type(behind_mask(posterior)):
                kind = type(behind_mask(posterior)).__name__.removesuffix("Posterior")
                notes.append(
                    f"the posterior of {full!r} is now independent normal weights with the same means and "
                    f"variances: this part of a {kind} is none"
                )
            builders[parameter] = partial(_instead, new)
        conversions.append(Plan(name, builders, gates, conversion.estimator))
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
def _part(
    posterior: Posterior,
    family: Builder,
    view: View,
    after: View,
    small: Tensor,
    left: Tensor | None,
) -> tuple[Posterior, Builder]:
    """The posterior of what is left of one parameter, and the family that files know it by."""
    if left is None or bool(left.all()):
        new: Posterior = copy.deepcopy(posterior)
    else:
        counted = torch.arange(left.numel(), device=small.device).reshape(left.shape)
        index = part_of(counted, left)
        blocks, rows, columns = _rows_and_columns(view.matrix(counted), after.matrix(index))
        whole = posterior
        if blocks is not None:
            whole = posterior.some_blocks(blocks, single=rows.dim() == 1)
        part = whole.part(rows, columns)
        new = _independent(whole, rows, columns) if part is None else part
        inside = family.family if isinstance(family, Masked) else family
        if part is None:
            inside = MeanField()
        family = new.family_of_part(inside)
    base = behind_mask(new)
    if isinstance(base, Located):
        base.loc.data.copy_(after.matrix(small).to(base.loc))
    if isinstance(new, MaskedPosterior):
        new.set_apart()
    _freeze(new, posterior)
    return new.train(posterior.training), family


def _independent(posterior: Posterior, rows: Tensor, columns: Tensor | None) -> Posterior:
    """Independent normal weights with the moments of these entries; 0 where certain."""
    mean, variance = (entries(m, rows, columns) for m in (posterior.mean, posterior.variance))
    new, is_random = independent(mean, variance), variance > 0
    return new if bool(is_random.all()) else masked(new, is_random)


def _rows_and_columns(before: Tensor, after: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Which blocks (None for all), rows and columns of a matrix of counted entries are left."""
    if before.dim() == 1:
        return None, after, None
    size = before.shape[-2] * before.shape[-1]
    where = torch.empty(before.numel(), dtype=torch.long, device=before.device)
    where[before.flatten()] = torch.arange(before.numel(), device=before.device)
    places = where[after]
    blocks = (places.reshape(-1, *places.shape[-2:])[:, 0, 0] // size).flatten()
    places, width = places % size, before.shape[-1]
    rows, columns = places[..., 0] // width, places[..., 0, :] % width
    return None if len(blocks) * size == before.numel() else blocks, rows, columns


def _freeze(new: Posterior, old: Posterior) -> None:
    """Freeze what was frozen, by name; new parameters are frozen if all old ones were."""
    flags = {name.removeprefix("base."): p.requires_grad for name, p in old.named_parameters()}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(flags.get(name.removeprefix("base."), any(flags.values())))


def _gates(layer: nn.Module, conversion: Conversion) -> bool:
    """Whether gates and attention maps are matrices of their own."""
    has_blocks = any(view.blocks > 1 for view in conversion.views.values())
    return has_blocks and not isinstance(layer, _ConvNd)

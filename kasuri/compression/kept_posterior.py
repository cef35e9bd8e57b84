"""The smaller Bayesian network: masked posteriors, marginals of what is left."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.units import Gone, Masks, left_of
from kasuri.network.convert import Plan, apply_plans, replace_posteriors
from kasuri.network.estimators import check, shared
from kasuri.network.random import Conversion, full_name, named_layers, posterior_of
from kasuri.posteriors.base import Builder, Family, Located, Posterior
from kasuri.posteriors.masked import Masked, MaskedPosterior, behind_mask, masked
from kasuri.posteriors.mean_field import MeanField, independent
from kasuri.posteriors.parts import entries
from kasuri.posteriors.point import Point, PointPosterior


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
            full = full_name(title, name)
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
    bnn: nn.Module, plain: nn.Module, small: nn.Module, gone: Gone
) -> tuple[nn.Module, list[str]]:
    """The small network with posteriors, and which families could not be kept.

    Its mean is the small network: what removed units contribute is in the means of biases. Their
    uncertainty is gone with them.

    Args:
        bnn: Bayesian, with certain zeros in the place of what was masked.
        plain: the network before shrinking.
        small: after it.
        gone: the units that were taken out.
    """
    left = left_of(plain, gone)
    plans = [
        Plan(
            name,
            dict.fromkeys(conversion.views, Point()),
            _gates(layer, conversion),
            conversion.estimator,
        )
        for name, layer, conversion in named_layers(bnn)
    ]
    result = apply_plans(small, plans)
    notes: list[str] = []
    parts: dict[str, tuple[Posterior, Builder]] = {}
    for name, layer, conversion in named_layers(bnn):
        for parameter, view in conversion.views.items():
            full = full_name(name, parameter)
            posterior = posterior_of(layer, parameter)
            point: Any = posterior_of(result.get_submodule(name), parameter)
            stays = view.matrix(left[full]).to(point.loc.device) if full in left else None
            new, family = _part(posterior, conversion.families[parameter], stays)
            if isinstance(base := behind_mask(new), Located):
                base.loc.data.copy_(point.loc)
            if isinstance(new, MaskedPosterior):
                new.set_apart()
            _freeze(new, posterior)
            if type(base) is not type(behind_mask(posterior)):
                kind = type(behind_mask(posterior)).__name__.removesuffix("Posterior")
                notes.append(
                    f"the posterior of {full!r} is now independent normal weights with the same means and "
                    f"variances: this part of a {kind} is none"
                )
            parts[full] = new, family
    replace_posteriors(result, parts)
    return result.train(bnn.training), notes


@torch.no_grad()
def _part(posterior: Posterior, family: Builder, stays: Tensor | None) -> tuple[Posterior, Builder]:
    """The posterior of what stays of one parameter, and the family that files know it by.

    Args:
        posterior: of the whole.
        family: of it.
        stays: True at some rows times some columns of every block that stays; None for everything.
    """
    if stays is None or bool(stays.all()):
        return copy.deepcopy(posterior), family
    if stays.dim() == 1:
        rows, columns = stays.nonzero().flatten(), None
    else:
        blocks = stays.flatten(-2).any(-1)
        if blocks.dim() and not bool(blocks.all()):
            single = int(blocks.sum()) == 1
            posterior = posterior.some_blocks(blocks.nonzero().flatten(), single=single)
            stays = stays[blocks].squeeze(0) if single else stays[blocks]
        rows, columns = _places(stays.any(-1)), _places(stays.any(-2))
    new = posterior.part(rows, columns)
    inside = family.family if isinstance(family, Masked) else family
    if new is None:  # independent normal weights with the same moments, 0 where certain
        inside = MeanField()
        mean, variance = (entries(m, rows, columns) for m in (posterior.mean, posterior.variance))
        new, is_random = independent(mean, variance), variance > 0
        new = new if bool(is_random.all()) else masked(new, is_random)
    return new, new.family_of_part(inside)


def _places(chosen: Tensor) -> Tensor:
    """Indices of what is True in every block, as many in each."""
    return chosen.nonzero()[:, -1].reshape(*chosen.shape[:-1], -1)


def _freeze(new: Posterior, old: Posterior) -> None:
    """Freeze what was frozen, by name; new parameters are frozen if all old ones were."""
    flags = {name.removeprefix("base."): p.requires_grad for name, p in old.named_parameters()}
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(flags.get(name.removeprefix("base."), any(flags.values())))


def _gates(layer: nn.Module, conversion: Conversion) -> bool:
    """Whether gates and attention maps are matrices of their own."""
    has_blocks = any(view.blocks > 1 for view in conversion.views.values())
    return has_blocks and not isinstance(layer, _ConvNd)

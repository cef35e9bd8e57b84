"""The weight matrices of a converted network: found by name, read in double precision, exchanged."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole, matches, near_misses
from kasuri.network.convert import replace_posteriors
from kasuri.network.random import (
    named_layers,
    named_posteriors,
    posterior_of,
    require_posteriors,
)
from kasuri.posteriors.base import Builder, Elementwise, Family, Posterior
from kasuri.posteriors.k_tied import KTied, KTiedPosterior
from kasuri.posteriors.mean_field import MeanField, MeanFieldPosterior
from kasuri.posteriors.point import PointPosterior

Globs = str | Sequence[str] | None
Tied = MeanFieldPosterior | KTiedPosterior


def matrix_posteriors(bnn: nn.Module) -> dict[str, Posterior]:
    """The posteriors of matrices by name; vectors are left out.

    Examples:
        >>> import kasuri
        >>> list(matrix_posteriors(kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())))
        ['weight']
    """
    found = {name: q for name, q in require_posteriors(bnn).items() if len(q.shape) >= 2}
    if not found:
        raise ValueError(
            f"every posterior of {type(bnn).__name__} is one of a vector, and a vector has no "
            "rank; convert weight matrices as well"
        )
    return found


def blocks_of(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(name, matrix) of every block of a weight (*blocks, out, in); numbered if there are several.

    Examples:
        >>> [name for name, _ in blocks_of("lstm.weight_hh_l0", torch.zeros(4, 3, 3))][:2]
        ['lstm.weight_hh_l0[0]', 'lstm.weight_hh_l0[1]']
    """
    matrices = tensor.reshape(-1, *tensor.shape[-2:])
    for index, matrix in enumerate(matrices):
        yield (f"{name}[{index}]" if len(matrices) > 1 else name), matrix


@torch.no_grad()
def mean_of(name: str, q: Posterior) -> Tensor:
    """E[W] in double precision."""
    return _finite(f"the means of {name}", q.mean)


@torch.no_grad()
def scale_of(name: str, q: Posterior) -> Tensor | None:
    """Standard deviations in double precision; None where nothing is random."""
    scale = q.scale if isinstance(q, Elementwise) else q.variance.sqrt()
    scale = _finite(f"the standard deviations of {name}", scale)
    return scale if bool((scale > 0).any()) else None


def _finite(title: str, tensor: Tensor) -> Tensor:
    values = tensor.detach().cpu().double()
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"{title} are not all finite, so there is nothing to analyse: this network did not "
            "train; take an earlier checkpoint"
        )
    return values


def elementwise(bnn: nn.Module, where: Globs, task: str) -> dict[str, Elementwise]:
    """The matrix posteriors that `where` names; refuse those whose weights are not independent.

    Args:
        bnn: a converted network.
        where: glob or globs over names of parameters or of modules that hold them; None for all.
            Points have no scale and are passed over, unless nothing else is left.
        task: the function that asks, for messages.
    """
    every = matrix_posteriors(bnn)
    names = _matching(every, where, task)
    chosen: dict[str, Elementwise] = {}
    for name in names:
        q = every[name]
        if isinstance(q, Elementwise):
            chosen[name] = q
        elif not isinstance(q, PointPosterior):
            raise ValueError(
                f"{task}: the weights of {name!r} are not independent under its posterior "
                f"({type(q).__name__}), so a matrix of standard deviations does not describe it; "
                "name mean-field or k-tied layers in where="
            )
    if not chosen:
        raise ValueError(
            f"{task}: point estimates ({', '.join(map(repr, names))}) have no standard "
            "deviations; convert with kasuri.MeanField() and train first"
        )
    return chosen


def _matching(every: Mapping[str, Posterior], where: Globs, task: str) -> list[str]:
    patterns = ["*"] if where is None else [where] if isinstance(where, str) else list(where)
    for pattern in patterns:
        if not any(matches(pattern, name) for name in every):
            raise ValueError(
                f"{task}: where={pattern!r} names no random weight matrix; "
                f"{near_misses(pattern, every)}"
            )
    names = [name for name in every if any(matches(pattern, name) for pattern in patterns)]
    if not names:
        raise ValueError(f"{task}: where={where!r} names nothing; leave it out for every layer")
    return names


def bound_of(q: Posterior) -> float | None:
    """The `max_scale` of a posterior that has one."""
    return q.max_scale if isinstance(q, MeanFieldPosterior | KTiedPosterior) else None


def with_posteriors(bnn: nn.Module, new: Mapping[str, Tied]) -> nn.Module:
    """A copy of the network with these posteriors in the place of those of the same names.

    Families change with them, since files store the family: what was exchanged can be saved.
    """
    net = copy.deepcopy(bnn)
    families = {
        id(posterior_of(layer, name)): family
        for _, layer, conversion in named_layers(net)
        for name, family in conversion.families.items()
    }
    exchanged: dict[str, tuple[Posterior, Builder]] = {}
    for name, old in named_posteriors(net):
        if name in new:
            _keep_flags(old, new[name])
            exchanged[name] = new[name], _family(new[name], families[id(old)])
    replace_posteriors(net, exchanged)
    return net


def _keep_flags(old: Posterior, q: Tied) -> None:
    """What was frozen stays frozen, means and scales apart; training mode as it was."""
    q.train(old.training)
    rest = any(p.requires_grad for name, p in old.named_parameters() if name != "loc")
    for name, parameter in q.named_parameters():
        free = old.get_parameter("loc").requires_grad if name == "loc" else rest
        parameter.requires_grad_(free)


def _family(q: Tied, before: Builder) -> Family:
    """The family of an exchanged posterior, with the options of the old one where they apply."""
    bound = q.max_scale
    options: dict[str, Any] = {"max_scale": bound}
    if isinstance(before, Family) and before.max_scale == bound:
        options |= {"scale": before.scale, "noise": before.noise, "mean": before.mean}
    elif bound is not None:
        options["scale"] = min(MeanField().scale, bound / 10)
    return KTied(rank=q.rank, **options) if isinstance(q, KTiedPosterior) else MeanField(**options)


def check_rank(task: str, rank: Any) -> int:
    """A whole number, 1 or more."""
    if not is_whole(rank, 1):
        raise ValueError(f"{task}(rank={rank!r}): the rank is a whole number, 1 or more")
    return int(rank)


def full_rank(shape: Sequence[int]) -> int:
    """The shorter side of the matrices (*blocks, out, in)."""
    return min(shape[-2:])


def is_positive(number: float) -> bool:
    """Whether a number is positive and finite."""
    return number > 0 and math.isfinite(number)

"""The weight matrices of a converted network: found by name, read in double precision, exchanged."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
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

Globs = str | Sequence[str] | None


def matrix_posteriors(bnn: nn.Module) -> dict[str, Posterior]:
    """The posteriors of matrices by name; vectors are left out."""
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
        raise ValueError(f"{title} are not all finite: training failed; take an earlier checkpoint")
    return values


def independent(
    bnn: nn.Module, where: Globs, task: str, *, positive: bool = True
) -> dict[str, tuple[Elementwise, Tensor]]:
    """The matrix posteriors that `where` names, with their standard deviations in double precision.

    Point estimates are passed over, unless nothing else is left. Posteriors whose weights are not
    independent are refused.

    Args:
        bnn: a converted network.
        where: glob or globs over names of parameters or of modules that hold them; None for all.
        task: the function that asks, for messages.
        positive: refuse standard deviations of 0.
    """
    every = matrix_posteriors(bnn)
    names = _matching(every, where, task)
    chosen: dict[str, tuple[Elementwise, Tensor]] = {}
    for name in names:
        q = every[name]
        if isinstance(q, Elementwise):
            scale = scale_of(name, q)
            if scale is None or (positive and not bool((scale > 0).all())):
                raise ValueError(
                    f"{task}: some standard deviations of {name!r} are not above 0 in {q.loc.dtype}, "
                    "and their logarithms are needed; call bnn.double() first, or give truncate a floor"
                )
            chosen[name] = q, scale
        elif scale_of(name, q) is not None:
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
    return getattr(q, "max_scale", None)


def exchanged(
    bnn: nn.Module, new: Mapping[str, tuple[Posterior, Callable[..., Family]]]
) -> nn.Module:
    """A copy of the network with these posteriors in the place of those of the same names.

    Each posterior comes with its family, which takes over the options of the old one. What was frozen
    stays frozen, means and standard deviations apart.
    """
    net = copy.deepcopy(bnn)
    families = {
        id(posterior_of(layer, parameter)): family
        for _, layer, conversion in named_layers(net)
        for parameter, family in conversion.families.items()
    }
    replaced: dict[str, tuple[Posterior, Builder]] = {}
    for name, old in named_posteriors(net):
        if name not in new:
            continue
        posterior, family = new[name]
        for part, parameter in posterior.named_parameters():
            like = [p for n, p in old.named_parameters() if (n == "loc") == (part == "loc")]
            parameter.requires_grad_(any(p.requires_grad for p in like))
        replaced[name] = posterior, family(**_options(families[id(old)], bound_of(posterior)))
    replace_posteriors(net, replaced)
    return net


def _options(before: Builder, bound: float | None) -> dict[str, Any]:
    """Options of a family, taken over from the one before; a plain function has none."""
    if isinstance(before, Family):
        options = {"scale": before.scale, "noise": before.noise, "mean": before.mean}
    else:
        options = {} if bound is None else {"scale": min(Family.scale, bound / 10)}
    return options | {"max_scale": bound}


def check_rank(task: str, rank: Any) -> int:
    """A whole number, 1 or more."""
    if not is_whole(rank, 1):
        raise ValueError(f"{task}: rank must be a whole number, at least 1, got {rank!r}")
    return int(rank)


def full_rank(scale: Tensor) -> int:
    """The shorter side of the matrices (*blocks, out, in)."""
    return min(scale.shape[-2:])

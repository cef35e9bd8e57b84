"""From free standard deviations to tied ones, after training: how many products, and which."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Literal, overload

from torch import Tensor, nn

from kasuri.checks import is_whole, near_misses
from kasuri.diagnostics import factors
from kasuri.diagnostics.matrices import (
    Globs,
    bound_of,
    check_rank,
    elementwise,
    full_rank,
    is_positive,
    with_posteriors,
)
from kasuri.diagnostics.truncation import positive_scale
from kasuri.numerics.safe import soft_min_inverse
from kasuri.posteriors.base import Elementwise
from kasuri.posteriors.k_tied import KTiedPosterior

TOLERANCE = 0.015
MAX_RANK = 8


def tie(
    bnn: nn.Module,
    rank: int | str | Mapping[str, int],
    *,
    where: Globs = None,
    iterations: int = factors.ITERATIONS,
) -> nn.Module:
    """A k-tied copy of a trained mean-field network, ready to be used or trained further.

    Means are kept; the standard deviations σ of each matrix become the product τ of rank k with
    the smallest KL(tied ‖ given) = Σ (τ²/(2σ²) - log(τ/σ) - ½), which near an optimum is what
    tying takes from the ELBO. Rank 1 is the global optimum; from there one component is added at a
    time by multiplicative updates, so more rank never fits worse. Vectors stay as they are; a
    `max_scale` still holds, with the tighter meaning it has in kasuri.KTied. An objective
    belongs to one network, so make a new ELBO, or give the result to kasuri.fit.

    Args:
        bnn: a network from `bayesianize` with mean-field (or k-tied) posteriors.
        rank: k, "auto" for that of `choose_rank`, or a mapping from names to ranks, as
            `choose_rank` returns it, for these matrices only. A matrix gets at most its full rank.
        where: which matrices: a glob over names ("fc*"), or several.
        iterations: most updates per component.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField(noise=0.0))
        >>> tied = tie(bnn, rank=1)
        >>> type(tied.posterior("weight")).__name__, tied.families["weight"].rank
        ('KTiedPosterior', 1)
    """
    _check_iterations("tie", iterations)
    ranks = _ranks(bnn, rank, where, iterations)
    new: dict[str, KTiedPosterior] = {}
    for name, q in elementwise(bnn, where, "tie").items():
        if name not in ranks:
            continue
        scale = positive_scale(name, q, "tie")
        k = min(ranks[name], full_rank(scale.shape))
        fit = next(islice(factors.growing(scale, iterations), k - 1, None))
        new[name] = _tied(q, scale, fit, iterations)
    return with_posteriors(bnn, new)


def _ranks(
    bnn: nn.Module, rank: int | str | Mapping[str, int], where: Globs, iterations: int
) -> dict[str, int]:
    """The rank of every matrix to be tied, by name."""
    if rank == "auto":
        return choose_rank(bnn, where=where, iterations=iterations)
    if isinstance(rank, str):
        raise ValueError(f'tie(rank={rank!r}): write a whole number, rank="auto" or a mapping')
    chosen = elementwise(bnn, where, "tie")
    if not isinstance(rank, Mapping):
        return dict.fromkeys(chosen, check_rank("tie", rank))
    for name in rank:
        if name not in chosen:
            raise ValueError(
                f"tie(rank={{{name!r}: ...}}) names no matrix to tie; {near_misses(name, chosen)}"
            )
    return {name: check_rank("tie", k) for name, k in rank.items()}


def _tied(q: Elementwise, scale: Tensor, fit: factors.Factors, iterations: int) -> KTiedPosterior:
    """The posterior with these factors; with a bound they are fitted again below it if need be."""
    loc, bound = q.loc.detach().clone(), bound_of(q)
    rows, columns = factors.balanced(fit.rows, fit.columns)
    if bound is not None:
        ceiling = math.sqrt(bound / rows.shape[-2])
        held = 0.99 * ceiling
        if max(float(rows.max()), float(columns.max())) > held:
            rows, columns = rows.clamp(max=held), columns.clamp(max=held)
            rows, columns, _ = factors.improved(scale, rows, columns, iterations, held)
        rows, columns = soft_min_inverse(rows, ceiling), soft_min_inverse(columns, ceiling)
    return KTiedPosterior(loc, rows.log().to(loc), columns.log().to(loc), bound)


def rank_losses(
    bnn: nn.Module,
    max_rank: int = 4,
    *,
    where: Globs = None,
    iterations: int = factors.ITERATIONS,
) -> dict[str, list[float]]:
    """Nats per weight that tying costs at rank 1, 2, ..., max_rank (or full rank), by matrix.

    The loss is KL(tied ‖ given)/weights, about the mean of (log τ/σ)²: 0.01 is a typical error of
    10 % in a standard deviation.

    Args:
        bnn: a network from `bayesianize`.
        max_rank: largest rank to try.
        where: which matrices: a glob over names, or several.
        iterations: most updates per component.

    Examples:
        >>> import kasuri
        >>> losses = rank_losses(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), 3)
        >>> len(losses["weight"]), losses["weight"][0] >= losses["weight"][2]
        (3, True)
    """
    _check_iterations("rank_losses", iterations)
    most = check_rank("rank_losses", max_rank)
    return {
        name: list(_losses(name, q, "rank_losses", most, 0.0, iterations))
        for name, q in elementwise(bnn, where, "rank_losses").items()
    }


@overload
def choose_rank(
    bnn: nn.Module,
    *,
    tolerance: float = ...,
    max_rank: int = ...,
    per_layer: Literal[True] = ...,
    where: Globs = ...,
    iterations: int = ...,
) -> dict[str, int]: ...
@overload
def choose_rank(
    bnn: nn.Module,
    *,
    tolerance: float = ...,
    max_rank: int = ...,
    per_layer: Literal[False],
    where: Globs = ...,
    iterations: int = ...,
) -> int: ...
def choose_rank(
    bnn: nn.Module,
    *,
    tolerance: float = TOLERANCE,
    max_rank: int = MAX_RANK,
    per_layer: bool = True,
    where: Globs = None,
    iterations: int = factors.ITERATIONS,
) -> dict[str, int] | int:
    """The smallest rank at which tying costs less than `tolerance` nats per weight, by matrix.

    A matrix that no rank up to `max_rank` fits so well gets `max_rank`; `rank_losses` has the
    numbers. Independent noise in σ of relative size c costs c² at any rank: the default tolerance
    lies above 0.01, the cost of the noise of 10 % that posteriors start with and short
    training leaves, and below what a missing component of visible size costs (0.02 to 0.1 in
    matrices made of 2 or 3 log-normal products of spread 1).

    Args:
        bnn: a network from `bayesianize`, trained.
        tolerance: nats per weight.
        max_rank: largest rank to try.
        per_layer: False for one number, the largest of all, which is enough everywhere.
        where: which matrices: a glob over names, or several.
        iterations: most updates per component.

    Examples:
        >>> import kasuri
        >>> choose_rank(kasuri.bayesianize(nn.Linear(30, 20), kasuri.KTied(rank=1, noise=1.0)))
        {'weight': 1}
    """
    _check_iterations("choose_rank", iterations)
    if not is_positive(tolerance):
        raise ValueError(
            f"choose_rank(tolerance={tolerance}): a positive number of nats per weight; no tied "
            f"posterior fits others exactly, so take e.g. {TOLERANCE}"
        )
    most = check_rank("choose_rank", max_rank)
    found = {
        name: len(_losses(name, q, "choose_rank", most, tolerance, iterations))
        for name, q in elementwise(bnn, where, "choose_rank").items()
    }
    return found if per_layer else max(found.values())


def _losses(
    name: str, q: Elementwise, task: str, most: int, tolerance: float, iterations: int
) -> list[float]:
    """Losses at rank 1, 2, ... until one is below the tolerance, or the largest rank is reached."""
    scale = positive_scale(name, q, task)
    losses: list[float] = []
    for fit in islice(factors.growing(scale, iterations), min(most, full_rank(scale.shape))):
        losses.append(max(0.0, float(fit.loss.mean())))
        if losses[-1] < tolerance:
            break
    return losses


def _check_iterations(task: str, iterations: int) -> None:
    if not is_whole(iterations, 1):
        raise ValueError(f"{task}(iterations={iterations!r}): a whole number of updates, 1 or more")

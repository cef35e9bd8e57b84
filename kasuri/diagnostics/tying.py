"""From free standard deviations to tied ones, after training: how many products, and which."""

import math
from collections.abc import Mapping
from functools import partial
from itertools import islice

from torch import Tensor, nn

from kasuri.checks import near_misses
from kasuri.diagnostics import factors
from kasuri.diagnostics.matrices import (
    Globs,
    bound_of,
    check_rank,
    exchanged,
    full_rank,
    independent,
)
from kasuri.numerics.safe import soft_min_inverse
from kasuri.posteriors.base import Elementwise
from kasuri.posteriors.k_tied import KTied, KTiedPosterior

TOLERANCE = 0.015
MAX_RANK = 8


def tie(bnn: nn.Module, rank: int | str | Mapping[str, int], *, where: Globs = None) -> nn.Module:
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

    Examples:
        >>> import kasuri
        >>> tied = tie(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), rank=1)
        >>> dict(kasuri.named_posteriors(tied))["weight"].log_rows.shape
        torch.Size([1, 20])
    """
    chosen = independent(bnn, where, "tie")
    if rank == "auto":
        rank = choose_rank(bnn, where=where)
    elif isinstance(rank, str):
        raise ValueError(f'tie(rank={rank!r}): write a whole number, rank="auto" or a mapping')
    ranks = rank if isinstance(rank, Mapping) else dict.fromkeys(chosen, rank)
    new = {}
    for name, wanted in ranks.items():
        if name not in chosen:
            raise ValueError(
                f"tie(rank={{{name!r}: ...}}) names no matrix to tie; {near_misses(name, chosen)}"
            )
        q, scale = chosen[name]
        k = min(check_rank("tie", wanted), full_rank(scale))
        fit = next(islice(factors.growing(scale), k - 1, None))
        new[name] = _tied(q, scale, fit), partial(KTied, rank=k)
    return exchanged(bnn, new)


def _tied(q: Elementwise, scale: Tensor, fit: factors.Factors) -> KTiedPosterior:
    """The posterior with these factors; with a bound they are fitted again below it if need be."""
    loc, bound = q.loc.detach().clone(), bound_of(q)
    rows, columns = factors.balanced(fit.rows, fit.columns)
    if bound is not None:
        ceiling = math.sqrt(bound / rows.shape[-2])
        held = 0.99 * ceiling
        if max(float(rows.max()), float(columns.max())) > held:
            rows, columns = rows.clamp(max=held), columns.clamp(max=held)
            rows, columns, _ = factors.improved(scale, rows, columns, ceiling=held)
        rows, columns = soft_min_inverse(rows, ceiling), soft_min_inverse(columns, ceiling)
    return KTiedPosterior(loc, rows.log().to(loc), columns.log().to(loc), bound)


def rank_losses(
    bnn: nn.Module, max_rank: int = 4, *, tolerance: float = 0.0, where: Globs = None
) -> dict[str, list[float]]:
    """Nats per weight that tying costs at rank 1, 2, ..., max_rank (or full rank), by matrix.

    The loss is KL(tied ‖ given)/weights, about the mean of (log τ/σ)²: 0.01 is a typical error of
    10 % in a standard deviation.

    Args:
        bnn: a network from `bayesianize`.
        max_rank: largest rank to try.
        tolerance: stop at the first loss below this.
        where: which matrices: a glob over names, or several.

    Examples:
        >>> import kasuri
        >>> losses = rank_losses(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), 3)
        >>> len(losses["weight"]), losses["weight"][0] >= losses["weight"][2]
        (3, True)
    """
    most = check_rank("rank_losses", max_rank)
    losses: dict[str, list[float]] = {}
    for name, (_, scale) in independent(bnn, where, "rank_losses").items():
        losses[name] = []
        for fit in islice(factors.growing(scale), min(most, full_rank(scale))):
            losses[name].append(max(0.0, float(fit.loss.mean())))
            if losses[name][-1] < tolerance:
                break
    return losses


def choose_rank(
    bnn: nn.Module,
    *,
    tolerance: float = TOLERANCE,
    max_rank: int = MAX_RANK,
    where: Globs = None,
) -> dict[str, int]:
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
        where: which matrices: a glob over names, or several.

    Examples:
        >>> import kasuri
        >>> choose_rank(kasuri.bayesianize(nn.Linear(30, 20), kasuri.KTied(rank=1, noise=1.0)))
        {'weight': 1}
    """
    if not 0 < tolerance < math.inf:
        raise ValueError(
            f"choose_rank: tolerance must be a positive number of nats per weight, got {tolerance}; "
            f"no tied posterior fits others exactly, so take e.g. {TOLERANCE}"
        )
    losses = rank_losses(bnn, max_rank, tolerance=tolerance, where=where)
    return {name: len(tried) for name, tried in losses.items()}

"""Standard deviations of low rank after training: cut by an SVD, or tied as products of factors."""

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole, near_misses
from kasuri.diagnostics import factors
from kasuri.diagnostics.spectra import blocks_of, matrix_posteriors, scale_of
from kasuri.network.convert import replace_posteriors
from kasuri.numerics.safe import soft_min_inverse
from kasuri.posteriors.base import Builder, Elementwise, Family, Posterior
from kasuri.posteriors.k_tied import KTied, KTiedPosterior
from kasuri.posteriors.masked import MaskedPosterior
from kasuri.posteriors.mean_field import MeanField, MeanFieldPosterior

TOLERANCE = 0.015
MAX_RANK = 8
BELOW = 1 - 1e-6  # of a bound on the scale, which no scale reaches
SIDE = 48  # longest side of a heat map
Families = Mapping[str, tuple[Posterior, Callable[..., Family]]]


def truncate(bnn: nn.Module, rank: int, *, floor: float | None = None) -> nn.Module:
    """A copy of the network whose standard deviations are max(rank-k SVD, floor).

    Every matrix of independent weights gets a mean-field posterior with the same means. Other and masked
    posteriors, vectors, and matrices whose full rank is not above k stay as they are. Blocks (gates, groups)
    are truncated one by one. Rank 1 is positive by itself, higher ranks in general are not: hence the
    floor, which the KL depends on. The result is an ordinary converted network; an objective
    belongs to one network, so make a new ELBO for it. A `max_scale` of the layer still holds.

    Args:
        bnn: a network from `bayesianize` with mean-field or k-tied posteriors.
        rank: k.
        floor: smallest standard deviation; by default the smallest there was in the matrix, so
            that nothing is extrapolated.

    Examples:
        >>> import kasuri
        >>> small = truncate(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), rank=1)
        >>> scale = dict(kasuri.named_posteriors(small))["weight"].scale
        >>> int(torch.linalg.matrix_rank(scale, rtol=1e-4))
        1
    """
    _check_rank("truncate", rank)
    if floor is not None and not 0 < floor < math.inf:
        raise ValueError(
            f"truncate: floor must be above 0, got {floor}: at a standard deviation of 0 the KL is infinite"
        )
    new: dict[str, tuple[Posterior, Callable[..., Family]]] = {}
    for name, (q, scale) in _independent(bnn, "truncate").items():
        if rank < _full_rank(scale):
            cut, bound, loc = _truncated(scale, rank, floor), _bound(q), q.loc.detach().clone()
            if bound is not None:
                cut = soft_min_inverse(cut.clamp(max=BELOW * bound), bound)
            new[name] = MeanFieldPosterior(loc, cut.log().to(loc), bound), MeanField
    return _exchanged(bnn, new)


def _truncated(scale: Tensor, rank: int, floor: float | None = None) -> Tensor:
    """max(rank-k SVD, floor) of matrices (*blocks, out, in); the default floor is each one's minimum."""
    lowest = scale.amin((-2, -1), keepdim=True) if floor is None else scale.new_tensor(floor)
    left, values, right = torch.linalg.svd(scale, full_matrices=False)
    cut = (left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :]
    return torch.maximum(cut, lowest)


def tie(bnn: nn.Module, rank: int | Mapping[str, int]) -> nn.Module:
    """A k-tied copy of a trained mean-field network, ready to be used or trained further.

    Means are kept; the standard deviations σ of each matrix become the product τ of rank k with
    the smallest KL(tied ‖ given) = Σ (τ²/(2σ²) - log(τ/σ) - ½), which near an optimum is what
    tying takes from the ELBO. Rank 1 is the global optimum; from there one component is added at a
    time by multiplicative updates, so more rank never fits worse. Vectors, masked matrices, and
    matrices whose weights are not independent stay as they are. A `max_scale` still holds, with the
    tighter meaning it has in kasuri.KTied. An objective belongs to one network, so make a new ELBO, or give
    the result to kasuri.fit.

    Args:
        bnn: a network from `bayesianize` with mean-field (or k-tied) posteriors.
        rank: k, or a mapping from names to ranks, as `choose_rank` returns it, for these matrices
            only. A matrix gets at most its full rank.

    Examples:
        >>> import kasuri
        >>> tied = tie(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), rank=1)
        >>> dict(kasuri.named_posteriors(tied))["weight"].log_rows.shape
        torch.Size([1, 20])
    """
    matrices = _independent(bnn, "tie")
    ranks = rank if isinstance(rank, Mapping) else dict.fromkeys(matrices, rank)
    new: dict[str, tuple[Posterior, Callable[..., Family]]] = {}
    for name, wanted in ranks.items():
        _check_rank("tie", wanted)
        if name not in matrices:
            raise ValueError(f"tie: {name!r} is no matrix to tie; {near_misses(name, matrices)}")
        q, scale = matrices[name]
        k = min(wanted, _full_rank(scale))
        new[name] = _tied(q, scale, k), partial(KTied, rank=k)
    return _exchanged(bnn, new)


def _tied(q: Elementwise, scale: Tensor, rank: int) -> KTiedPosterior:
    """The posterior with the best factors; with a bound they are fitted again below it if need be."""
    loc, bound = q.loc.detach().clone(), _bound(q)
    fitted = []
    for block in scale.reshape(-1, *scale.shape[-2:]):
        fit = next(islice(factors.growing(block), rank - 1, None))
        rows, columns = factors.balanced(fit.rows, fit.columns)
        if bound is not None:
            ceiling = math.sqrt(bound / rank)
            held = 0.99 * ceiling
            if max(float(rows.max()), float(columns.max())) > held:
                rows, columns = rows.clamp(max=held), columns.clamp(max=held)
                rows, columns, _ = factors.improved(block, rows, columns, ceiling=held)
            rows, columns = soft_min_inverse(rows, ceiling), soft_min_inverse(columns, ceiling)
        fitted.append((rows.log().to(loc), columns.log().to(loc)))
    rows, columns = (
        torch.stack(parts).reshape(*scale.shape[:-2], rank, -1)
        for parts in zip(*fitted, strict=True)
    )
    return KTiedPosterior(loc, rows, columns, bound)


def choose_rank(bnn: nn.Module, *, tolerance: float = TOLERANCE) -> dict[str, int]:
    """The smallest rank at which tying costs less than `tolerance` nats per weight, by matrix; at most 8.

    The cost is KL(tied ‖ given)/weights, about the mean of (log τ/σ)². Independent noise in σ of
    relative size c costs c² at any rank: the default tolerance lies above 0.01, the cost of the noise
    of 10 % that posteriors start with and short training leaves, and below what a missing
    component of visible size costs (0.02 to 0.1 in matrices made of 2 or 3 log-normal products of spread 1).

    Args:
        bnn: a network from `bayesianize`, trained.
        tolerance: nats per weight.

    Examples:
        >>> import kasuri
        >>> choose_rank(kasuri.bayesianize(nn.Linear(30, 20), kasuri.KTied(rank=1, noise=1.0)))
        {'weight': 1}
    """
    if not 0 < tolerance < math.inf:
        raise ValueError(f"choose_rank: tolerance must be a number above 0, got {tolerance}")
    ranks = {}
    for name, (_, scale) in _independent(bnn, "choose_rank").items():
        blocks = [factors.growing(block) for block in scale.reshape(-1, *scale.shape[-2:])]
        most = min(MAX_RANK, _full_rank(scale))
        losses = (sum(fit.loss for fit in fits) / len(fits) for fits in zip(*blocks, strict=True))
        enough = (k for k, loss in enumerate(losses, 1) if k == most or loss < tolerance)
        ranks[name] = next(enough)
    return ranks


def scale_maps(bnn: nn.Module, matrix: str) -> dict[str, Any]:
    """Heat maps of one matrix of standard deviations, in full and cut to ranks 1 and 2, ready for JSON.

    Sides above 48 are averaged down to that.

    Args:
        bnn: a network from `bayesianize`.
        matrix: its name, as in `spectrum`.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(300, 20), kasuri.MeanField())
        >>> maps = scale_maps(bnn, "weight")["maps"]
        >>> [each["title"] for each in maps], len(maps[0]["values"][0])
        (['full', 'rank 1', 'rank 2'], 48)
    """
    known: dict[str, Tensor] = {}
    for name, (_, scale) in _independent(bnn, "scale_maps").items():
        known |= blocks_of(name, scale)
    if matrix not in known:
        raise ValueError(f"scale_maps: there is no matrix {matrix!r}; {near_misses(matrix, known)}")
    full = known[matrix]
    sides = min(full.shape[0], SIDE), min(full.shape[1], SIDE)
    shown = {"full": full, "rank 1": _truncated(full, 1), "rank 2": _truncated(full, 2)}
    maps = {}
    for title, scale in shown.items():
        means = nn.functional.adaptive_avg_pool2d(scale[None], sides)[0]
        maps[title] = [[float(f"{value:.4g}") for value in row] for row in means.tolist()]
    values = [value for rows in maps.values() for row in rows for value in row]
    return {
        "layer": matrix,
        "shape": list(full.shape),
        "low": min(values),
        "high": max(values),
        "maps": [{"title": title, "values": rows} for title, rows in maps.items()],
    }


def _check_rank(task: str, rank: Any) -> None:
    if not is_whole(rank, 1):
        raise ValueError(f"{task}: rank must be a whole number, at least 1, got {rank!r}")


def _full_rank(scale: Tensor) -> int:
    return min(scale.shape[-2:])


def _bound(q: Posterior) -> float | None:
    return getattr(q, "max_scale", None)


def _independent(bnn: nn.Module, task: str) -> dict[str, tuple[Elementwise, Tensor]]:
    """The matrices of independent random weights without a mask, with their standard deviations in double."""
    found: dict[str, tuple[Elementwise, Tensor]] = {}
    for name, q in matrix_posteriors(bnn).items():
        if isinstance(q, Elementwise) and not isinstance(q, MaskedPosterior):
            scale = scale_of(name, q)
            if scale is None or not bool((scale > 0).all()):
                raise ValueError(
                    f"{task}: some standard deviations of {name!r} are 0 in {q.loc.dtype}, and their "
                    "logarithms are needed; call bnn.double() first"
                )
            found[name] = q, scale
    if not found:
        raise ValueError(
            f"{task}: no matrix has independent random weights; convert with kasuri.MeanField() and train"
        )
    return found


def _exchanged(bnn: nn.Module, new: Families) -> nn.Module:
    """A copy of the network with these posteriors; means and scales that were frozen stay frozen."""
    net = copy.deepcopy(bnn)
    olds, replaced = matrix_posteriors(net), dict[str, tuple[Posterior, Builder]]()
    for name, (posterior, family) in new.items():
        trained = {part == "loc": False for part, _ in olds[name].named_parameters()}
        for part, parameter in olds[name].named_parameters():
            trained[part == "loc"] |= parameter.requires_grad
        for part, parameter in posterior.named_parameters():
            parameter.requires_grad_(trained[part == "loc"])
        bound = _bound(posterior)
        options = (
            {} if bound is None else {"scale": min(Family.scale, bound / 10), "max_scale": bound}
        )
        replaced[name] = posterior, family(**options)
    replace_posteriors(net, replaced)
    return net

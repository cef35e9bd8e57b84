"""Standard deviations of low rank after training: cut by an SVD, or tied as products of factors."""

import copy
import math
from collections.abc import Mapping
from itertools import islice

import torch
from torch import Tensor, nn

from kasuri.checks import at_least_one, between, near_misses
from kasuri.diagnostics import factors
from kasuri.diagnostics.spectra import matrix_posteriors, scale_of
from kasuri.network.convert import replace_posteriors
from kasuri.posteriors.base import Builder, Elementwise, Posterior
from kasuri.posteriors.k_tied import KTied, KTiedPosterior
from kasuri.posteriors.masked import MaskedPosterior
from kasuri.posteriors.mean_field import MeanField, MeanFieldPosterior

TOLERANCE = 0.015
MAX_RANK = 8
New = dict[str, tuple[Posterior, Builder]]  # posteriors by name, and what made them


def truncate(bnn: nn.Module, rank: int) -> nn.Module:
    """A copy of the network whose standard deviations are max(rank-k SVD, smallest of the matrix).

    Every matrix of independent weights gets a mean-field posterior with the same means. Other and masked
    posteriors, vectors, and matrices whose full rank is not above k stay as they are. Blocks (gates, groups)
    are truncated one by one. Rank 1 is positive by itself, higher ranks in general are not: hence the
    floor, which the KL depends on, so that nothing is extrapolated. The result is an ordinary converted
    network, without a `max_scale`; an objective belongs to one network, so make a new ELBO for it.

    Args:
        bnn: a network from `bayesianize` with mean-field or k-tied posteriors.
        rank: k.

    Examples:
        >>> import kasuri
        >>> small = truncate(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), rank=1)
        >>> scale = dict(kasuri.named_posteriors(small))["weight"].scale
        >>> int(torch.linalg.matrix_rank(scale, rtol=1e-4))
        1
    """
    at_least_one(rank=rank)
    new: New = {}
    for name, (q, scale) in _independent(bnn, "truncate").items():
        if rank < _full_rank(scale):
            loc = q.loc.detach().clone()
            cut = _truncated(scale, rank).log().to(loc)
            new[name] = MeanFieldPosterior(loc, cut), MeanField()
    return _exchanged(bnn, new)


def _truncated(scale: Tensor, rank: int) -> Tensor:
    """max(rank-k SVD, minimum) of matrices (*blocks, out, in), each with its own minimum."""
    left, values, right = torch.linalg.svd(scale, full_matrices=False)
    cut = (left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :]
    return torch.maximum(cut, scale.amin((-2, -1), keepdim=True))


def tie(bnn: nn.Module, rank: int | Mapping[str, int]) -> nn.Module:
    """A k-tied copy of a trained mean-field network, ready to be used or trained further.

    Means are kept; the standard deviations σ of each matrix become the product τ of rank k with
    the smallest KL(tied ‖ given) = Σ (τ²/(2σ²) - log(τ/σ) - ½), which near an optimum is what
    tying takes from the ELBO. Rank 1 is the global optimum; from there one component is added at a
    time by multiplicative updates, so more rank never fits worse. Vectors, masked matrices, and
    matrices whose weights are not independent stay as they are. The result has no `max_scale`. An objective
    belongs to one network, so make a new ELBO, or give the result to kasuri.fit.

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
    new: New = {}
    for name, wanted in ranks.items():
        at_least_one(rank=wanted)
        if name not in matrices:
            raise ValueError(f"tie: {name!r} is no matrix to tie; {near_misses(name, matrices)}")
        q, scale = matrices[name]
        k = min(wanted, _full_rank(scale))
        new[name] = _tied(q, scale, k), KTied(k)
    return _exchanged(bnn, new)


def _tied(q: Elementwise, scale: Tensor, rank: int) -> KTiedPosterior:
    """The posterior with the best factors, block by block."""
    loc, fitted = q.loc.detach().clone(), []
    for block in scale.reshape(-1, *scale.shape[-2:]):
        fit = next(islice(factors.growing(block), rank - 1, None))
        rows, columns = factors.balanced(fit.rows, fit.columns)
        fitted.append((rows.log().to(loc), columns.log().to(loc)))
    log_rows, log_columns = (
        torch.stack(parts).reshape(*scale.shape[:-2], rank, -1)
        for parts in zip(*fitted, strict=True)
    )
    return KTiedPosterior(loc, log_rows, log_columns)


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
    between(0, math.inf, tolerance=tolerance)
    ranks = {}
    for name, (_, scale) in _independent(bnn, "choose_rank").items():
        blocks = [factors.growing(block) for block in scale.reshape(-1, *scale.shape[-2:])]
        most = min(MAX_RANK, _full_rank(scale))
        losses = (sum(fit.loss for fit in fits) / len(fits) for fits in zip(*blocks, strict=True))
        enough = (k for k, loss in enumerate(losses, 1) if k == most or loss < tolerance)
        ranks[name] = next(enough)
    return ranks


def _full_rank(scale: Tensor) -> int:
    return min(scale.shape[-2:])


def _independent(bnn: nn.Module, task: str) -> dict[str, tuple[Elementwise, Tensor]]:
    """The matrices of independent random weights without a mask, with their standard deviations in double."""
    matrices: dict[str, tuple[Elementwise, Tensor]] = {}
    for name, q in matrix_posteriors(bnn).items():
        if isinstance(q, Elementwise) and not isinstance(q, MaskedPosterior):
            scale = scale_of(name, q)
            if scale is None or not bool((scale > 0).all()):
                raise ValueError(
                    f"{task}: some standard deviations of {name!r} are 0 in {q.loc.dtype}, and their "
                    "logarithms are needed; call bnn.double() first"
                )
            matrices[name] = q, scale
    if not matrices:
        raise ValueError(
            f"{task}: no matrix has independent random weights; convert with kasuri.MeanField() and train"
        )
    return matrices


def _exchanged(bnn: nn.Module, new: New) -> nn.Module:
    """A copy of the network with these posteriors; means and scales that were frozen stay frozen."""
    net = copy.deepcopy(bnn)
    olds = matrix_posteriors(net)
    for name, (posterior, _) in new.items():
        trained = {part for part, p in olds[name].named_parameters() if p.requires_grad}
        for part, parameter in posterior.named_parameters():
            parameter.requires_grad_("loc" in trained if part == "loc" else bool(trained - {"loc"}))
    replace_posteriors(net, new)
    return net

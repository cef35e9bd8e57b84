"""Fewer numbers for the uncertainty itself: tied standard deviations, and none where they are tiny."""

import copy

import torch
from torch import nn

from kasuri.diagnostics.matrices import matrix_posteriors
from kasuri.diagnostics.tying import tie
from kasuri.network.convert import replace_posteriors
from kasuri.network.random import named_posteriors
from kasuri.posteriors.base import Builder, Posterior
from kasuri.posteriors.masked import MaskedPosterior
from kasuri.posteriors.mean_field import MeanFieldPosterior
from kasuri.posteriors.point import Point, PointPosterior


def slim(
    bnn: nn.Module, rank: int | str | None = None, floor: float | None = None
) -> tuple[nn.Module, list[str]]:
    """A copy of a Bayesian network with fewer variational parameters, and what was done.

    Args:
        bnn: from `bayesianize`.
        rank: tie the standard deviations of mean-field matrices to this rank (`kasuri.diagnostics.tie`),
            "auto" for a rank of its own for every matrix. Masked matrices are left, and named.
        floor: weights whose standard deviations are all at most this become point estimates,
            matrix by matrix and vector by vector; masked ones are left, and named.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField(scale=0.01))
        >>> slim(bnn, rank=1)[1]
        ["'weight': standard deviations tied, rank 1"]
        >>> [type(q).__name__ for _, q in kasuri.named_posteriors(slim(bnn, floor=1.0)[0])]
        ['PointPosterior', 'PointPosterior']
    """
    notes: list[str] = []
    net = copy.deepcopy(bnn)
    if floor is not None:
        net = _pointed(net, floor, notes)
    if rank is None:
        return net, notes
    free = [
        name
        for name, q in matrix_posteriors(net).items()
        if isinstance(q, MeanFieldPosterior) and min(q.shape[-2:]) > 1
    ]
    notes += [
        f"{name!r}: not tied, some of its weights are 0 for certain"
        for name, q in matrix_posteriors(net).items()
        if isinstance(q, MaskedPosterior) and isinstance(q.base, MeanFieldPosterior)
    ]
    if not free:
        return net, [*notes, "no mean-field matrix is left whose standard deviations could be tied"]
    net = tie(net, rank, where=free)
    for name, q in matrix_posteriors(net).items():
        if name in free and not isinstance(q, MeanFieldPosterior):
            notes.append(f"{name!r}: standard deviations tied, rank {getattr(q, 'rank', rank)}")
    return net, notes


@torch.no_grad()
def _pointed(net: nn.Module, floor: float, notes: list[str]) -> nn.Module:
    new: dict[str, tuple[Posterior, Builder]] = {}
    for name, q in named_posteriors(net):
        if isinstance(q, PointPosterior) or float(q.variance.max()) > floor**2:
            continue
        if isinstance(q, MaskedPosterior):
            notes.append(f"{name!r}: no point, some of its weights are 0 for certain")
        else:
            new[name] = PointPosterior(q.mean.detach().clone()), Point()
            notes.append(f"{name!r}: a point, its standard deviations are at most {floor:g}")
    replace_posteriors(net, new)
    return net

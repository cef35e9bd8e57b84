"""What a posterior does not need: signal-to-noise ratios of weights, rows and columns.

A weight whose mean is small against its standard deviation is noise around 0. So is a row (an
output) or a column (an input) of a weight matrix as a whole if its signal, the sum of squared means,
is small against its noise, the sum of variances. Under a group prior with precisions τ_iγ_j the
sums are weighted by γ along rows and by τ along columns: that makes them independent of the units of
inputs and outputs, in which raw precisions are not.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.network.random import require_posteriors
from kasuri.objectives.elbo import ELBO
from kasuri.priors.relevance import GroupARD

THRESHOLD = 0.05  # of mean²/variance: such a weight costs ½ log 1.05 = 0.024 nats under ARD


@dataclass(frozen=True)
class Relevance:
    """Signal-to-noise ratios of one weight matrix, in double precision.

    A ratio is infinite where a point estimate has no noise, and 0 where a weight is certainly 0.

    Args:
        weights: mean²/variance, (*blocks, out, in).
        rows: Σ_j γ_j mean²_ij / Σ_j γ_j variance_ij, (*blocks, out).
        columns: Σ_i τ_i mean²_ij / Σ_i τ_i variance_ij, (*blocks, in).
    """

    weights: Tensor
    rows: Tensor
    columns: Tensor


def relevance(model: nn.Module) -> dict[str, Relevance]:
    """Signal-to-noise ratios of the weights, rows and columns of every random weight matrix.

    Args:
        model: a network from `bayesianize`; or a kasuri.ELBO, for the precisions of its kasuri.GroupARD.
            Without a group prior all precisions count as 1.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> {name: tuple(r.columns.shape) for name, r in kasuri.relevance(bnn).items()}
        {'weight': (3,)}
    """
    return {
        name: Relevance(
            _quotient(one.signal, one.noise),
            _quotient(*(_times(part, one.columns) for part in (one.signal, one.noise))),
            _quotient(*(_times(part.mT, one.rows) for part in (one.signal, one.noise))),
        )
        for name, one in _matrices(model)
    }


@dataclass(frozen=True)
class _Matrix:
    """Squared means and variances (*blocks, out, in); precisions of rows and columns."""

    signal: Tensor
    noise: Tensor
    rows: Tensor
    columns: Tensor


def network_of(model: nn.Module) -> nn.Module:
    """The network itself, or that of an objective."""
    return model.bnn if isinstance(model, ELBO) else model


@torch.no_grad()
def _matrices(model: nn.Module) -> Iterator[tuple[str, _Matrix]]:
    """Every weight matrix in double precision on the CPU."""
    posteriors = require_posteriors(network_of(model))
    groups: dict[str, GroupARD] = {}
    if isinstance(model, ELBO):
        for prior, names in zip(model.priors, model.governed, strict=True):
            groups |= dict.fromkeys(names, prior) if isinstance(prior, GroupARD) else {}
    matrices = {name: q for name, q in posteriors.items() if len(q.shape) >= 2}
    if not matrices:
        raise ValueError(
            "every posterior of this network is one of a vector, and vectors have no rows and "
            "columns to drop; convert weight matrices as well"
        )
    for name, q in matrices.items():
        signal, noise = finite_double(name, q.mean).square(), finite_double(name, q.variance)
        rows, columns = torch.ones(signal.shape[:-1]), torch.ones_like(signal[..., 0, :])
        if name in groups:
            rows, columns = groups[name].precisions(q)
        yield name, _Matrix(signal, noise, rows.cpu().double(), columns.cpu().double())


def finite_double(name: str, values: Tensor) -> Tensor:
    """Means or variances for looking at: on the CPU, in double precision; refused if not finite."""
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"means or variances of {name!r} are not all finite, so nothing can be said about them: "
            "this network did not train; take an earlier checkpoint"
        )
    return values.detach().cpu().double()


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _quotient(signal: Tensor, noise: Tensor) -> Tensor:
    """Signal / noise; 0 where there is no signal, infinite where there is no noise."""
    return torch.where(signal > 0, signal / noise.clamp(min=0), 0.0)


def kept(
    model: nn.Module, threshold: float, weights: bool, rows: bool, columns: bool
) -> dict[str, Tensor]:
    """For each matrix, True where a weight stays; arguments as for `kasuri.sparsify`.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(4, 1), kasuri.MeanField(scale=10.0))
        >>> kept(bnn, 0.05, weights=True, rows=False, columns=False)
        {'weight': tensor([[False, False, False, False]])}
    """
    if not (isinstance(threshold, int | float) and 0 <= threshold < math.inf):
        raise ValueError(
            f"threshold={threshold!r}: a signal-to-noise ratio mean²/variance, 0 or more, e.g. "
            f"{THRESHOLD}"
        )
    if not (weights or rows or columns):
        raise ValueError(
            "weights=False, rows=False, columns=False: nothing could be dropped; leave one of them out"
        )
    masks = {}
    for name, one in _matrices(model):
        mask = one.signal + one.noise > 0
        if weights:
            mask &= _quotient(one.signal, one.noise) >= threshold
        if rows or columns:
            blocks = zip(
                *(part.reshape(-1, *part.shape[-2:]) for part in (one.signal, one.noise)),
                one.rows.reshape(-1, one.rows.shape[-1]),
                one.columns.reshape(-1, one.columns.shape[-1]),
                strict=True,
            )
            kept = [_groups_left(_Matrix(*block), threshold, rows, columns) for block in blocks]
            mask &= torch.stack(kept).reshape(mask.shape)
        masks[name] = mask
    return masks


def _groups_left(one: _Matrix, threshold: float, rows: bool, columns: bool) -> Tensor:
    """Which entries of one matrix are in rows and columns that stay.

    One group is dropped at a time, since its noise lowers the ratios of all that cross it: a
    network with many dead inputs would otherwise lose every output as well.
    """
    tested = [number for number, wanted in enumerate((rows, columns)) if wanted]
    weight = (one.rows, one.columns)
    # a ratio of sums never exceeds the largest of the single ratios: groups without one that is
    # large enough go at once
    single = _quotient(one.signal, one.noise)
    stay = [single.amax(1) >= threshold, single.amax(0) >= threshold]
    stay = [good if number in tested else good | True for number, good in enumerate(stay)]
    parts = [part * (stay[0][:, None] & stay[1]) for part in (one.signal, one.noise)]
    sums = [
        [_times(part, one.columns) for part in parts],
        [_times(part.mT, one.rows) for part in parts],
    ]
    while True:
        worst = []
        for number in tested:
            ratios = torch.where(stay[number], _quotient(*sums[number]), math.inf)
            place = int(ratios.argmin())
            worst.append((float(ratios[place]), number, place))
        value, side, index = min(worst)
        if not value < threshold:
            return stay[0][:, None] & stay[1]
        stay[side][index] = False
        for total, part in zip(sums[1 - side], parts, strict=True):
            total -= weight[side][index] * part.select(side, index)
            total.clamp_(min=0)

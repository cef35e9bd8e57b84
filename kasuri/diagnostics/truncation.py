"""Standard deviations cut down to low rank after training, as networks and as pictures."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import near_misses
from kasuri.diagnostics.matrices import (
    Globs,
    blocks_of,
    bound_of,
    check_rank,
    exchanged,
    full_rank,
    independent,
    matrix_posteriors,
    scale_of,
)
from kasuri.numerics.safe import soft_min_inverse
from kasuri.posteriors.mean_field import MeanField, MeanFieldPosterior

BELOW = 1 - 1e-6  # of a bound on the scale, which no scale reaches


def truncate(
    bnn: nn.Module, rank: int, *, where: Globs = None, floor: float | None = None
) -> nn.Module:
    """A copy of the network whose standard deviations are max(rank-k SVD, floor).

    Every matrix posterior becomes a mean-field one with the same means; vectors stay as they are, and
    so do matrices whose full rank is not above k. Blocks (gates, groups) are truncated one by one.
    Rank 1 is positive by itself, higher ranks in general are not: hence the floor, which
    the KL depends on. The result is an ordinary converted network; an objective belongs to
    one network, so make a new ELBO for it. A `max_scale` of the layer still holds.

    Args:
        bnn: a network from `bayesianize` with mean-field or k-tied posteriors.
        rank: k.
        where: which matrices: a glob over names ("fc*", "*.weight_hh_l0"), or several.
        floor: smallest standard deviation; by default the smallest there was in the matrix, so
            that nothing is extrapolated.

    Examples:
        >>> import kasuri
        >>> small = truncate(kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField()), rank=1)
        >>> scale = dict(kasuri.named_posteriors(small))["weight"].scale
        >>> int(torch.linalg.matrix_rank(scale, rtol=1e-4))
        1
    """
    rank = check_rank("truncate", rank)
    if floor is not None and not 0 < floor < math.inf:
        raise ValueError(
            f"truncate: floor must be above 0, got {floor}: at a standard deviation of 0 the KL is "
            "infinite; leave it out for the smallest one in the layer"
        )
    new = {}
    for name, (q, scale) in independent(bnn, where, "truncate", positive=floor is None).items():
        bound = bound_of(q)
        cut = truncated(scale, rank, floor)
        cut = cut if bound is None else cut.clamp(max=BELOW * bound)
        if not (isinstance(q, MeanFieldPosterior) and torch.equal(cut, scale)):
            loc = q.loc.detach().clone()
            logs = (cut if bound is None else soft_min_inverse(cut, bound)).log()
            new[name] = MeanFieldPosterior(loc, logs.to(loc), bound), MeanField
    return exchanged(bnn, new)


def truncated(scale: Tensor, rank: int, floor: float | None = None) -> Tensor:
    """max(rank-k SVD, floor) of matrices (*blocks, out, in); the default floor is each one's minimum.

    Examples:
        >>> truncated(torch.tensor([[1.0, 2.0], [2.0, 4.0]]), rank=1)
        tensor([[1.0000, 2.0000],
                [2.0000, 4.0000]])
    """
    lowest = scale.amin((-2, -1), keepdim=True) if floor is None else scale.new_tensor(floor)
    if rank >= full_rank(scale):
        return torch.maximum(scale, lowest)
    left, values, right = torch.linalg.svd(scale, full_matrices=False)
    cut = (left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :]
    return torch.maximum(cut, lowest)


def scale_maps(
    bnn: nn.Module, layer: str, ranks: Sequence[int] = (1, 2), size: int = 48
) -> dict[str, Any]:
    """Heat maps of one matrix of standard deviations, in full and truncated, ready for JSON.

    Args:
        bnn: a network from `bayesianize`.
        layer: name of a matrix as in `spectrum`, or of the module that holds it.
        ranks: of the truncations (as in `truncate`, default floor).
        size: matrices with longer sides are averaged over blocks down to this.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(300, 20), kasuri.MeanField())
        >>> maps = scale_maps(bnn, "weight")
        >>> [each["title"] for each in maps["maps"]], len(maps["maps"][0]["values"][0])
        (['full', 'rank 1', 'rank 2'], 48)
    """
    name, scale = _matrix(bnn, layer)
    shown = {"full": scale} | {f"rank {rank}": truncated(scale, rank) for rank in ranks}
    sides = [min(side, size) for side in scale.shape]
    maps = {title: _block_means(matrix, sides) for title, matrix in shown.items()}
    values = [value for rows in maps.values() for row in rows for value in row]
    return {
        "layer": name,
        "shape": list(scale.shape),
        "low": min(values),
        "high": max(values),
        "maps": [{"title": title, "values": rows} for title, rows in maps.items()],
    }


def _matrix(bnn: nn.Module, layer: str) -> tuple[str, Tensor]:
    """Name and standard deviations of the matrix that is meant."""
    known: dict[str, Tensor] = {}
    for name, q in matrix_posteriors(bnn).items():
        scale = scale_of(name, q)
        if scale is not None:
            known |= blocks_of(name, scale)
    inside = [name for name in known if name.startswith((f"{layer}.", f"{layer}["))]
    if layer not in known and len(inside) != 1:
        reason = near_misses(layer, known)
        if inside:
            reason = f"it has several: {', '.join(map(repr, inside))}"
        raise ValueError(
            f"scale_maps: {layer!r} does not name one matrix with standard deviations; {reason}"
        )
    name = layer if layer in known else inside[0]
    return name, known[name]


def _block_means(matrix: Tensor, sides: Sequence[int]) -> list[list[float]]:
    """Means over blocks of (almost) equal size, so many along each side, to four digits."""
    for side in sides:  # rows first; the transpose brings the columns to the front
        owner = torch.arange(len(matrix)) * side // len(matrix)
        members = (owner == torch.arange(side)[:, None]).to(matrix)
        matrix = (members / members.sum(1, keepdim=True) @ matrix).T
    return [[float(f"{value:.4g}") for value in row] for row in matrix.tolist()]

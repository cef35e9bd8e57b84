"""Standard deviations cut down to low rank after training, as networks and as pictures."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.checks import is_whole, near_misses
from kasuri.diagnostics.matrices import (
    Globs,
    blocks_of,
    bound_of,
    check_rank,
    elementwise,
    full_rank,
    is_positive,
    matrix_posteriors,
    scale_of,
    with_posteriors,
)
from kasuri.numerics.safe import soft_min_inverse
from kasuri.posteriors.base import Elementwise
from kasuri.posteriors.mean_field import MeanFieldPosterior

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
        >>> bnn = kasuri.bayesianize(nn.Linear(30, 20), kasuri.MeanField())
        >>> small = truncate(bnn, rank=1)
        >>> int(torch.linalg.matrix_rank(small.posterior("weight").scale, rtol=1e-4))
        1
    """
    task = "truncate"
    rank = check_rank(task, rank)
    if floor is not None and not is_positive(floor):
        raise ValueError(
            f"truncate(floor={floor}): at a standard deviation of 0 the KL is infinite; give a "
            "small positive number, or leave it out for the smallest one in the layer"
        )
    new: dict[str, MeanFieldPosterior] = {}
    for name, q in elementwise(bnn, where, task).items():
        scale = positive_scale(name, q, task, needed=floor is None)
        bound = bound_of(q)
        cut = truncated(scale, rank, floor)
        cut = cut if bound is None else cut.clamp(max=BELOW * bound)
        if not (isinstance(q, MeanFieldPosterior) and torch.equal(cut, scale)):
            new[name] = _mean_field(q, cut, bound)
    return with_posteriors(bnn, new)


def _mean_field(q: Elementwise, scale: Tensor, bound: float | None) -> MeanFieldPosterior:
    logs = (scale if bound is None else soft_min_inverse(scale, bound)).log()
    loc = q.loc.detach().clone()
    return MeanFieldPosterior(loc, logs.to(loc), bound)


def positive_scale(name: str, q: Elementwise, task: str, needed: bool = True) -> Tensor:
    """Standard deviations in double precision; refuse zeros if they must not be."""
    scale = scale_of(name, q)
    if scale is None or (needed and not bool((scale > 0).all())):
        raise ValueError(
            f"{task}: some standard deviations of {name!r} are not above 0 in {q.loc.dtype}, and "
            "their logarithms are needed; call bnn.double() before, or give truncate a floor"
        )
    return scale


def truncated(scale: Tensor, rank: int, floor: float | None = None) -> Tensor:
    """max(rank-k SVD, floor) of matrices (*blocks, out, in); the default floor is each one's minimum.

    Examples:
        >>> truncated(torch.tensor([[1.0, 2.0], [2.0, 4.0]]), rank=1)
        tensor([[1.0000, 2.0000],
                [2.0000, 4.0000]])
    """
    lowest = scale.amin((-2, -1), keepdim=True) if floor is None else scale.new_tensor(floor)
    if rank >= full_rank(scale.shape):
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
        >>> [one["title"] for one in maps["maps"]], len(maps["maps"][0]["values"][0])
        (['full', 'rank 1', 'rank 2'], 48)
    """
    ranks = [check_rank("scale_maps", rank) for rank in ranks]
    if not is_whole(size, 1):
        raise ValueError(f"scale_maps(size={size!r}): a whole number of cells, 1 or more")
    name, scale = _matrix(bnn, layer)
    shown = {"full": scale} | {f"rank {rank}": truncated(scale, rank) for rank in ranks}
    maps = {title: _shrunk(matrix, size) for title, matrix in shown.items()}
    together = torch.cat([one.flatten() for one in maps.values()])
    return {
        "layer": name,
        "shape": list(scale.shape),
        "low": _rounded(float(together.min())),
        "high": _rounded(float(together.max())),
        "maps": [
            {"title": title, "values": [[_rounded(v) for v in row] for row in one.tolist()]}
            for title, one in maps.items()
        ],
    }


def _matrix(bnn: nn.Module, layer: str) -> tuple[str, Tensor]:
    """Name and standard deviations of the matrix that is meant."""
    known: dict[str, Tensor | None] = {}
    for name, q in matrix_posteriors(bnn).items():
        scale = scale_of(name, q)
        blocks = blocks_of(name, torch.zeros(q.shape) if scale is None else scale)
        known |= {title: None if scale is None else matrix for title, matrix in blocks}
    inside = [name for name in known if name.startswith((f"{layer}.", f"{layer}["))]
    if layer not in known and len(inside) != 1:
        reason = near_misses(layer, known)
        if inside:
            reason = f"it has several: {', '.join(map(repr, inside))}"
        raise ValueError(f"scale_maps(layer={layer!r}) does not name one random matrix; {reason}")
    name = layer if layer in known else inside[0]
    found = known[name]
    if found is None:
        raise ValueError(
            f"scale_maps(layer={layer!r}): {name!r} has a point estimate and hence no standard "
            "deviations to show"
        )
    return name, found


def _shrunk(matrix: Tensor, size: int) -> Tensor:
    """Means over blocks of (almost) equal size, at most `size` along each side."""
    rows, columns = (_averaging(side, size, matrix) for side in matrix.shape)
    return rows @ matrix @ columns.T


def _averaging(length: int, size: int, like: Tensor) -> Tensor:
    """(min(length, size), length): each row averages a stretch of neighbours."""
    cells = min(length, size)
    owner = torch.arange(length) * cells // length
    members = (owner == torch.arange(cells)[:, None]).to(like)
    return members / members.sum(1, keepdim=True)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")

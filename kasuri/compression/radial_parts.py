"""Parts of radial posteriors: rows and columns with fewer entries, as radii and directions again.

Some components of a direction are not von Mises-Fisher distributed, nor is their length that of the whole.
The posterior of a part has the means of the old one, the second moment of all its rows or columns together
(of each, if each has a concentration of its own), and the spreads of their radii; it is not the marginal.
"""

import copy
import math

import torch
from torch import Tensor, nn

from kasuri.compression.parts import Part, along
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.directions import Directions
from kasuri.posteriors.radial.polar import Polar, Side, to_matrix, to_vectors
from kasuri.posteriors.radial.posterior import RadialPosterior
from kasuri.posteriors.radial.radii import Radii

SHORTEST = 1e-12  # of what is left of a unit vector: next to nothing, but with a direction


def radial_part(q: RadialPosterior, part: Part) -> RadialPosterior | None:
    """The posterior of these rows and columns; None where `kasuri.Radial` has normal weights anyway."""
    outs, ins = part.places.shape[-2:]
    inputs = part.columns_left[..., :: q.positions] // q.positions
    sides = {outs, ins} if q.rows is not None else set()
    if q.columns is not None or q.column_radii is not None:
        sides |= {outs * q.positions, ins // q.positions}
    if 1 in sides:
        return None
    rows, columns, radii = q.rows, q.columns, q.column_radii
    factor = q.factor
    if rows is not None:
        rows = _polar_part(rows, "rows", part.rows_left, part, q.positions)
    if columns is not None:
        # as kasuri.Radial(rescale=True) has it for a matrix of this size, so that files agree
        factor = 1.0 if factor == 1 else math.sqrt(outs * q.positions)
        columns = _polar_part(columns, "columns", inputs, part, q.positions, q.factor / factor)
    if radii is not None:
        radii = some_radii(copy.deepcopy(radii), inputs)
    return RadialPosterior(
        part.places.shape,
        rows=rows,
        columns=columns,
        column_radii=radii,
        positions=q.positions,
        factor=factor,
    )


@torch.no_grad()
def _polar_part(
    polar: Polar, side: Side, index: Tensor, part: Part, positions: int, longer: float = 1.0
) -> Polar:
    """These vectors (*blocks, n'), of which some components are left.

    Args:
        polar: the vectors.
        side: of the matrix.
        index: which of them.
        part: of the matrix.
        positions: neighbouring columns that are one input.
        longer: what the means are to be multiplied by.
    """
    old = polar.directions
    new: Polar = copy.deepcopy(polar)
    some_radii(new.local, index)
    kappa = old.concentration()
    own = kappa.shape[-1] > 1
    kappa = along(kappa, index) if own else kappa
    means = to_vectors(part.of(to_matrix(old.mode(), side, positions)), side, positions).double()
    before, after = old.dimension, means.shape[-1]
    if after == before:  # whole vectors, of the same law
        bound, new_kappa, factor = old.bound, kappa, torch.ones_like(kappa)
    else:
        length = torch.linalg.vector_norm(means, dim=-1).clamp(min=SHORTEST)
        means = means / length.unsqueeze(-1)
        resultant, across = vmf.mean_resultant(kappa, before), vmf.tangent_variance(kappa, before)
        # E‖x‖² of what is left of a unit vector x, and the square of its mean
        beyond = vmf.mean_resultant_slope(kappa, before) + resultant.square() - across
        second = beyond * length.square() + across * after
        first = (resultant * length).square()
        if not own:  # one concentration for all: in total
            weights = along(polar.squares(), index)
            first, second = ((weights * one).sum(-1, keepdim=True) for one in (first, second))
        ratio = (first / second).sqrt().clamp(max=1 - 1e-15)
        new_kappa = vmf.inverse_mean_resultant(ratio, after)
        bound = None
        if old.bound is not None:  # of the same cosine, see `concentration_at`
            bound = old.bound * (max(4, after) - 3) / (max(4, before) - 3)
            new_kappa = new_kappa.clamp(max=0.99 * bound)
        factor = length * resultant / vmf.mean_resultant(new_kappa, after)
    new.directions = Directions(means, new_kappa, bound).to(old.loc.dtype)
    shift = (factor * longer).log()
    loc = new.local.loc  # of logarithms, whatever the kind of radius
    loc.add_(shift.unsqueeze(-2) if loc.dim() > shift.dim() else shift)
    return new


def some_radii(radii: Radii, index: Tensor) -> Radii:
    """The same object with these radii (*blocks, n') alone."""
    for name, value in list(radii.named_parameters()):
        spread = index if value.dim() == index.dim() else index.unsqueeze(-2)
        setattr(radii, name, nn.Parameter(along(value, spread)))
    return radii

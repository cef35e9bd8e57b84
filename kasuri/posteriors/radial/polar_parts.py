"""Parts of radial posteriors: rows and columns with fewer entries, as radii and directions again.

Some components of a direction are not von Mises-Fisher distributed, nor is their length that of the whole.
The posterior of a part has the means of the old one, the second moment of all its rows or columns together
(of each, if each has a concentration of its own), and the spreads of their radii; it is not the marginal.
"""

import copy

import torch
from torch import Tensor, nn

from kasuri.posteriors.parts import along, entries
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.directions import Directions
from kasuri.posteriors.radial.polar import Polar, Side, to_matrix, to_vectors
from kasuri.posteriors.radial.radii import Radii

SHORTEST = 1e-12  # of what is left of a unit vector: next to nothing, but with a direction


@torch.no_grad()
def polar_part(
    polar: Polar, side: Side, rows: Tensor, columns: Tensor, positions: int, longer: float = 1.0
) -> Polar:
    """The vectors of some rows and columns of a matrix, with the components that are left.

    Args:
        polar: the vectors.
        side: of the matrix.
        rows: (*blocks, n') that are left.
        columns: (*blocks, m') that are left.
        positions: neighbouring columns that are one input.
        longer: what the means are to be multiplied by.
    """
    index = rows if side == "rows" else inputs_left(columns, positions)
    old = polar.directions
    new: Polar = copy.deepcopy(polar)
    some_radii(new.local, index)
    kappa = old.concentration()
    own = kappa.shape[-1] > 1
    kappa = along(kappa, index) if own else kappa
    means = to_vectors(
        entries(to_matrix(old.mode(), side, positions), rows, columns), side, positions
    )
    means = means.double()
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
            first, second = ((weights * part).sum(-1, keepdim=True) for part in (first, second))
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


def inputs_left(columns: Tensor, positions: int) -> Tensor:
    """The inputs to which these columns belong."""
    return columns[..., ::positions] // positions


def some_radii(radii: Radii, index: Tensor) -> Radii:
    """The same object with these radii (*blocks, n') alone."""
    for name, value in list(radii.named_parameters()):
        spread = index if value.dim() == index.dim() else index.unsqueeze(-2)
        setattr(radii, name, nn.Parameter(along(value, spread)))
    return radii

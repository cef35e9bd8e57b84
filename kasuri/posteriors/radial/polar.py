"""Vectors as radius times direction, and the rows or columns of a matrix as such vectors.

Directions are unit vectors (*blocks, n, d), each von Mises-Fisher around its own mean. Parameters: d numbers
for every mean direction (their length means nothing) and one concentration per block, or one per vector.
"""

import copy
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kasuri.numerics.safe import LOG_CEILING, held
from kasuri.posteriors.parts import along, entries
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.radii import Radii, joint_log_entropy
from kasuri.posteriors.radial.vmf_sampling import sample

Side = Literal["rows", "columns"]
SIDES: tuple[Side, Side] = ("rows", "columns")

# Radii are held below e^10, E z² / (E z)² below e^12: the second moment of a product of two
# matrices of such radii, and its gradients, then fit float32
LOG_TOP, GROWTH_TOP = 10.0, 12.0
SHORTEST = 1e-12  # of what is left of a unit vector: next to nothing, but with a direction


def to_vectors(matrix: Tensor, side: Side, positions: int) -> Tensor:
    """The rows (..., out, in) of a matrix, or its columns as (..., in/positions, out · positions).

    It is its own inverse: given such vectors it returns the matrix. `positions` are the neighbouring columns
    that belong to one input, those of a kernel.
    """
    if side == "rows":
        return matrix
    split = matrix.unflatten(-1, (-1, positions))
    return split.transpose(-3, -2).flatten(-2)


def along_columns(values: Tensor, positions: int) -> Tensor:
    """Values of inputs (..., in/positions) for the columns of a matrix, (..., 1, in)."""
    return values.repeat_interleave(positions, -1).unsqueeze(-2)


def mean_radius(*radii: Radii) -> Tensor:
    """Mean of the product of independent radii, which broadcast, in float64."""
    return held(reduce(torch.add, [radius.law().log_moment(1) for radius in radii]), LOG_TOP).exp()


def radius_moments(*radii: Radii) -> tuple[Tensor, Tensor]:
    """(mean, variance) of the product of independent radii, which broadcast, in float64."""
    mean = mean_radius(*radii)
    growth = reduce(torch.add, [radius.law().growth() for radius in radii])
    return mean, mean.square() * torch.expm1(held(growth, GROWTH_TOP))


def draw_radius(*radii: Radii) -> Tensor:
    """A draw of the product of independent radii, in float64."""
    return held(reduce(torch.add, [radius.rsample_log() for radius in radii]), LOG_TOP).exp()


def product_moments(a: Sequence[Tensor], b: Sequence[Tensor]) -> Sequence[Tensor]:
    """(mean, variance) of a product of independent numbers with these, without cancellation."""
    (mean_a, var_a), (mean_b, var_b) = a, b
    return mean_a * mean_b, var_a * (mean_b.square() + var_b) + mean_a.square() * var_b


def concentration_at(d: int, gap: float) -> float:
    """The κ at which the most likely cosine to the mean direction is 1 - gap; below d = 4 that of d = 4."""
    return (max(4, d) - 3) * (1 - gap) / (1 - (1 - gap) ** 2)


class Directions(nn.Module):
    """vMF(normalize(loc), κ) with κ = exp(log_concentration).

    `loc` is (*blocks, n, d) of any lengths, κ (*blocks, 1) or (*blocks, n).
    """

    def __init__(self, loc: Tensor, concentration: Tensor) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc.contiguous())
        self.log_concentration = nn.Parameter(concentration.double().log().clamp(max=LOG_CEILING))

    @property
    def dimension(self) -> int:
        """Of the space around the spheres, d."""
        return self.loc.shape[-1]

    def mode(self) -> Tensor:
        """The mean directions, (*blocks, n, d)."""
        return F.normalize(self.loc, dim=-1)

    def concentration(self) -> Tensor:
        """κ in float64, (*blocks, 1) or (*blocks, n)."""
        return held(self.log_concentration.double(), LOG_CEILING).exp()

    def resultant(self) -> Tensor:
        """A(κ), the length of E[x], in float64, (*blocks, 1) or (*blocks, n)."""
        return vmf.terms(self.concentration(), self.dimension).resultant

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every component, (*blocks, n, d): A' along the mean, A/κ across."""
        mode, of = self.mode(), vmf.terms(self.concentration().unsqueeze(-1), self.dimension)
        along_mean, across, resultant = (
            part.to(mode.dtype) for part in (of.slope, of.spread, of.resultant)
        )
        squares = mode.square()
        return resultant * mode, along_mean * squares + across * (1 - squares).clamp(min=0)

    def entropy(self) -> Tensor:
        """With respect to the surface of the sphere, in float64, (*blocks, n)."""
        return vmf.entropy(self.concentration(), self.dimension).expand(self.loc.shape[:-1])

    def kl(self, concentration: float) -> Tensor:
        """KL to vMF priors of the same mean directions, in float64, (*blocks, n)."""
        kappa = self.concentration()
        kl = vmf.kl(kappa, kappa.new_tensor(concentration), self.dimension)
        return kl.expand(self.loc.shape[:-1])


class Polar(nn.Module):
    """Vectors s z_i ξ_i, (*blocks, n, d): directions ξ, radii z of their own, a radius s of the layer."""

    def __init__(self, directions: Directions, local: Radii, layer: Radii) -> None:
        super().__init__()
        self.directions, self.local, self.layer = directions, local, layer

    def radii(self) -> tuple[Radii, Radii]:
        return self.local, self.layer

    def rsample(self) -> Tensor:
        radius = draw_radius(*self.radii()).unsqueeze(-1)
        directions = sample(self.directions.mode(), self.directions.concentration())
        return radius.to(directions.dtype) * directions

    def mean(self) -> Tensor:
        """E[s] E[z_i] A(κ) μ_i."""
        loc = self.directions.loc
        length = mean_radius(*self.radii()) * self.directions.resultant()
        norm = torch.linalg.vector_norm(loc, dim=-1).clamp(min=SHORTEST)
        return loc * (length.to(loc.dtype) / norm).unsqueeze(-1)

    def moments(self) -> Sequence[Tensor]:
        """(mean, variance) of every component."""
        dtype = self.directions.loc.dtype
        mean, variance = (m.to(dtype).unsqueeze(-1) for m in radius_moments(*self.radii()))
        return product_moments((mean, variance), self.directions.moments())

    def squares(self) -> Tensor:
        """E‖s z_i ξ_i‖² in float64, (*blocks, n)."""
        mean, variance = radius_moments(*self.radii())
        return mean.square() + variance

    def entropy(self) -> Tensor:
        """Differential entropy of all vectors of all blocks, in float64.

        With ρ_i = log(s z_i), dw_i = e^{dρ_i} dρ_i dξ_i: H = H(ρ) + d Σ E ρ_i + Σ H(ξ_i).
        """
        local, common = self.local.law(), self.layer.law()
        logs = (local.loc + common.loc).sum()
        radial = joint_log_entropy(local, common).sum()
        return radial + self.directions.dimension * logs + self.directions.entropy().sum()

    @torch.no_grad()
    def part(self, side: Side, rows: Tensor, columns: Tensor, positions: int) -> "Polar":
        """The vectors of some rows (*blocks, n') and columns (*blocks, m') of a matrix, radial again.

        Some components of a direction are not von Mises-Fisher distributed, nor is their length that of the
        whole. The part has the means of the old vectors, the second moment of all of them together (of each,
        if each has a concentration of its own), and the spreads of their radii; it is not the marginal.
        """
        index = rows if side == "rows" else inputs_left(columns, positions)
        old = self.directions
        kappa = old.concentration()
        own = kappa.shape[-1] > 1
        kappa = along(kappa, index) if own else kappa
        modes = entries(to_vectors(old.mode(), side, positions), rows, columns)
        means = to_vectors(modes, side, positions).double()
        before, after = old.dimension, means.shape[-1]
        factor = torch.ones_like(kappa)
        if after < before:  # else whole vectors, of the same law
            length = torch.linalg.vector_norm(means, dim=-1).clamp(min=SHORTEST)
            means = means / length.unsqueeze(-1)
            of = vmf.terms(kappa, before)
            # E‖x‖² of what is left of a unit vector x, and the square of its mean
            beyond = of.slope + of.resultant.square() - of.spread
            second = beyond * length.square() + of.spread * after
            first = (of.resultant * length).square()
            if not own:  # one concentration for all: in total
                weights = along(self.squares(), index)
                first, second = ((weights * m).sum(-1, keepdim=True) for m in (first, second))
            ratio = (first / second).sqrt().clamp(max=1 - 1e-15)
            kappa = vmf.inverse_mean_resultant(ratio, after)
            factor = length * of.resultant / vmf.terms(kappa, after).resultant
        local = self.local.some(index)
        local.loc.add_(factor.log())
        directions = Directions(means, kappa).to(old.loc.dtype)
        return Polar(directions, local, copy.deepcopy(self.layer))


def inputs_left(columns: Tensor, positions: int) -> Tensor:
    """The inputs to which these columns belong."""
    return columns[..., ::positions] // positions

"""Vectors as radius times direction, and the rows or columns of a matrix as such vectors.

Directions are unit vectors (*blocks, n, d), each von Mises-Fisher around its own mean. Parameters: d numbers
for every mean direction (their length means nothing) and one concentration per block, or one per vector.
"""

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kasuri.numerics.safe import LOG_CEILING, held
from kasuri.posteriors.parts import along, entries
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.radii import LOG_TOP, LogNormal, Radii, joint_log_entropy
from kasuri.posteriors.radial.vmf_sampling import sample

Side = Literal["rows", "columns"]
Moments = tuple[Tensor, Tensor]  # mean and variance

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


def product_moments(a: Moments, b: Moments) -> Moments:
    """Those of a product of independent numbers with these, without cancellation."""
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

    def moments(self) -> Moments:
        """Of every component, (*blocks, n, d): the variance is A' along the mean, A/κ across."""
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
    """Vectors s z_i ξ_i, (*blocks, n, d): directions ξ, radii z of their own, a radius s of the layer.

    Without directions and s they are lengths z_i alone, (*blocks, n, 1): factors of whole rows or columns.
    """

    def __init__(
        self, local: Radii, layer: Radii | None = None, directions: Directions | None = None
    ) -> None:
        super().__init__()
        self.directions, self.local, self.layer = directions, local, layer

    def radius(self) -> LogNormal:
        """The law of s z_i, (*blocks, n)."""
        local = self.local.law()
        return local if self.layer is None else local.times(self.layer.law())

    def rsample(self) -> Tensor:
        logs = self.local.rsample_log()
        if self.layer is not None:
            logs = logs + self.layer.rsample_log()
        radius = held(logs, LOG_TOP).exp().unsqueeze(-1).to(self.local.loc.dtype)
        if self.directions is None:
            return radius
        return radius * sample(self.directions.mode(), self.directions.concentration())

    def mean(self) -> Tensor:
        """E[s] E[z_i] A(κ) μ_i."""
        length = self.radius().mean()
        if self.directions is None:
            return length.unsqueeze(-1).to(self.local.loc.dtype)
        loc, kappa = self.directions.loc, self.directions.concentration()
        length = length * vmf.terms(kappa, self.directions.dimension).resultant
        norm = torch.linalg.vector_norm(loc, dim=-1).clamp(min=SHORTEST)
        return loc * (length.to(loc.dtype) / norm).unsqueeze(-1)

    def moments(self) -> Moments:
        """Of every component."""
        radius, dtype = self.radius(), self.local.loc.dtype
        mean, variance = (m.to(dtype).unsqueeze(-1) for m in (radius.mean(), radius.variance()))
        if self.directions is None:
            return mean, variance
        return product_moments((mean, variance), self.directions.moments())

    def squares(self) -> Tensor:
        """E‖s z_i ξ_i‖² in float64, (*blocks, n)."""
        radius = self.radius()
        return radius.mean().square() + radius.variance()

    def entropy(self) -> Tensor:
        """Differential entropy of all vectors of all blocks, in float64; of vectors with directions.

        With ρ_i = log(s z_i), dw_i = e^{dρ_i} dρ_i dξ_i: H = H(ρ) + d Σ E ρ_i + Σ H(ξ_i).
        """
        assert self.layer is not None
        assert self.directions is not None
        radial = joint_log_entropy(self.local.law(), self.layer.law()).sum()
        logs = self.radius().loc.sum()
        return radial + self.directions.dimension * logs + self.directions.entropy().sum()

    @torch.no_grad()
    def part(self, side: Side, rows: Tensor, columns: Tensor, positions: int) -> "Polar":
        """The vectors of some rows (*blocks, n') and columns (*blocks, m') of a matrix, radial again.

        Some components of a direction are not von Mises-Fisher distributed, nor is their length that of the
        whole. The part has the means of the old vectors, the second moment of all of them together (of each,
        if each has a concentration of its own), and the spreads of their radii; it is not the marginal.
        """
        index = rows if side == "rows" else columns[..., ::positions] // positions
        local, old = self.local.some(index), self.directions
        if old is None:
            return Polar(local)

        def left(vectors: Tensor) -> Tensor:
            matrix = entries(to_vectors(vectors, side, positions), rows, columns)
            return to_vectors(matrix, side, positions).double()

        kappa, modes = old.concentration(), left(old.mode())
        own, after = kappa.shape[-1] > 1, modes.shape[-1]
        kappa = along(kappa, index) if own else kappa
        if after < old.dimension:  # else whole vectors, of the same law
            means, variances = map(left, old.moments())
            length = torch.linalg.vector_norm(means, dim=-1).clamp(min=SHORTEST)
            first, second = length.square(), length.square() + variances.sum(-1)
            if not own:  # one concentration for all: in total
                weights = along(self.squares(), index)
                first, second = ((weights * m).sum(-1, keepdim=True) for m in (first, second))
            ratio = (first / second).sqrt().clamp(max=1 - 1e-15)
            kappa, modes = vmf.inverse_mean_resultant(ratio, after), means / length.unsqueeze(-1)
            local.loc.add_((length / vmf.terms(kappa, after).resultant).log())
        directions = Directions(modes, kappa).to(old.loc.dtype)
        return Polar(local, copy.deepcopy(self.layer), directions)

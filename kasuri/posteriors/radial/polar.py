"""Vectors as radius times direction, and the rows or columns of a matrix as such vectors."""

from typing import Literal

import torch
from torch import Tensor, nn

from kasuri.numerics.safe import held
from kasuri.posteriors.radial.directions import Directions
from kasuri.posteriors.radial.radii import Radii, joint_log_entropy
from kasuri.posteriors.radial.vmf_sampling import sample_scaled

Side = Literal["rows", "columns"]

# Radii are held below e^10, E z² / (E z)² below e^12: the second moment of a product of two
# matrices of such radii, and its gradients, then fit float32
LOG_TOP, GROWTH_TOP = 10.0, 12.0


def to_vectors(matrix: Tensor, side: Side, positions: int) -> Tensor:
    """The rows (..., out, in) of a matrix, or its columns as (..., in/positions, out · positions).

    Args:
        matrix: (..., out, in).
        side: which.
        positions: neighbouring columns that belong to one input (those of a kernel).

    Examples:
        >>> to_vectors(torch.arange(8).view(2, 4), "columns", 2)
        tensor([[0, 1, 4, 5],
                [2, 3, 6, 7]])
    """
    if side == "rows":
        return matrix
    if positions == 1:
        return matrix.mT
    outs, ins = matrix.shape[-2:]
    split = matrix.reshape(*matrix.shape[:-1], ins // positions, positions)
    return split.transpose(-3, -2).reshape(*matrix.shape[:-2], ins // positions, outs * positions)


def to_matrix(vectors: Tensor, side: Side, positions: int) -> Tensor:
    """The matrix (..., out, in) with these rows or columns."""
    if side == "rows":
        return vectors
    if positions == 1:
        return vectors.mT
    ins, size = vectors.shape[-2:]
    split = vectors.reshape(*vectors.shape[:-1], size // positions, positions)
    return split.transpose(-3, -2).reshape(*vectors.shape[:-2], size // positions, ins * positions)


def along_columns(values: Tensor, positions: int) -> Tensor:
    """Values of inputs (..., in/positions) for the columns of a matrix, (..., 1, in)."""
    spread = values.unsqueeze(-1).expand(*values.shape, positions)
    return spread.reshape(*values.shape[:-1], 1, -1)


def radius_moments(*radii: Radii) -> tuple[Tensor, Tensor]:
    """(mean, variance) of the product of independent radii, which broadcast, in float64."""
    laws = [one.law() for one in radii]
    log_mean, growth = laws[0].log_moment(1), laws[0].growth()
    for law in laws[1:]:
        log_mean, growth = log_mean + law.log_moment(1), growth + law.growth()
    mean = held(log_mean, LOG_TOP).exp()
    return mean, mean.square() * torch.expm1(held(growth, GROWTH_TOP))


def draw_radius(*radii: Radii) -> Tensor:
    """A draw of the product of independent radii, in float64."""
    log = radii[0].rsample_log()
    for one in radii[1:]:
        log = log + one.rsample_log()
    return held(log, LOG_TOP).exp()


def product_moments(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(mean, variance) of a product of independent numbers with these, without cancellation."""
    (mean_a, var_a), (mean_b, var_b) = a, b
    return mean_a * mean_b, var_a * (mean_b.square() + var_b) + mean_a.square() * var_b


class Polar(nn.Module):
    """Vectors s z_i ξ_i, (*blocks, n, d): directions ξ, radii z of their own, a common radius s.

    Args:
        directions: q(ξ).
        local: q(z), one for every vector.
        layer: q(s), one for all vectors of a block.
    """

    def __init__(self, directions: Directions, local: Radii, layer: Radii) -> None:
        super().__init__()
        self.directions = directions
        self.local = local
        self.layer = layer

    def radii(self) -> tuple[Radii, Radii]:
        """Local and common ones."""
        return self.local, self.layer

    def rsample(self) -> Tensor:
        """A draw of the vectors."""
        radius = draw_radius(*self.radii())
        return sample_scaled(self.directions.loc, self.directions.concentration(), radius)

    def mean(self) -> Tensor:
        """E[s] E[z_i] A(κ) μ_i."""
        length = radius_moments(*self.radii())[0] * self.directions.resultant()
        mode = self.directions.mode()
        return length.to(mode.dtype).unsqueeze(-1) * mode

    def moments(self) -> tuple[Tensor, Tensor]:
        """(mean, variance) of every component."""
        mode = self.directions.mode()
        resultant = self.directions.resultant().to(mode.dtype).unsqueeze(-1)
        mean, variance = (m.to(mode.dtype).unsqueeze(-1) for m in radius_moments(*self.radii()))
        return product_moments((mean, variance), (resultant * mode, self.directions.variance()))

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

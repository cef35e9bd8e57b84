"""Posteriors of directions: unit vectors (*blocks, n, d), each von Mises-Fisher around its own mean.

Parameters: d numbers for every mean direction (their length means nothing) and one concentration per
block, or one per vector.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kasuri.numerics.safe import LOG_CEILING, held, soft_min, soft_min_inverse
from kasuri.posteriors.radial import von_mises_fisher as vmf


def concentration_at(d: int, gap: float) -> float:
    """The κ at which the most likely cosine to the mean direction is 1 - gap, in d ≥ 4 dimensions.

    In lower dimensions that of d = 4.

    Examples:
        >>> concentration_at(784, 0.5)
        520.6666666666666
    """
    return (max(4, d) - 3) * (1 - gap) / (1 - (1 - gap) ** 2)


class Directions(nn.Module):
    """vMF(normalize(loc), κ) with κ = exp(log_concentration), softly bounded if wanted.

    Args:
        loc: (*blocks, n, d) of any lengths.
        concentration: (*blocks, 1) or (*blocks, n) at the start.
        bound: upper bound of κ for the whole of training.
    """

    def __init__(self, loc: Tensor, concentration: Tensor, bound: float | None = None) -> None:
        super().__init__()
        concentration = concentration.double()
        if bound is not None:
            concentration = soft_min_inverse(concentration.clamp(max=0.99 * bound), bound)
        self.loc = nn.Parameter(loc.contiguous())
        self.log_concentration = nn.Parameter(concentration.log().clamp(max=LOG_CEILING))
        self.bound = bound

    @property
    def dimension(self) -> int:
        """Of the space around the spheres, d."""
        return self.loc.shape[-1]

    def mode(self) -> Tensor:
        """The mean directions, (*blocks, n, d)."""
        return F.normalize(self.loc, dim=-1)

    def concentration(self) -> Tensor:
        """κ in float64, (*blocks, 1) or (*blocks, n)."""
        kappa = held(self.log_concentration.double(), LOG_CEILING).exp()
        return kappa if self.bound is None else soft_min(kappa, self.bound)

    def resultant(self) -> Tensor:
        """A(κ), the length of E[x], in float64, (*blocks, 1) or (*blocks, n)."""
        return vmf.mean_resultant(self.concentration(), self.dimension)

    def variance(self) -> Tensor:
        """Of every component, (*blocks, n, d): A' along the mean, A/κ across."""
        kappa, squares = self.concentration().unsqueeze(-1), self.mode().square()
        along = vmf.mean_resultant_slope(kappa, self.dimension).to(squares.dtype)
        across = vmf.tangent_variance(kappa, self.dimension).to(squares.dtype)
        return along * squares + across * (1 - squares).clamp(min=0)

    def entropy(self) -> Tensor:
        """With respect to the surface of the sphere, in float64, (*blocks, n)."""
        kappa = self.concentration()
        apart = vmf.divergence(kappa, self.dimension)
        return self._for_each(vmf.log_surface(self.dimension) - apart)

    def kl(self, concentration: float, mean: Tensor | None = None) -> Tensor:
        """KL to vMF priors, in float64, (*blocks, n).

        Args:
            concentration: of the priors; 0 for the uniform distribution.
            mean: their mean directions (*blocks, n, d); by default those of the posteriors.
        """
        kappa, d = self.concentration(), self.dimension
        if mean is None:
            return self._for_each(vmf.divergence(kappa, d, concentration))
        gap = (self.mode().double() - mean.double()).square().sum(-1) / 2
        return vmf.kl(kappa, torch.full_like(kappa, concentration), gap, d)

    def _for_each(self, values: Tensor) -> Tensor:
        return values.expand(self.loc.shape[:-1])

    def extra_repr(self) -> str:
        """Number and dimension."""
        return f"{self.loc.shape[-2]} in {self.dimension} dimensions"

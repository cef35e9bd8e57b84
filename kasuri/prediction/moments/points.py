"""Fixed points that stand for the normal outputs of a network, and make a prediction like draws do."""

import functools
import math

import torch
from torch import Tensor

from kasuri.numerics.gaussian_moments import factor

POINTS = 256


@functools.lru_cache(maxsize=32)
def normal_points(outputs: int) -> Tensor:
    """Points (count, outputs) spread like a standard normal, in float64.

    Scrambled Sobol points and their negatives, so that odd moments vanish, stretched so that their covariance
    is exactly the identity (where there are enough of them).

    Examples:
        >>> points = normal_points(3)
        >>> torch.allclose(points.T @ points / len(points), torch.eye(3, dtype=torch.float64))
        True
    """
    half = POINTS // 2
    uniform = torch.quasirandom.SobolEngine(outputs, scramble=True, seed=0).draw(
        half, dtype=torch.float64
    )
    inside = uniform.clamp(1 / (4 * half), 1 - 1 / (4 * half))
    points = math.sqrt(2) * torch.erfinv(2 * inside - 1)
    points = torch.cat([points, -points])
    if not _enough(outputs):
        return points
    lower = torch.linalg.cholesky(points.T @ points / POINTS)
    return torch.linalg.solve_triangular(lower, points.T, upper=False).T


def _enough(outputs: int) -> bool:
    """Whether points can be stretched to have the identity as covariance, and stay spread like a normal."""
    return outputs <= POINTS // 8


def spread_out(mean: Tensor, covariance: Tensor, points: Tensor) -> Tensor:
    """Outputs (points, batch, ...) that stand for a normal with this mean and covariance.

    Args:
        mean: (batch, ...), O numbers for each example.
        covariance: (batch, O, O).
        points: (points, O).
    """
    shape, points = mean.shape[1:], points.to(mean)
    steps = (points @ factor(covariance).mT).transpose(0, 1)  # (points, batch, O)
    if not _enough(points.shape[1]):  # their own covariance is not quite the identity
        made = steps.square().mean(0).clamp(min=torch.finfo(steps.dtype).tiny)
        steps = steps * (covariance.diagonal(dim1=-2, dim2=-1) / made).sqrt()
    return mean.unsqueeze(0) + steps.reshape(points.shape[0], -1, *shape)

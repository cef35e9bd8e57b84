"""Real targets with normal noise whose size depends on the input: the network predicts it.

y ~ N(μ, σ²), where the network's 2D outputs are D means and D raw scales. Nothing is approximate.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributions as td

from kasuri.checks import is_number
from kasuri.likelihoods.base import Likelihood, per_example, rmse, same_shape
from kasuri.likelihoods.predictions import Draws, RealPrediction


class HeteroscedasticGaussian(Likelihood):
    """Real targets with normal noise of predicted size: f = (means, raw scales) along the last dimension.

    f has 2D outputs for D targets: f[..., :D] are means μ, f[..., D:] set the scales

    σ = min_scale + softplus(raw + c), with c such that σ = 1 at raw = 0.

    Softplus grows no faster than its input, so a scale does not explode far away from the data as an
    exponential does; `min_scale` keeps the density of a target that is met exactly bounded.

    Args:
        min_scale: the smallest standard deviation, in units of the targets (standardised ones: of 1).

    Examples:
        >>> HeteroscedasticGaussian().log_prob(torch.zeros(1, 2), torch.zeros(1, 1))  # N(0; 0, 1)
        tensor([-0.9189])
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        super().__init__()
        if not (is_number(min_scale) and 0 < min_scale < 1):
            raise ValueError(
                f"HeteroscedasticGaussian(min_scale={min_scale!r}): a standard deviation above 0 and "
                "below 1, where scales start; standardise the targets and write e.g. min_scale=0.001"
            )
        self.min_scale = min_scale
        self._shift = math.log(math.expm1(1 - min_scale))

    def parts(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """(means, standard deviations) of outputs f, each with half its last dimension."""
        if f.dim() < 2 or f.shape[-1] % 2:
            raise ValueError(
                f"HeteroscedasticGaussian: outputs of shape {tuple(f.shape)}; D targets want 2D outputs, D "
                "means and D scales along the last dimension, e.g. nn.Linear(50, 2) for one target"
            )
        mean, raw = f.chunk(2, -1)
        return mean, self.min_scale + F.softplus(raw + self._shift)

    def forward(self, f: Tensor) -> td.Normal:
        """Normal with these means and scales."""
        return td.Normal(*self.parts(f))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Normal log-density, summed over targets."""
        mean, scale = self.parts(f)
        same_shape("HeteroscedasticGaussian (its means)", mean, y)
        z = (y - mean) / scale
        return -per_example(0.5 * z.square() + scale.log() + 0.5 * math.log(2 * math.pi))

    def predictive(self, fs: Tensor) -> td.MixtureSameFamily:
        """Equal mixture of one normal per draw, each with its own scale."""
        mean, scale = (part.movedim(0, -1) for part in self.parts(fs))
        weights = td.Categorical(logits=torch.zeros_like(mean))
        return td.MixtureSameFamily(weights, td.Normal(mean, scale))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor, None]:
        """Means and variances."""
        mean, scale = self.parts(f)
        return mean, scale.square(), None

    def summarise(self, draws: Draws, seeds: Sequence[int]) -> RealPrediction:
        """Real outputs, every draw with its own noise."""
        return RealPrediction(draws, seeds, own_noise=True)

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """Root mean squared error."""
        return rmse(mean, y)

    def options(self) -> dict[str, Any]:
        """The smallest scale."""
        return {"min_scale": self.min_scale}

    def extra_repr(self) -> str:
        """The smallest scale."""
        return f"min_scale={self.min_scale:g}"

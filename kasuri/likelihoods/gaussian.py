"""Real targets with normal noise of one size, known or learned."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as td

from kasuri.checks import is_number
from kasuri.likelihoods.base import Likelihood, per_example, rmse, same_shape
from kasuri.likelihoods.predictions import Draws, RealPrediction


class Gaussian(Likelihood):
    """Real targets with normal noise, y ~ N(f, scale²).

    Args:
        scale: the noise's standard deviation; None (the default) learns it, starting at 1: hand
            `elbo.parameters()` to the optimiser.

    Examples:
        >>> Gaussian(0.1).log_prob(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor([2.7673])
    """

    log_scale: Tensor | float

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        if scale is not None and not (is_number(scale) and 0 < scale < math.inf):
            raise ValueError(
                f"Gaussian(scale={scale!r}): a standard deviation is a positive number; leave it out to have "
                "it learned"
            )
        self.learned = scale is None
        self._given = scale
        self.log_scale = nn.Parameter(torch.zeros(())) if scale is None else math.log(scale)

    @property
    def scale(self) -> Tensor:
        """Standard deviation of the noise."""
        return torch.as_tensor(self.log_scale).exp()

    def forward(self, f: Tensor) -> td.Normal:
        """Normal around f."""
        return td.Normal(f, self.scale.to(f).expand_as(f))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Normal log-density, summed over outputs."""
        same_shape("Gaussian", f, y)
        log_scale = torch.as_tensor(self.log_scale, dtype=f.dtype, device=f.device)
        z = (y - f) * (-log_scale).exp()
        return -per_example(0.5 * z.square() + log_scale + 0.5 * math.log(2 * math.pi))

    def predictive(self, fs: Tensor) -> td.MixtureSameFamily:
        """Equal mixture of one normal per draw."""
        components = fs.movedim(0, -1)
        weights = td.Categorical(logits=torch.zeros_like(components))
        return td.MixtureSameFamily(weights, self(components))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor, None]:
        """F and the noise variance."""
        return f, self.scale.detach().to(f).square().expand_as(f), None

    def summarise(self, draws: Draws, seeds: Sequence[int]) -> RealPrediction:
        """Real outputs with noise."""
        return RealPrediction(draws, seeds)

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """Root mean squared error."""
        return rmse(mean, y)

    def options(self) -> dict[str, Any]:
        """The scale, None if learned (the learned value is in the state)."""
        return {"scale": None if self._given is None else float(self._given)}

    def extra_repr(self) -> str:
        """The scale, and whether it is learned."""
        return f"{float(self.scale.detach()):g}" + (", learned" if self.learned else "")

"""Real targets with normal noise: of one size, known or learned, or of a size that the network predicts."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributions as td

from kasuri.checks import between
from kasuri.likelihoods.base import Likelihood, per_example, same_shape


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
        if scale is not None:
            between(0, math.inf, scale=scale)
        self.learned = scale is None
        self._given = scale
        self.log_scale = nn.Parameter(torch.zeros(())) if scale is None else math.log(scale)

    @property
    def scale(self) -> Tensor:
        return torch.as_tensor(self.log_scale).exp()

    def forward(self, f: Tensor) -> td.Normal:
        return td.Normal(f, self.scale.to(f).expand_as(f))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        same_shape("Gaussian", f, y)
        log_scale = torch.as_tensor(self.log_scale, dtype=f.dtype, device=f.device)
        z = (y - f) * (-log_scale).exp()
        return -per_example(0.5 * z.square() + log_scale + 0.5 * math.log(2 * math.pi))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor, None]:
        return f, self.scale.detach().to(f).square().expand_as(f), None

    def options(self) -> dict[str, Any]:
        """The scale, None if learned (the learned value is in the state)."""
        return {"scale": None if self._given is None else float(self._given)}

    def extra_repr(self) -> str:
        return f"{float(self.scale.detach()):g}" + (", learned" if self.learned else "")


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
        between(0, 1, min_scale=min_scale)  # scales start at 1
        self.min_scale = min_scale
        self._shift = math.log(math.expm1(1 - min_scale))

    def parts(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """(means, standard deviations) of outputs f, each with half its last dimension."""
        if f.dim() < 2 or f.shape[-1] % 2:
            raise ValueError(
                f"HeteroscedasticGaussian: outputs of shape {tuple(f.shape)}; D targets need 2D outputs, D "
                "means and D scales along the last dimension, e.g. nn.Linear(50, 2) for one target"
            )
        mean, raw = f.chunk(2, -1)
        return mean, self.min_scale + F.softplus(raw + self._shift)

    def forward(self, f: Tensor) -> td.Normal:
        return td.Normal(*self.parts(f))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        mean, scale = self.parts(f)
        same_shape("HeteroscedasticGaussian (its means)", mean, y)
        z = (y - mean) / scale
        return -per_example(0.5 * z.square() + scale.log() + 0.5 * math.log(2 * math.pi))

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, scale = self.parts(f)
        return mean, scale.square(), None

    def extra_repr(self) -> str:
        return f"min_scale={self.min_scale:g}"

"""Mean-field normal: W_ij ~ N(μ_ij, σ_ij²), every standard deviation its own parameter.

Parameters: 2 per weight. Exact: sampling, entropy, KL to any prior whose expected log-density is
exact, local reparameterisation of linear layers, flipout. Approximate: local reparameterisation
of convolutions keeps the marginals of the outputs, not their correlation across positions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.numerics.safe import (
    LOG_CEILING,
    bounded_logs,
    capped_exp,
    normal_sums,
    soft_min,
    sum_squares,
    unbounded_logs,
)
from kasuri.numerics.sampling import sample_normal
from kasuri.posteriors.base import Elementwise, Family, bounded_move
from kasuri.posteriors.parts import entries


@dataclass(frozen=True, kw_only=True)
class MeanField(Family):
    """Independent normal weights with free standard deviations.

    The initial σ is log-normal with mean exactly `scale` and coefficient of variation `noise`.

    Examples:
        >>> q = MeanField(scale=0.05)(torch.zeros(300, 200))
        >>> q.scale.mean()
        tensor(0.0500, grad_fn=<MeanBackward0>)
    """

    def __call__(self, weight: Tensor) -> "MeanFieldPosterior":
        spread = math.sqrt(math.log1p(self.noise**2))
        noise = torch.randn_like(weight, requires_grad=False)
        scale = (noise * spread - spread**2 / 2).exp() * self.scale
        logs = unbounded_logs(scale.log(), self.max_scale)
        return MeanFieldPosterior(self.initial_mean(weight), logs, self.max_scale)


class MeanFieldPosterior(Elementwise):
    """N(loc, scale²) with scale = exp(log_scale), softly bounded by `max_scale` if given."""

    def __init__(self, loc: Tensor, log_scale: Tensor, max_scale: float | None = None) -> None:
        super().__init__()
        self.loc = nn.Parameter(loc)
        self.log_scale = nn.Parameter(log_scale)
        self.max_scale = max_scale

    @property
    def scale(self) -> Tensor:
        scale = capped_exp(self.log_scale)
        return scale if self.max_scale is None else soft_min(scale, self.max_scale)

    def rsample(self) -> Tensor:
        if self.max_scale is None:
            return sample_normal(self.loc, self.log_scale)
        return super().rsample()

    def sums(self) -> tuple[Tensor, Tensor]:
        """(Σ log σ, Σ loc² + Σ σ²), from the raw parameter: finite where σ itself underflows."""
        if self.max_scale is None:
            return normal_sums(self.loc, self.log_scale)
        logs = bounded_logs(self.log_scale, LOG_CEILING, self.max_scale)
        squares = sum_squares(self.loc) + sum_squares(self.scale)
        return logs.sum(), squares

    def natural_step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """-g/2 for log σ, whose Fisher information is 2."""
        move = gradients["log_scale"] * -0.5
        if self.max_scale is not None:  # log σ moves by less than log_scale
            move = move / (1 - self.scale / self.max_scale).square()
        return {"log_scale": bounded_move(move)}

    def part(self, rows: Tensor, columns: Tensor | None = None) -> "MeanFieldPosterior":
        """Independent weights stay what they are."""
        loc, log_scale = (entries(p, rows, columns) for p in (self.loc, self.log_scale))
        small = MeanFieldPosterior(loc, log_scale, self.max_scale)
        small.note = self.note
        return small


@dataclass(frozen=True, kw_only=True)
class MatrixFamily(Family):
    """A family for matrices alone; vectors (biases) get a mean-field posterior with the same options."""

    def for_vectors(self) -> MeanField:
        return MeanField(
            scale=self.scale, noise=self.noise, max_scale=self.max_scale, mean=self.mean
        )

    def require_matrix(self, weight: Tensor) -> None:
        if weight.dim() < 2:
            raise ValueError(
                f"{type(self).__name__}() for a tensor of shape {tuple(weight.shape)}: a vector has no rows "
                "and columns; write kasuri.MeanField() for it"
            )


def independent(mean: Tensor, variance: Tensor, note: str = "") -> MeanFieldPosterior:
    """Independent normal weights with these moments."""
    tiny = torch.finfo(variance.dtype).tiny
    posterior = MeanFieldPosterior(mean, 0.5 * variance.clamp(min=tiny).log())
    posterior.note = note
    return posterior

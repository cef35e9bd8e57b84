"""Normal priors N(0, s²): exact for every posterior, from E‖W‖²."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kasuri.checks import between
from kasuri.posteriors.base import LOG_TWO_PI, Posterior
from kasuri.priors.base import Prior


class NormalPrior(Prior, ABC):
    """A prior N(0, s²) whose s is constant within each posterior: all it needs is E‖W‖²."""

    @abstractmethod
    def from_squares(self, posteriors: Sequence[Posterior], squares: Sequence[Tensor]) -> Tensor:
        """E_q[log p], given E‖W‖² of each posterior."""

    def expected_log_prob(self, *posteriors: Posterior) -> Tensor:
        return self.from_squares(posteriors, [q.squared_norm() for q in posteriors])

    def kl(self, *posteriors: Posterior) -> Tensor:
        """As in every prior; entropy and E‖W‖² of a posterior share their work."""
        terms = [q.entropy_and_square() for q in posteriors]
        entropy = _total([entropy for entropy, _ in terms])
        return -(entropy + self.from_squares(posteriors, [square for _, square in terms]))


class Normal(NormalPrior):
    """N(0, scale²) on every weight, with one scale for all of them.

    Args:
        scale: the standard deviation (its initial value, if learned).
        learn: None keeps it fixed. "gradient" makes its logarithm a parameter: hand
            `elbo.parameters()` to the optimiser. "closed form" uses the best value for the
            current posterior at every evaluation, s² = E‖W‖²/n over all weights under this
            prior; `fitted_scale` tells it.

    Examples:
        >>> Normal(0.5).log_prob(torch.zeros(1))
        tensor([-0.2258])
    """

    log_scale: Tensor | float

    def __init__(self, scale: float = 1.0, learn: str | None = None) -> None:
        super().__init__()
        between(0, math.inf, scale=scale)
        if learn not in (None, "gradient", "closed form"):
            raise ValueError(f'Normal(learn={learn!r}): write "gradient", "closed form" or nothing')
        self.learn = learn
        self._given = float(scale)
        self.log_scale = math.log(scale)
        if learn == "gradient":
            self.log_scale = nn.Parameter(torch.tensor(self.log_scale))

    @property
    def scale(self) -> float:
        """The standard deviation (for learn="closed form": the value given at construction)."""
        if isinstance(self.log_scale, Tensor):
            return math.exp(self.log_scale.item())
        return self._given

    def fitted_scale(self, *posteriors: Posterior) -> Tensor:
        """The scale that minimises the KL of these posteriors: √(E‖W‖²/n)."""
        squares = _total([q.squared_norm() for q in posteriors])
        return torch.sqrt(squares / sum(q.numel() for q in posteriors))

    def log_prob(self, weight: Tensor) -> Tensor:
        """Elementwise log N(weight; 0, scale²)."""
        return _log_normal(weight, self.log_scale)

    def from_squares(self, posteriors: Sequence[Posterior], squares: Sequence[Tensor]) -> Tensor:
        """-n (log s + ½ log 2π) - E‖W‖²/2s²."""
        count, square = sum(q.numel() for q in posteriors), _total(squares)
        if self.learn == "closed form":
            return -0.5 * count * (torch.log(square / count) + LOG_TWO_PI + 1)
        return _expected_log_normal(count, square, self.log_scale)

    def extra_repr(self) -> str:
        return f"{self.scale:g}" + (f", learn={self.learn!r}" if self.learn else "")


class HeNormal(NormalPrior):
    """N(0, gain/fan-in) on matrices, N(0, bias_scale²) on vectors.

    Fan-in is the number of inputs of one output: the last side of the weight matrix
    (k_h·k_w·C_in/groups for a convolution).

    Examples:
        >>> HeNormal().scale_for((10, 8))
        0.5
    """

    def __init__(self, gain: float = 2.0, bias_scale: float = 1.0) -> None:
        super().__init__()
        between(0, math.inf, gain=gain, bias_scale=bias_scale)
        self.gain, self.bias_scale = gain, bias_scale

    def scale_for(self, shape: Sequence[int]) -> float:
        """Prior standard deviation of a weight of this shape."""
        return self.bias_scale if len(shape) < 2 else math.sqrt(self.gain / shape[-1])

    def log_prob(self, weight: Tensor) -> Tensor:
        return _log_normal(weight, math.log(self.scale_for(weight.shape)))

    def from_squares(self, posteriors: Sequence[Posterior], squares: Sequence[Tensor]) -> Tensor:
        terms = [
            _expected_log_normal(q.numel(), square, math.log(self.scale_for(q.shape)))
            for q, square in zip(posteriors, squares, strict=True)
        ]
        return _total(terms)

    def extra_repr(self) -> str:
        return f"gain={self.gain:g}, bias_scale={self.bias_scale:g}"


@torch.no_grad()
def normal_precisions(prior: Prior, shape: Sequence[int]) -> Tensor | None:
    """1/s² of weights of this shape under a prior N(0, s²); None if it is another kind of prior.

    A normal log-density falls by 1/(2s²) from 0 to 1 and by four times that from 0 to 2.

    Examples:
        >>> normal_precisions(HeNormal(), (1, 8))
        tensor([[4., 4., 4., 4., 4., 4., 4., 4.]], dtype=torch.float64)
    """
    try:
        logs = [
            prior.log_prob(torch.full(tuple(shape), at, dtype=torch.float64))
            for at in (0.0, 1.0, 2.0)
        ]
    except TypeError:  # a prior that follows the posterior refuses
        return None
    at_0, at_1, at_2 = (value.expand(tuple(shape)) for value in logs)
    if not torch.allclose(at_0 - at_2, 4 * (at_0 - at_1), rtol=1e-6):
        return None
    return 2 * (at_0 - at_1)


@torch.no_grad()
def at_its_scale(prior: Prior, posteriors: Sequence[Posterior]) -> Prior:
    """The prior itself, or a fixed one at the scale that a normal prior fits to these posteriors."""
    if isinstance(prior, Normal) and prior.learn == "closed form":
        return Normal(float(prior.fitted_scale(*posteriors)))
    return prior


def _total(terms: Sequence[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(list(terms)).sum()


def _log_normal(weight: Tensor, log_scale: Tensor | float) -> Tensor:
    return -0.5 * _precision(log_scale) * weight.square() - log_scale - 0.5 * LOG_TWO_PI


def _expected_log_normal(count: int, squares: Tensor, log_scale: Tensor | float) -> Tensor:
    return -0.5 * _precision(log_scale) * squares - count * (log_scale + 0.5 * LOG_TWO_PI)


def _precision(log_scale: Tensor | float) -> Tensor | float:
    return math.exp(-2 * log_scale) if isinstance(log_scale, float) else (-2 * log_scale).exp()

"""Likelihoods: how a network's output f becomes a distribution over targets y.

The first dimension of f and y counts examples; log-probabilities are summed over all others, so
`log_prob` has shape (batch,) and an ELBO over `num_data` examples needs no further scaling.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributions as td

from weft.predictions import (
    ClassPrediction,
    Draws,
    Prediction,
    RealPrediction,
    class_entropy,
)


class Likelihood(nn.Module, ABC):
    """p(y | f)."""

    @abstractmethod
    def forward(self, f: Tensor) -> td.Distribution:
        """The distribution of targets given outputs f (batch, ...)."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y | f) of each example, (batch,)."""

    @abstractmethod
    def predictive(self, fs: Tensor) -> td.Distribution:
        """The mixture over draws fs (S, batch, ...)."""

    @abstractmethod
    def moments(self, f: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Mean, variance and entropy of the targets for one draw f; None where it has no use."""

    @abstractmethod
    def summarise(self, draws: Draws, seeds: Sequence[int]) -> Prediction:
        """The prediction made of accumulated moments."""

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """What people want to see beside the NLL, from predictive means: accuracy, error."""
        return {}

    def options(self) -> dict[str, Any]:
        """Constructor arguments that make an equal likelihood, for saving."""
        return {}


class Categorical(Likelihood):
    """One of C classes; f holds logits, y class numbers.

    Args:
        dim: the dimension of f with the classes: -1 for (batch, C) and (batch, time, C), 1 for
            images of logits (batch, C, height, width).

    Examples:
        >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2]))
        tensor([-1.3863])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, f: Tensor) -> td.Categorical:
        """Categorical over the classes."""
        return td.Categorical(logits=f.movedim(self.dim, -1))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Logits at the target minus their log-sum-exp, summed over positions."""
        classes_first = f.movedim(self.dim, 1) if f.dim() > 2 else f
        expected = (classes_first.shape[0], *classes_first.shape[2:])
        if f.dim() < 2 or y.shape != expected or y.is_floating_point():
            raise ValueError(
                f"Categorical: outputs of shape {tuple(f.shape)} with classes in dimension "
                f"{self.dim} want integer targets of shape {expected}, got {tuple(y.shape)} of "
                f"{y.dtype}; one-hot targets: write y.argmax(-1)"
            )
        return -_per_example(F.cross_entropy(classes_first, y, reduction="none"))

    def predictive(self, fs: Tensor) -> td.Categorical:
        """Probabilities averaged over draws."""
        probs = fs.movedim(self.dim % (fs.dim() - 1) + 1, -1).softmax(-1).mean(0)
        return td.Categorical(probs=probs)

    def moments(self, f: Tensor) -> tuple[Tensor, None, Tensor]:
        """Probabilities and their entropy."""
        probs = f.softmax(self.dim)
        return probs, None, class_entropy(probs, self.dim)

    def summarise(self, draws: Draws, seeds: Sequence[int]) -> ClassPrediction:
        """Class probabilities."""
        return ClassPrediction(draws, seeds, self.dim)

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """Share of targets that are the most probable class."""
        return {"accuracy": float((mean.argmax(self.dim) == y).double().mean())}

    def options(self) -> dict[str, Any]:
        """The class dimension."""
        return {"dim": self.dim}


class Bernoulli(Likelihood):
    """Independent yes/no outputs; f holds logits, y values in [0, 1] of the same shape.

    Examples:
        >>> Bernoulli().log_prob(torch.zeros(1, 3), torch.ones(1, 3))
        tensor([-2.0794])
    """

    def forward(self, f: Tensor) -> td.Bernoulli:
        """Bernoulli with these logits."""
        return td.Bernoulli(logits=f)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Minus the binary cross-entropy, summed over outputs."""
        _same_shape("Bernoulli", f, y)
        return -_per_example(F.binary_cross_entropy_with_logits(f, y.to(f.dtype), reduction="none"))

    def predictive(self, fs: Tensor) -> td.Bernoulli:
        """Probabilities averaged over draws."""
        return td.Bernoulli(probs=fs.sigmoid().mean(0))

    def moments(self, f: Tensor) -> tuple[Tensor, None, Tensor]:
        """Probabilities and their entropy."""
        probs = f.sigmoid()
        return probs, None, class_entropy(probs, None)

    def summarise(self, draws: Draws, seeds: Sequence[int]) -> ClassPrediction:
        """Probabilities of yes."""
        return ClassPrediction(draws, seeds, None)

    def score(self, mean: Tensor, y: Tensor) -> dict[str, float]:
        """Share of outputs on the right side of one half."""
        return {"accuracy": float(((mean > 0.5) == (y > 0.5)).double().mean())}


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
        if scale is not None and not scale > 0:
            raise ValueError(f"Gaussian(scale={scale}): a standard deviation is positive")
        self.learned = scale is None
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
        _same_shape("Gaussian", f, y)
        log_scale = torch.as_tensor(self.log_scale, dtype=f.dtype, device=f.device)
        z = (y - f) * (-log_scale).exp()
        return -_per_example(0.5 * z.square() + log_scale + 0.5 * math.log(2 * math.pi))

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
        return {"rmse": float((mean - y).double().square().mean().sqrt())}

    def options(self) -> dict[str, Any]:
        """The scale, None if learned (the learned value is in the state)."""
        return {"scale": None if self.learned else float(self.scale)}

    def extra_repr(self) -> str:
        """The scale, and whether it is learned."""
        return f"{float(self.scale.detach()):g}" + (", learned" if self.learned else "")


def _per_example(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1).sum(1) if values.dim() > 1 else values


def _same_shape(name: str, f: Tensor, y: Tensor) -> None:
    """Refuse what broadcasting would turn into all pairs of examples."""
    if f.shape != y.shape:
        hint = "y.unsqueeze(-1)" if f.shape == (*y.shape, 1) else "y.reshape_as(output)"
        raise ValueError(
            f"{name}: outputs have shape {tuple(f.shape)} but targets {tuple(y.shape)}; "
            f"write {hint} (broadcasting would compare every example with every other)"
        )

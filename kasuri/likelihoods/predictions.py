"""What a prediction is: draws of a network's output, summarised.

Means and spreads are accumulated draw by draw, so that memory does not grow with the number of
draws unless the draws themselves are kept.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kasuri.numerics.gamma import student_t_entropy
from kasuri.numerics.mixture import mixture_entropy, mixture_quantile


@dataclass
class Draws:
    """Running moments of the per-draw predictive means, and the draws themselves if kept.

    Args:
        kept: an empty list to keep the mean of every draw in (for intervals and the entropy of
            regressions), or None. Then `noises` keeps the variances within draws as well.
    """

    kept: list[Tensor] | None = None
    count: int = 0
    mean: Tensor | None = None
    squares: Tensor | None = None  # Σ (value - mean)², Welford's recurrence
    entropy: Tensor | None = None  # mean over draws of the entropy within a draw
    noise: Tensor | None = None  # mean over draws of the variance within a draw
    noises: list[Tensor] = field(default_factory=list)

    def add(self, value: Tensor, noise: Tensor | None, entropy: Tensor | None) -> None:
        """Take in one draw: its predictive mean, and its own variance and entropy."""
        self.count += 1
        if self.mean is None or self.squares is None:
            self.mean, self.squares = value.clone(), torch.zeros_like(value)
        else:
            step = value - self.mean
            self.mean += step / self.count
            self.squares += step * (value - self.mean)
        self.noise = _running(self.noise, noise, self.count)
        self.entropy = _running(self.entropy, entropy, self.count)
        if self.kept is not None:
            self.kept.append(value)
            self.noises += [] if noise is None else [noise]

    @staticmethod
    def join(parts: Sequence["Draws"]) -> "Draws":
        """Batches one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first

        def cat(field: str) -> Tensor | None:
            values = [getattr(part, field) for part in parts]
            return None if values[0] is None else torch.cat(values)

        def cat_draws(lists: Sequence[list[Tensor]]) -> list[Tensor]:
            return [torch.cat(column) for column in zip(*lists, strict=True)]

        kept = None if first.kept is None else cat_draws([part.kept or [] for part in parts])
        fields = {name: cat(name) for name in ("mean", "squares", "entropy", "noise")}
        noises = cat_draws([part.noises for part in parts])
        return Draws(kept, first.count, **fields, noises=noises)


def _running(mean: Tensor | None, value: Tensor | None, count: int) -> Tensor | None:
    if value is None:
        return None
    if mean is None:
        return value.clone()
    step = torch.where(value == mean, 0.0, value - mean)  # infinite variances stay so
    return mean + step / count


class Prediction(ABC):
    """Summary of S draws for each input.

    Args:
        moments: the accumulated draws.
        seeds: one per draw; `frozen(bnn, pred.seeds[s])` is the function of draw s.
    """

    def __init__(self, moments: Draws, seeds: Sequence[int] = ()) -> None:
        assert moments.mean is not None
        assert moments.squares is not None
        self.moments = moments
        self.seeds = tuple(seeds)
        self.mean: Tensor = moments.mean
        self.spread: Tensor = moments.squares / moments.count
        """Variance of the draws around their mean."""

    @property
    def draws(self) -> Tensor:
        """All draws, (S, batch, ...)."""
        return self._kept(self.moments.kept or [])

    def _kept(self, values: list[Tensor]) -> Tensor:
        if not values:
            raise ValueError(
                "the draws were not kept: call kasuri.predict(..., keep_draws=True) for intervals, "
                "draws and the entropy of a regression"
            )
        return torch.stack(values)

    @property
    @abstractmethod
    def std(self) -> Tensor:
        """Predictive standard deviation."""

    @abstractmethod
    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval with this probability."""

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy of the predictive distribution in nats."""

    @property
    @abstractmethod
    def mutual_information(self) -> Tensor:
        """What knowing the weights would tell about the output, in nats."""

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """The part of the uncertainty that no amount of data removes."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The part of the uncertainty that comes from not knowing the weights."""


class ClassPrediction(Prediction):
    """Class probabilities. `mean` is their average over draws, `std` their spread.

    entropy (batch,) = aleatoric + epistemic, in nats; epistemic is the mutual information.
    For Bernoulli outputs the entropies are per output.
    """

    def __init__(self, moments: Draws, seeds: Sequence[int] = (), dim: int | None = -1) -> None:
        super().__init__(moments, seeds)
        self.dim = dim

    @property
    def std(self) -> Tensor:
        """Standard deviation of the probabilities over draws."""
        return self.spread.sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Quantiles of the probabilities over draws."""
        return _quantiles(self.draws, _check_level(level))

    @property
    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities."""
        return class_entropy(self.mean, self.dim)

    @property
    def aleatoric(self) -> Tensor:
        """Average over draws of each draw's entropy."""
        assert self.moments.entropy is not None
        return self.moments.entropy

    @property
    def mutual_information(self) -> Tensor:
        """Entropy minus aleatoric part; never below 0 by Jensen's inequality."""
        return (self.entropy - self.aleatoric).clamp(min=0)

    @property
    def epistemic(self) -> Tensor:
        """The mutual information."""
        return self.mutual_information


class RealPrediction(Prediction):
    """Real outputs. `mean`, and `std` with noise and weight uncertainty together.

    std² = aleatoric + epistemic: the variance of the noise and of the function.

    Args:
        moments: the accumulated draws.
        seeds: one per draw.
        own_noise: whether every draw has its own noise; otherwise its variances are averaged.
        concentration: half the degrees of freedom of Student-t noise, () or of the last dimension; None for
            normal noise.
    """

    def __init__(
        self,
        moments: Draws,
        seeds: Sequence[int] = (),
        *,
        own_noise: bool = False,
        concentration: Tensor | None = None,
    ) -> None:
        super().__init__(moments, seeds)
        self.own_noise = own_noise
        self.concentration = concentration

    @property
    def noise(self) -> Tensor:
        """Noise variance, averaged over draws; 0 without a likelihood."""
        noise = self.moments.noise
        return torch.zeros_like(self.mean) if noise is None else noise.expand_as(self.mean)

    @property
    def scale(self) -> Tensor:
        """Scale of the noise, (batch, ...), or (S, batch, ...) where every draw has its own.

        The standard deviation of normal noise; of Student-t noise √(variance · (a - 1)/a).
        """
        noise = self._kept(self.moments.noises) if self.own_noise else self.noise
        if self.concentration is None:
            return noise.sqrt()
        a = self.concentration
        if not bool((a > 1).all()):
            raise ValueError(
                f"noise with {2 * float(a.min()):.3g} degrees of freedom has no variance, and a prediction "
                "no scale: train first, on more than a few examples, or choose a prior with a "
                "concentration above 1"
            )
        return (noise * ((a - 1) / a).to(noise)).sqrt()

    @property
    def std(self) -> Tensor:
        """√(aleatoric + epistemic)."""
        return (self.spread + self.noise).sqrt()

    @property
    def aleatoric(self) -> Tensor:
        """Variance of the noise."""
        return self.noise

    @property
    def epistemic(self) -> Tensor:
        """Variance of the function over draws."""
        return self.spread

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Quantiles of the predictive mixture (noise included)."""
        level, draws = _check_level(level), self.draws
        if self.moments.noise is None:
            return _quantiles(draws, level)
        scale, a = self.scale, self.concentration
        return (
            mixture_quantile(draws, scale, (1 - level) / 2, a),
            mixture_quantile(draws, scale, (1 + level) / 2, a),
        )

    @property
    def entropy(self) -> Tensor:
        """Differential entropy of the predictive mixture of each output, by quadrature."""
        if self.moments.noise is None:
            raise ValueError(
                "draws of a function have no density: give kasuri.predict the likelihood, e.g. "
                "likelihood=kasuri.Gaussian(0.1) for regression or kasuri.Categorical() for classes"
            )
        return mixture_entropy(self.draws, self.scale, self.concentration)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy of the mixture minus that of the noise."""
        logs = self.scale.log()
        logs = logs.mean(0) if self.own_noise else logs
        standard = torch.as_tensor(0.5 * (1 + math.log(2 * math.pi)))
        if self.concentration is not None:
            standard = student_t_entropy(self.concentration)
        return (self.entropy - logs - standard.to(logs)).clamp(min=0)


def class_entropy(probs: Tensor, dim: int | None) -> Tensor:
    """-Σ p log p over `dim`, or of independent Bernoullis if dim is None."""
    if dim is None:
        return -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs))
    return -torch.xlogy(probs, probs).sum(dim)


def _check_level(level: float) -> float:
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"interval({level!r}): a probability between 0 and 1, e.g. 0.9")
    return level


def _quantiles(draws: Tensor, level: float) -> tuple[Tensor, Tensor]:
    return draws.quantile((1 - level) / 2, dim=0), draws.quantile((1 + level) / 2, dim=0)

"""What a prediction is: draws of a network's output, summarised and scored.

Sums are accumulated draw by draw, so that memory does not grow with the number of draws unless
the draws themselves are kept.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kasuri.checks import between
from kasuri.numerics import scores
from kasuri.numerics.mixture import mixture_quantile

if TYPE_CHECKING:
    from kasuri.likelihoods.base import Likelihood

_DENSE = torch.contiguous_format
Columns = dict[str, Tensor]  # by name, one row per example


@dataclass
class Draws:
    """Outputs of a network, draw by draw: their running sums, and the outputs themselves if kept.

    Every draw may have a likelihood of its own, as the members of an ensemble have. Values are summed as
    deviations from the first draw, so that moments far from zero are accurate.
    """

    keep: bool = True  # the outputs, which intervals, draws and scores need
    seeds: Sequence[int] = ()  # of the draws, if they have any
    outputs: list[tuple["Likelihood | None", Tensor]] = field(default_factory=list)
    count: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, fs: Tensor, likelihood: "Likelihood | None" = None) -> None:
        """Take in the outputs (S, batch, ...) of S draws."""
        value, noise, entropy = (
            # a copy: views of expanded tensors hinder torch.export
            None if part is None else part.clone(memory_format=_DENSE).unflatten(0, (len(fs), -1))
            for part in moments(fs.flatten(0, 1), likelihood)  # draws are examples to it
        )
        assert value is not None
        deviation = value - self.sums.setdefault("first", value[0])
        terms: dict[str, Tensor | None] = {"deviations": deviation, "squares": deviation.square()}
        terms |= {"noise": noise, "entropy": entropy}
        for name, values in terms.items():
            if values is not None:
                self.sums[name] = values.sum(0) + self.sums.get(name, 0)
        self.count += len(fs)
        if self.keep:
            self.outputs += [(likelihood, f) for f in fs]

    @property
    def mean(self) -> Tensor:
        return self.sums["first"] + self.sums["deviations"] / self.count

    @property
    def spread(self) -> Tensor:
        """Variance of the draws around their mean."""
        return (
            self.sums["squares"] / self.count - (self.sums["deviations"] / self.count).square()
        ).clamp(min=0)

    def within(self, name: str) -> Tensor | None:
        """The "noise" (its variance) or "entropy" within a draw, averaged over draws."""
        return self.sums[name] / self.count if name in self.sums else None

    @staticmethod
    def join(parts: Sequence["Draws"]) -> "Draws":
        """Batches one after the other."""
        first = parts[0]
        outputs = [
            (draw[0][0], torch.cat([f for _, f in draw]))
            for draw in zip(*(part.outputs for part in parts), strict=True)
        ]
        sums = {name: torch.cat([part.sums[name] for part in parts]) for name in first.sums}
        return Draws(first.keep, first.seeds, outputs, first.count, sums)


def moments(
    f: Tensor, likelihood: "Likelihood | None"
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Mean, variance and entropy of targets; without a likelihood f is a value of a function."""
    return (f, None, None) if likelihood is None else likelihood.moments(f)


class Prediction(ABC):
    """Summary of S draws for each input; `frozen(bnn, pred.seeds[s])` is the function of draw s.

    Attributes:
        mean: predictive mean.
        std: predictive standard deviation.
        aleatoric: the part of the uncertainty that no amount of data removes.
        epistemic: the part that comes from not knowing the weights.
        seeds: of the draws.
    """

    std: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    def __init__(self, moments: Draws) -> None:
        self.moments = moments
        self.seeds = tuple(moments.seeds)
        self.mean = moments.mean

    @property
    def draws(self) -> Tensor:
        """All draws, (S, batch, ...)."""
        return torch.stack([moments(f, likelihood)[0] for likelihood, f in self._outputs()])

    def _outputs(self) -> Sequence[tuple["Likelihood | None", Tensor]]:
        if not self.moments.outputs:
            raise ValueError(
                "the draws were not kept: call kasuri.predict(..., keep_draws=True) for intervals, "
                "draws, and the scores of a regression"
            )
        return self.moments.outputs

    @abstractmethod
    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval with this probability."""

    @abstractmethod
    def uncertainty(self) -> Columns:
        """How unsure the prediction is, in the words of `score`."""

    def score(self, y: Tensor) -> Columns:
        """Every score of each example, and its uncertainties.

        Classes: accuracy, brier, confidence, entropy, mutual_information. Real targets: crps, squared_error,
        pit, interval_width_90, std, epistemic. Both: nll, which is -log of the averaged likelihood,
        gibbs_nll, the average -log likelihood of a draw, label and guess.

        Args:
            y: targets, as the likelihood takes them.

        Returns:
            (batch,), or (batch, ...) where an example has several positions or outputs; nll and gibbs_nll are
            always those of all of them together.
        """
        scores.refuse_non_finite("predictions", self.mean)
        return self.uncertainty() | self._scores(y.to(self.mean.device))

    @abstractmethod
    def _scores(self, y: Tensor) -> Columns:
        """The columns of `score` that need targets."""

    def _nlls(self, y: Tensor) -> Columns:
        logs, expected = [], []
        for likelihood, f in self._outputs():
            assert likelihood is not None
            logs.append(likelihood.log_prob(f, y).double())
            expected.append(likelihood.expected_log_prob(f, y).double())
        nll = math.log(len(logs)) - torch.stack(logs).logsumexp(0)
        return {"nll": nll, "gibbs_nll": -torch.stack(expected).mean(0)}


class ClassPrediction(Prediction):
    """Class probabilities. `mean` is their average over draws, `std` their spread.

    For Bernoulli outputs (`dim` is None) the entropies are per output.

    Attributes:
        entropy: of the averaged probabilities, (batch,), in nats: aleatoric + epistemic.
        aleatoric: average over draws of each draw's entropy.
        mutual_information: what knowing the weights would tell about the class: epistemic.
    """

    def __init__(self, moments: Draws, dim: int | None = -1) -> None:
        super().__init__(moments)
        self.dim = dim
        self.std = moments.spread.sqrt()
        self.entropy = class_entropy(self.mean, dim)
        within = moments.within("entropy")
        assert within is not None
        self.aleatoric = within
        # never below 0 by Jensen's inequality
        self.epistemic = self.mutual_information = (self.entropy - within).clamp(min=0)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Quantiles of the probabilities over draws."""
        return _quantiles(self.draws, level)

    def uncertainty(self) -> Columns:
        return {"entropy": self.entropy, "mutual_information": self.mutual_information}

    def _scores(self, y: Tensor) -> Columns:
        probs, labels = self._rows(y)
        columns = {
            "label": labels,
            "guess": probs.argmax(1),
            "confidence": scores.confidence(probs),
            "accuracy": scores.correct(probs, labels),
            "brier": scores.brier(probs, labels),
        }
        columns = {name: column.reshape(self.entropy.shape) for name, column in columns.items()}
        if self.moments.outputs:
            return columns | self._nlls(y)
        return columns | {"nll": scores.nll(probs, labels).reshape(len(y), -1).sum(1)}

    def _rows(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, C) probabilities and (rows,) labels, one row per example and position."""
        if self.dim is None:
            probs = torch.stack([1 - self.mean, self.mean], -1)
        else:
            probs = self.mean.movedim(self.dim, -1)
        if y.shape != probs.shape[:-1]:
            raise ValueError(
                f"labels must have shape {tuple(probs.shape[:-1])}, got {tuple(y.shape)}; write "
                f"y.reshape{tuple(probs.shape[:-1])}"
            )
        if self.dim is None:
            if not bool(((y == 0) | (y == 1)).all()):
                raise ValueError("scores of yes/no answers need targets 0 or 1; write y.round()")
            y = y.long()
        return probs.reshape(-1, probs.shape[-1]), y.reshape(-1)


class RealPrediction(Prediction):
    """Real outputs. `mean`, and `std` with noise and weight uncertainty together.

    Attributes:
        std: √(aleatoric + epistemic).
        aleatoric: variance of the noise, averaged over draws; 0 without a likelihood.
        epistemic: variance of the function over draws.
    """

    def __init__(self, moments: Draws) -> None:
        super().__init__(moments)
        noise = moments.within("noise")
        self.has_density = noise is not None  # without noise, draws are values of a function
        self.aleatoric = (
            torch.zeros_like(self.mean) if noise is None else noise.expand_as(self.mean)
        )
        self.epistemic = moments.spread
        self.std = (self.epistemic + self.aleatoric).sqrt()

    def _mixture(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Centres and scales of the noise of all draws, (S, batch, ...), and half the degrees of freedom.

        The scale is the standard deviation of normal noise; of Student-t noise √(variance · (a - 1)/a).
        """
        if not self.has_density:
            raise ValueError(
                "draws of a function have no density: give kasuri.predict the likelihood, e.g. "
                "likelihood=kasuri.Gaussian(0.1) for regression or kasuri.Categorical() for classes"
            )
        outputs = self._outputs()
        variances = (moments(f, likelihood)[1] for likelihood, f in outputs)
        noise = torch.stack([variance for variance in variances if variance is not None])
        a: Tensor | None = getattr(outputs[0][0], "concentration", None)
        if a is None:  # normal noise
            return self.draws, noise.sqrt(), None
        a = a.detach()
        if not bool((a > 1).all()):
            raise ValueError(
                f"noise with {2 * float(a.min()):.3g} degrees of freedom has no variance: train first, or "
                "choose a prior with a concentration above 1"
            )
        return self.draws, (noise * ((a - 1) / a).to(noise)).sqrt(), a

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Quantiles of the predictive mixture (noise included)."""
        between(0, 1, level=level)
        if not self.has_density:
            return _quantiles(self.draws, level)
        centres, scale, a = self._mixture()
        low, high = (
            mixture_quantile(centres, scale, p, a) for p in ((1 - level) / 2, (1 + level) / 2)
        )
        return low, high

    def uncertainty(self) -> Columns:
        """Standard deviation of a new target, and of the function."""
        return {"std": self.std, "epistemic": self.epistemic.sqrt()}

    def _scores(self, y: Tensor) -> Columns:
        centres, scale, a = self._mixture()
        lower, upper = self.interval(0.9)
        return {
            "label": y,
            "guess": self.mean,
            "squared_error": (self.mean.double() - y).square(),
            "crps": scores.crps(centres, scale, y, a),
            "pit": scores.pit(centres, scale, y, a),
            "interval_width_90": upper - lower,
        } | self._nlls(y)


def class_entropy(probs: Tensor, dim: int | None) -> Tensor:
    """-Σ p log p over `dim`, or of independent Bernoullis if dim is None."""
    if dim is None:
        return -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs))
    return -torch.xlogy(probs, probs).sum(dim)


def _quantiles(draws: Tensor, level: float) -> tuple[Tensor, Tensor]:
    between(0, 1, level=level)
    return draws.quantile((1 - level) / 2, dim=0), draws.quantile((1 + level) / 2, dim=0)

"""Metrics: one number for a whole set of examples, as pure functions of tensors.

Scores of single examples (`correct`, `nll`, `brier`, `confidence`, `crps`, `pit`) are offered here as
well; `mean_sem` makes a mean and its standard error over examples of them.

torchmetrics is the oracle in the tests, and not used here: it takes two seconds to import, sends scores
outside [0, 1] through a sigmoid in single precision before ranking them (0.50 for a true AUROC of 0.67),
puts confidences of exactly 1 into a bin of their own, and takes NaN without a word.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kasuri.numerics.scores import brier as brier
from kasuri.numerics.scores import confidence as confidence
from kasuri.numerics.scores import correct as correct
from kasuri.numerics.scores import crps as crps
from kasuri.numerics.scores import nll as nll
from kasuri.numerics.scores import pit as pit
from kasuri.numerics.scores import refuse_non_finite


class Estimate(NamedTuple):
    """A mean over examples and its standard error."""

    mean: float
    sem: float


def mean_sem(scores: Tensor) -> Estimate:
    """Mean over examples, with standard error std/√N (NaN for a single example).

    Args:
        scores: (N, ...) one score per example; further dimensions (outputs, positions) are
            averaged first, since only examples are independent.

    Examples:
        >>> mean_sem(torch.tensor([1.0, 0.0, 1.0, 1.0]))
        Estimate(mean=0.75, sem=0.25)
    """
    if not scores.numel():
        raise ValueError("mean_sem: scores hold no examples; there must be at least one")
    refuse_non_finite("scores", scores)
    means = scores.double().reshape(len(scores), -1).mean(1)
    sem = float(means.std()) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Estimate(float(means.mean()), sem)


def bootstrap_sem(
    statistic: Callable[..., float], *columns: Tensor, resamples: int = 100, seed: int = 0
) -> float:
    """Standard error of any statistic of a set: its spread over resampled sets.

    For numbers that are no mean over examples, such as `ece`. Examples (rows of the columns) are drawn with
    replacement, from a generator of its own.

    Examples:
        >>> values = torch.arange(100.0)
        >>> error = bootstrap_sem(lambda v: float(v.mean()), values, resamples=1000)
        >>> abs(error / mean_sem(values).sem - 1) < 0.1
        True
    """
    count = len(columns[0])
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(resamples):
        rows = torch.randint(count, (count,), generator=generator).to(columns[0].device)
        values.append(statistic(*(column[rows] for column in columns)))
    return float(torch.tensor(values, dtype=torch.float64).std())


class Reliability(NamedTuple):
    """A reliability diagram: mean confidence, accuracy and number of examples of each bin.

    Empty bins have confidence and accuracy 0.
    """

    confidence: Tensor
    accuracy: Tensor
    counts: Tensor

    @property
    def error(self) -> float:
        gaps = (self.accuracy - self.confidence).abs()
        return float((gaps * self.counts).sum() / self.counts.sum())


def calibration_bins(confidence: Tensor, correct: Tensor, bins: int = 15) -> Reliability:
    """Events sorted into equal bins [b/B, (b + 1)/B) by their stated probability; 1 is in the last.

    Args:
        confidence: (N,) stated probabilities.
        correct: (N,) whether the event happened, 0 or 1.
        bins: number of equal bins B.

    Examples:
        >>> calibration_bins(torch.tensor([0.1, 0.9, 1.0]), torch.tensor([0, 0, 1]), bins=2)
        Reliability(confidence=tensor([0.1000, 0.9500], dtype=torch.float64),
                    accuracy=tensor([0.0000, 0.5000], dtype=torch.float64), counts=tensor([1, 2]))
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    confidence, correct = confidence.double().reshape(-1).contiguous(), correct.reshape(-1)
    inner = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)[1:-1]
    bin_of = torch.bucketize(confidence, inner, right=True)
    count = torch.bincount(bin_of, minlength=bins)
    at_least_one = count.clamp(min=1)
    stated = torch.bincount(bin_of, confidence, minlength=bins) / at_least_one
    observed = torch.bincount(bin_of, correct.double(), minlength=bins) / at_least_one
    return Reliability(stated, observed, count)


def ece(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error Σ_b n_b/N |accuracy_b - confidence_b| over the whole set.

    Averaged over batches, as some published numbers were, it is another number: absolute values of
    noise do not average out, and a perfectly calibrated model then scores 0.08 instead of 0.007 at batches
    of 128. It has no standard error of its own; see `bootstrap_sem`.

    Args:
        probs: (N, C) class probabilities.
        y: (N,) class numbers.
        bins: number of equal bins.

    Examples:
        >>> ece(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([0, 0]))
        0.25
    """
    return calibration_bins(confidence(probs), correct(probs, y), bins).error


def auroc(inside_scores: Tensor, outside_scores: Tensor) -> float:
    """P(outside > inside) + ½ P(outside = inside): how well a score tells two sets apart.

    The area under the ROC curve, exactly, from ranks: 1 if every outside score is the larger, ½ if
    the score says nothing.

    Args:
        inside_scores: (N,) uncertainties (entropy, mutual information) of the set trained for.
        outside_scores: (M,) uncertainties of another set.

    Examples:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.3]))
        0.875
    """
    if not inside_scores.numel() or not outside_scores.numel():
        raise ValueError("auroc compares two sets: each must have at least one score")
    refuse_non_finite("inside_scores", inside_scores.reshape(-1))
    refuse_non_finite("outside_scores", outside_scores.reshape(-1))
    inside = inside_scores.reshape(-1).double().sort().values
    outside = outside_scores.reshape(-1).to(inside).contiguous()
    below = torch.searchsorted(inside, outside, right=False).sum()
    not_above = torch.searchsorted(inside, outside, right=True).sum()
    return int(below + not_above) / (2 * len(inside) * len(outside))


def coverage(lower: Tensor, upper: Tensor, y: Tensor) -> float:
    """Share of targets between the ends of their intervals, which belong to them.

    Examples:
        >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 2.0]))
        0.5
    """
    if not lower.shape == upper.shape == y.shape or not y.numel():
        raise ValueError(
            f"coverage: targets have shape {tuple(y.shape)} but intervals {tuple(lower.shape)} and "
            f"{tuple(upper.shape)}, which would compare all pairs; write y.reshape(lower.shape)"
        )
    for name, values in (("lower ends", lower), ("upper ends", upper), ("targets", y)):
        refuse_non_finite(f"coverage: {name}", values)
    return float(((lower <= y) & (y <= upper)).double().mean())

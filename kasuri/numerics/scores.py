"""Scores: one number per example, from a prediction and what was observed.

A score is a pure function of tensors and keeps the examples apart, so that its mean has a standard
error over them (`kasuri.metrics.mean_sem`). Everything is computed in double precision.
"""

import math

import torch
from torch import Tensor

from kasuri.numerics.mixture import mixture_cdf, normals_of


def correct(probs: Tensor, y: Tensor) -> Tensor:
    """1 where the most probable class is the right one, else 0; of what `nll` takes.

    Examples:
        >>> correct(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor([1., 0.], dtype=torch.float64)
    """
    probs, y = checked(probs, y)
    return (probs.argmax(1) == y).double()


def confidence(probs: Tensor) -> Tensor:
    """Probability of the most probable class, max_c p_c.

    Args:
        probs: (N, C) class probabilities.

    Examples:
        >>> confidence(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
        tensor([0.7500, 0.5000], dtype=torch.float64)
    """
    return _probabilities(probs).amax(1)


def nll(probs: Tensor, y: Tensor) -> Tensor:
    """-log p_y, in nats.

    A probability of 0 counts as the smallest positive number of its precision, that is 87 nats for
    single and 708 for double precision, so that one example cannot make a mean infinite.

    Args:
        probs: (N, C) class probabilities, averaged over draws.
        y: (N,) class numbers.

    Examples:
        >>> nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0])).abs()
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    smallest = torch.finfo(probs.dtype).tiny
    probs, y = checked(probs, y)
    return -probs.gather(1, y.unsqueeze(1)).squeeze(1).clamp(min=smallest).log()


def brier(probs: Tensor, y: Tensor) -> Tensor:
    """Σ_c (p_c - 1[y = c])², between 0 and 2 (the sum over classes, not their mean); of what `nll` takes.

    Examples:
        >>> brier(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1]))
        tensor([0.1250, 0.5000], dtype=torch.float64)
    """
    probs, y = checked(probs, y)
    return (probs - torch.nn.functional.one_hot(y, probs.shape[1])).square().sum(1)


def crps(
    means: Tensor, scale: Tensor | float, y: Tensor, concentration: Tensor | None = None
) -> Tensor:
    """Continuous ranked probability score of an equal mixture of normals, in closed form.

    CRPS = ∫ (F(t) - 1[t ≥ y])² dt = E|Y - y| - ½ E|Y - Y'|, where a normal N(μ, σ²) has
    E|·| = A(μ, σ) = μ (2Φ(μ/σ) - 1) + 2σ φ(μ/σ), so that

    CRPS = (1/S) Σ_s A(y - μ_s, σ_s) - (1/2S²) Σ_st A(μ_s - μ_t, √(σ_s² + σ_t²))

    (Grimit et al. 2006). S² terms an output, one row of them in memory. A scale of 0 scores the
    draws themselves. A Student-t counts as the K normals that make it (`normals_of`): K²
    times as many terms.

    Args:
        means: (S, N, ...) centres.
        scale: of the noise, of any shape that broadcasts against `means`.
        y: (N, ...) targets.
        concentration: half the degrees of freedom of Student-t noise; None for normal noise.

    Returns:
        (N, ...): one score per output, in the units of y.

    Examples:
        >>> crps(torch.zeros(3, 1), 1.0, torch.zeros(1))  # (√2 - 1)/√π
        tensor([0.2337], dtype=torch.float64)
    """
    means, scale, y = _mixture(means, scale, y)
    count, total = len(means), torch.zeros_like(y)
    parts = [(width.to(y), weight.to(y)) for width, weight in normals_of(concentration)]
    for width, weight in parts:
        total += weight * _expected_distance(y - means, scale * width).mean(0)
        for other, share in parts:
            pairs = (scale * (2 / math.pi) ** 0.5 * (width**2 + other**2) ** 0.5).sum(0)  # s = t
            for s in range(count - 1):
                spread = ((scale[s] * width).square() + (scale[s + 1 :] * other).square()).sqrt()
                pairs += 2 * _expected_distance(means[s] - means[s + 1 :], spread).sum(0)
            total -= weight * share * pairs / (2 * count**2)
    return total


def pit(
    means: Tensor, scale: Tensor | float, y: Tensor, concentration: Tensor | None = None
) -> Tensor:
    """F(y) = (1/S) Σ_s Φ((y - means_s)/scale), uniform on [0, 1] for a calibrated prediction.

    The central interval of probability p contains y exactly where |2F(y) - 1| ≤ p. Of what `crps` takes.

    Examples:
        >>> pit(torch.zeros(2, 1), 1.0, torch.tensor([1.96]))
        tensor([0.9750], dtype=torch.float64)
    """
    means, scale, y = _mixture(means, scale, y)
    return mixture_cdf(y, means, scale.clamp(min=1e-300), concentration)


def refuse_non_finite(name: str, values: Tensor) -> None:
    """Raise if any row holds NaN or infinity, saying how many do."""
    bad = int((~values.isfinite()).reshape(len(values), -1).any(1).sum())
    if bad:
        raise ValueError(
            f"{name}: {bad} of {len(values)} rows are not finite, and a mean over them would not "
            "be either; leave them out, e.g. keep = y.isfinite(), or see why the model diverged"
        )


def checked(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities in double precision and labels, refused unless they fit together."""
    probs = _probabilities(probs)
    if y.shape != probs.shape[:1] or y.is_floating_point():
        raise ValueError(
            f"probabilities of shape {tuple(probs.shape)} need integer labels of shape "
            f"({len(probs)},), got {tuple(y.shape)} of {y.dtype}; one-hot: write y.argmax(-1)"
        )
    classes, y = probs.shape[1], y.long()
    bad = int(((y < 0) | (y >= classes)).sum())
    if bad:
        raise ValueError(
            f"{bad} of {len(y)} labels are not in 0..{classes - 1}; leave masked rows out, "
            "e.g. keep = y >= 0 and probs[keep], y[keep]"
        )
    return probs, y


def _probabilities(probs: Tensor) -> Tensor:
    if probs.dim() != 2 or not len(probs):
        raise ValueError(
            f"class probabilities must have shape (N, C) with N at least 1, got {tuple(probs.shape)}"
        )
    refuse_non_finite("probabilities", probs)
    slack = max(1e-3, 4 * torch.finfo(probs.dtype).eps)
    probs = probs.double()
    if bool((probs < -slack).any()) or bool(((probs.sum(1) - 1).abs() > slack).any()):
        raise ValueError("rows of probabilities must sum to 1; of logits, write logits.softmax(-1)")
    return probs.clamp(0, 1)


def _mixture(means: Tensor, scale: Tensor | float, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draws, their scales (expanded to them) and targets in double precision, checked."""
    if means.dim() < 2 or means.shape[1:] != y.shape or not means.numel():
        raise ValueError(
            f"draws of shape (S, N, ...) = {tuple(means.shape)} need targets of shape "
            f"{tuple(means.shape[1:])}, got {tuple(y.shape)}; write y.reshape(draws.shape[1:])"
        )
    refuse_non_finite("targets", y)
    refuse_non_finite("draws", means.transpose(0, 1))
    wide = torch.as_tensor(scale, dtype=torch.float64, device=means.device).expand_as(means)
    if not bool((wide >= 0).all()):
        raise ValueError(
            "scale is a standard deviation: it must be nowhere negative and nowhere NaN"
        )
    return means.double(), wide, y.double()


def _expected_distance(mean: Tensor, scale: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, scale²); |mean| where the scale is 0."""
    z = mean / scale.clamp(min=1e-300)
    density = (-0.5 * z.square()).exp() * math.sqrt(2 / math.pi)
    return mean * torch.erf(z / math.sqrt(2)) + scale * density

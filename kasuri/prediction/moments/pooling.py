"""Pooling of normal numbers: maxima pair by pair, averages of independent ones."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.gaussian_moments import larger_mean, larger_variance
from kasuri.prediction.moments.values import Gauss, is_random, mean_of

_LOWEST = -1e30  # mean of a padded place: never the largest, and its square is finite in float64


def _for_each(value: Any, dims: int) -> list[int]:
    """A size for every dimension of the pictures."""
    value = [value] if isinstance(value, int) else list(value)
    return value * dims if len(value) == 1 else value


def padded(x: Tensor, pads: list[int], value: float = 0.0) -> Tensor:
    """F.pad, by joining tensors: torch's own makes a constant of the batch size when it is traced."""
    for index in range(len(pads) // 2):
        dim = x.dim() - 1 - index
        sides = [
            x.new_full((*x.shape[:dim], width, *x.shape[dim + 1 :]), value)
            for width in pads[2 * index : 2 * index + 2]
        ]
        if any(pads[2 * index : 2 * index + 2]):
            x = torch.cat([sides[0], x, sides[1]], dim)
    return x


def _windows(
    x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, fill: float
) -> list[Tensor]:
    """The places of every window, one picture for each place of the kernel."""
    dims = x.dim() - 2
    sizes, pads, gaps, steps = (
        _for_each(one, dims) for one in (kernel, padding, dilation, stride or kernel)
    )
    x = padded(x, [pad for pad in reversed(pads) for _ in range(2)], fill)
    counts = [
        (length - gap * (size - 1) - 1) // step + 1
        for length, size, gap, step in zip(x.shape[2:], sizes, gaps, steps, strict=True)
    ]
    found = []
    for place in product(*map(range, sizes)):
        rows = [
            slice(at * gap, at * gap + (count - 1) * step + 1, step)
            for at, gap, count, step in zip(place, gaps, counts, steps, strict=True)
        ]
        found.append(x[(slice(None), slice(None), *rows)])
    return found


def _folded(x: Gauss, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Gauss:
    """The largest of every window, taken pair by pair as in a tournament."""
    assert x.variance is not None
    means = _windows(x.mean, kernel, stride, padding, dilation, _LOWEST)
    variances = _windows(x.variance, kernel, stride, padding, dilation, 0.0)
    players = list(zip(means, variances, strict=True))
    while len(players) > 1:
        pairs = [(*a, *b) for a, b in zip(players[::2], players[1::2], strict=False)]
        left = players[len(pairs) * 2 :]
        # variances smooth and are constants: no derivative goes through them
        constant = [[one.detach() for one in pair] for pair in pairs]
        spreads = [larger_variance(*pair) for pair in constant]
        players = [(larger_mean(*a), b) for a, b in zip(pairs, spreads, strict=True)] + left
    return Gauss(*players[0])


def _options(
    kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Any, Any, Any, Any]:
    if ceil:
        raise ValueError(
            "max pooling with ceil_mode=True has windows of different sizes, for which there is no rule: "
            "use kasuri.predict with draws"
        )
    return kernel, stride, padding, dilation


def max_pool_mean(op: Callable[..., Tensor], x: Any, *options: Any) -> Tensor:
    """Mean of the largest of every window."""
    where = _options(*options)
    if is_random(x):
        return _folded(x, *where).mean
    windows = _windows(mean_of(x), *where, fill=_LOWEST)
    largest = windows[0]
    for one in windows[1:]:
        largest = torch.maximum(largest, one)
    return largest


def max_pool_variance(op: Callable[..., Tensor], x: Gauss, *options: Any) -> Tensor:
    """Variance of the largest of every window."""
    variance = _folded(x, *_options(*options)).variance
    assert variance is not None
    return variance


def avg_pool_variance(op: Callable[..., Tensor], x: Gauss, kernel: Any, *options: Any) -> Tensor:
    """Variance of averages of independent numbers."""
    assert x.variance is not None
    averaged: Tensor = op(x.variance, kernel, *options)
    return averaged / math.prod(_for_each(kernel, x.variance.dim() - 2))

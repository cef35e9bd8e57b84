"""Bit widths: how many bits of a weight the posterior can tell apart, layer by layer.

Rounding adds an error of its own. As long as its mean square stays below the mean posterior variance of the
layer, it is lost in what nobody knows anyway. Numbers spaced evenly by Δ have a mean square error of
Δ²/12. Floats with t bits behind the point are spaced by 2^(e-t) between 2^e and 2^(e+1), so theirs is the
mean of 4^(e-t)/12 over the weights.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kasuri.compression.criteria import Random

FULL = 32


@dataclass(frozen=True)
class Bits:
    """Bits per weight of one tensor.

    Args:
        name: of the parameter.
        weights: left of it.
        fixed: for evenly spaced numbers between the smallest and the largest.
        mantissa: of a float.
        exponent: of a float.
    """

    name: str
    weights: int
    fixed: int
    mantissa: int
    exponent: int

    @property
    def floating(self) -> int:
        """Of a float: sign, exponent and mantissa."""
        return 1 + self.exponent + self.mantissa


@torch.no_grad()
def bits_of(name: str, mean: Tensor, variance: Tensor) -> Bits:
    """Bits that the weights with these means and variances need.

    Args:
        name: of the parameter.
        mean: of the weights that are left, any shape.
        variance: of them.

    Examples:
        >>> bits_of("w", torch.linspace(-1, 1, 100), torch.full((100,), 0.1**2)).fixed
        3
    """
    mean, variance = mean.double().flatten(), variance.double().flatten()
    if not len(mean) or not bool((mean != 0).any()):
        return Bits(name, len(mean), 0, 0, 0)
    noise = float(variance.mean())
    if noise <= 0:
        return Bits(name, len(mean), FULL, 23, 8)
    step = math.sqrt(12 * noise)
    span = float(mean.max() - mean.min())
    fixed = math.ceil(math.log2(1 + span / step)) if span > 0 else 0
    # a float of size 2^e to 2^(e+1) is spaced by 2^(e-t)
    sizes = mean[mean.abs() > step / 2].abs()
    if not len(sizes):
        return Bits(name, len(mean), min(fixed, FULL), 0, 0)
    powers = sizes.log2().floor()
    square = float((4**powers).sum()) / len(mean) / 12
    mantissa = max(0, math.ceil(0.5 * math.log2(square / noise)))
    octaves = float(powers.max() - powers.min()) + 2  # one more for 0
    exponent = math.ceil(math.log2(octaves))
    return Bits(name, len(mean), min(fixed, FULL), min(mantissa, 23), min(exponent, 8))


@torch.no_grad()
def bit_widths(weights: Mapping[str, Random], keep: Mapping[str, Tensor]) -> list[Bits]:
    """Bits of every random weight, of what is left of it.

    Args:
        weights: of `random_weights`.
        keep: masks by name, True for weights that are left; those without one are whole.
    """
    found = []
    for name, one in weights.items():
        q = one.posterior
        mean, variance = (one.view.tensor(part).detach().cpu() for part in (q.mean, q.variance))
        left = keep.get(name, torch.ones_like(mean, dtype=torch.bool)) & (
            (mean != 0) | (variance > 0)
        )
        found.append(bits_of(name, mean[left], variance[left]))
    return found

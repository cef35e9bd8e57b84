"""Where random weights enter a graph, and what a change there does to the outputs of one example.

A tap is one call of an affine operation with a random weight or bias. With its input a and the derivative g
of an output in the call's result, the derivative of that output in the weight is g aᵀ, summed over positions
and calls; the posterior says what variance that makes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from kasuri.posteriors.base import Elementwise
from kasuri.prediction.moments.folding import convolve, join
from kasuri.prediction.moments.operations import (
    CONVOLUTIONS,
    mean_of,
    padded,
    per_dimension,
    variance_of,
    windows,
)
from kasuri.prediction.moments.trace import RandomWeight, Traced

aten = torch.ops.aten


@dataclass(frozen=True)
class Tap:
    """One call with a random weight or bias, by the names of these; source is its input."""

    node: fx.Node
    source: fx.Node
    weight: str | None
    bias: str | None

    @property
    def op(self) -> Any:
        return self.node.target


@dataclass(frozen=True)
class Use:
    """A tap in the run of one example."""

    tap: Tap
    source: Any  # what it was given, a tensor or a Gauss; a batch of one
    slope: Tensor  # derivatives of all outputs in its result, (O, positions, features)


def find_taps(traced: Traced) -> list[Tap]:
    """Every call with a random weight; refuse uses that cannot be linearised."""

    def random(node: Any) -> str | None:
        return node.name if isinstance(node, fx.Node) and node.name in traced.random else None

    taps, covered = [], set()
    for node in traced.graph.nodes:
        if node.target in (aten.linear.default, *CONVOLUTIONS):
            source, weight, bias = (*node.args[:3], None)[:3]
        elif node.target is aten.embedding.default:
            weight, source, bias = node.args[0], node.args[1], None
        else:
            continue
        names = random(weight), random(bias)
        if any(names):
            taps.append(Tap(node, source, *names))
            covered |= {(name, node) for name in names if name}
    for place in traced.graph.nodes:
        for user in place.users if place.name in traced.random else ():
            if (place.name, user) not in covered:
                name = traced.random[place.name].name
                raise ValueError(
                    f'covariance="full": {name} is used by {user.target}, which cannot be linearised; '
                    'use covariance="diagonal" or kasuri.predict with draws'
                )
    return taps


def per_feature(tap: Tap, slope: Tensor) -> Tensor:
    """Derivatives (O, *result) as (O, positions, features)."""
    if tap.op in CONVOLUTIONS:
        slope = slope.flatten(3).transpose(2, 3)
    return slope.reshape(slope.shape[0], -1, slope.shape[-1])


def directions(
    uses: Sequence[Use], random: Mapping[str, RandomWeight], variances: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """(derivatives of all outputs in each random weight as a matrix, the rest of their covariance).

    The rest (O, O) comes from noise that is independent from place to place: of weights that meet one number
    each, and of weights times activations that are noisy themselves.
    """
    outputs = uses[0].slope.shape[0]
    rest = uses[0].slope.new_zeros(outputs, outputs)
    derivatives: dict[str, Tensor] = {}
    by_weight: dict[str, list[Use]] = {}
    for use in uses:
        if use.tap.bias is not None:
            _add(derivatives, use.tap.bias, use.slope.sum(1))
        if use.tap.weight is not None:
            by_weight.setdefault(use.tap.weight, []).append(use)
    for name, mine in by_weight.items():
        if all(use.tap.op is aten.embedding.default for use in mine):
            rest = rest + _embedded(mine, variances[name])
            continue
        independent = isinstance(random[name].posterior, Elementwise) and len(mine) == 1
        for use in mine:
            one_vector = use.tap.op is aten.linear.default and use.slope.shape[1] == 1
            squares = variance_of(use.source)
            if independent and one_vector:  # no need for a derivative as large as the weight
                square = mean_of(use.source).square()
                squares = square if squares is None else squares + square
            else:
                _add(
                    derivatives, name, random[name].without_padding(_derivative(use, random[name]))
                )
            if squares is not None:
                noise = _linear_part(use.tap, squares, variances[name])
                spread = use.slope.flatten(1)
                own = per_feature(use.tap, noise.unsqueeze(0)).flatten()
                rest = rest + (spread * own) @ spread.mT
    return derivatives, rest


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value


def _linear_part(tap: Tap, x: Tensor, weight: Tensor) -> Tensor:
    """The call without its bias."""
    if tap.op in CONVOLUTIONS:
        return convolve(tap.op, x, weight, tap.node.args[3:])
    return F.linear(x, weight)


def _derivative(use: Use, weight: RandomWeight) -> Tensor:
    """Derivative in the weight as a matrix, (O, *blocks, out, in)."""
    inputs = mean_of(use.source)
    if use.tap.op is aten.embedding.default:  # of a matrix that other layers use as well
        words = torch.arange(weight.posterior.shape[-2], device=inputs.device)
        return (words.unsqueeze(-1) == inputs.reshape(-1)).to(use.slope) @ use.slope
    if use.tap.op is aten.linear.default:
        return use.slope.mT @ inputs.reshape(-1, inputs.shape[-1])
    patches = _patches(use.tap, inputs)  # (pictures, groups, in, positions)
    slope = use.slope.unflatten(1, (patches.shape[0], -1)).mT
    slope = slope.unflatten(2, (patches.shape[1], -1))  # (O, pictures, groups, out, positions)
    derivative = (slope @ patches.mT).sum(1)
    return derivative.squeeze(1) if patches.shape[1] == 1 else derivative


def _embedded(uses: Sequence[Use], variance: Tensor) -> Tensor:
    """Rows of a table; a word met twice moves both places alike.

    Rows are taken as independent of each other, which they are unless the family covaries rows.
    """
    ids = join([use.source.reshape(-1) for use in uses], 0)
    slope = join([use.slope for use in uses], 1)
    same = (ids.unsqueeze(0) == ids.unsqueeze(1)).to(slope)
    left, right = slope * F.embedding(ids, variance), same @ slope
    return left.flatten(1) @ right.flatten(1).mT


def _patches(tap: Tap, x: Tensor) -> Tensor:
    """What a convolution's kernel meets at every position, (pictures, groups, in, positions)."""
    defaults: tuple[Any, ...] = (None, None, None, 1, 0, 1, 1)
    given: tuple[Any, ...] = tap.node.args
    _, weight, _, stride, padding, dilation, groups = (*given, *defaults[len(given) :])
    kernel = list(weight.meta["val"].shape[2:])
    x = padded(x, _pads(padding, kernel, per_dimension(dilation, len(kernel))))
    met = torch.stack(windows(x, kernel, stride, 0, dilation, fill=0.0), 2)
    return met.flatten(3).flatten(1, 2).unflatten(1, (groups, -1))


def _pads(padding: Any, kernel: list[int], dilation: list[int]) -> list[int]:
    """As F.pad wants it: last dimension first, left and right."""
    pads: list[int] = []
    for index in reversed(range(len(kernel))):
        if padding == "same":
            whole = dilation[index] * (kernel[index] - 1)
            pads += [whole // 2, whole - whole // 2]
        else:
            width = 0 if padding == "valid" else per_dimension(padding, len(kernel))[index]
            pads += [width, width]
    return pads

"""Where random weights enter a graph, and what a change there does to the outputs of one example.

A tap is one call of an affine operation with a random weight or bias. With its input a and the derivative g
of an output in the call's result, the derivative of that output in the weight is g aᵀ, summed over positions
and calls; the posterior says what variance that makes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from kasuri.posteriors.base import Elementwise
from kasuri.prediction.moments.operations import CONVOLUTIONS, mean_of, variance_of
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
    taps = []
    for node in traced.graph.nodes:
        used = {place.name for place in node.all_input_nodes} & traced.random.keys()
        source: Any = None
        weight: Any = None
        bias: Any = None
        if node.target in (aten.linear.default, *CONVOLUTIONS):
            source, weight, bias = (*node.args[:3], None)[:3]
        elif node.target is aten.embedding.default:
            weight, source = node.args[:2]
        names = [place.name if place is not None else None for place in (weight, bias)]
        weight, bias = (name if name in used else None for name in names)
        for name in used - {weight, bias}:
            raise ValueError(
                f"predict_moments: {traced.random[name].name} is used by {node.target}, which cannot be "
                "linearised; use kasuri.predict with draws"
            )
        if used:
            taps.append(Tap(node, source, weight, bias))
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

    def add(name: str, value: Tensor) -> None:
        derivatives[name] = derivatives[name] + value if name in derivatives else value

    by_weight: dict[str, list[Use]] = {}
    for use in uses:
        if use.tap.bias is not None:
            add(use.tap.bias, use.slope.sum(1))
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
                add(name, random[name].without_padding(_derivative(use, random[name])))
            if squares is not None:
                options = use.tap.node.args[3:]
                noise = use.tap.op(squares, variances[name], None, *options)
                spread = use.slope.flatten(1)
                own = per_feature(use.tap, noise.unsqueeze(0)).flatten()
                rest = rest + (spread * own) @ spread.mT
    return derivatives, rest


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
    ids = torch.cat([use.source.reshape(-1) for use in uses])
    slope = torch.cat([use.slope for use in uses], 1)
    same = (ids.unsqueeze(0) == ids.unsqueeze(1)).to(slope)
    left, right = slope * F.embedding(ids, variance), same @ slope
    return left.flatten(1) @ right.flatten(1).mT


def _patches(tap: Tap, x: Tensor) -> Tensor:
    """What a convolution's kernel meets at every position, (pictures, groups, in, positions).

    By the same convolution with kernels that are 1 at one place each.
    """
    weight: Any = tap.node.args[1]
    _, channels, *kernel = weight.meta["val"].shape
    places = math.prod(kernel)
    ones = torch.eye(places, dtype=x.dtype, device=x.device).reshape(places, 1, *kernel)
    stride_padding_dilation = tap.node.args[3:6]
    met = tap.op(x.flatten(0, 1).unsqueeze(1), ones, None, *stride_padding_dilation)
    return met.flatten(2).unflatten(0, (x.shape[0], -1, channels)).flatten(2, 3)

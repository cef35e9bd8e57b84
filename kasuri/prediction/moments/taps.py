"""Where random weights enter a graph, and what a change there does to the output.

A tap is one call of an affine operation with a random weight or bias. With its input a and the derivative g
of an output in the call's result, the derivative of that output in the weight is g aᵀ, summed over positions
and calls; the posterior says what variance that makes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from kasuri.posteriors.base import Elementwise
from kasuri.prediction.moments.graph import Random, Traced
from kasuri.prediction.moments.pooling import padded

aten = torch.ops.aten
_CONV = {
    aten.conv1d.default: 1,
    aten.conv2d.default: 2,
    aten.conv1d.padding: 1,
    aten.conv2d.padding: 2,
}
Lookup = Callable[[fx.Node], Tensor | None]


@dataclass(frozen=True)
class Tap:
    """One call with a random weight or bias.

    Args:
        node: the call.
        source: the node of its input: activations, or the numbers of words.
        weight: name of its random weight, or None.
        bias: name of its random bias, or None.
    """

    node: fx.Node
    source: fx.Node
    weight: str | None
    bias: str | None

    @property
    def op(self) -> Any:
        """What is called."""
        return self.node.target


def find_taps(traced: Traced) -> list[Tap]:
    """Every call with a random weight; refuse uses that cannot be linearised."""
    taps, covered = [], set()
    for node in traced.graph.nodes:
        if node.target in (aten.linear.default, *_CONV):
            source, weight, bias = (*node.args[:3], None)[:3]
        elif node.target is aten.embedding.default:
            weight, source, bias = node.args[0], node.args[1], None
        else:
            continue
        names = [_name(one, traced) for one in (weight, bias)]
        if any(names):
            taps.append(Tap(node, source, *names))
            covered |= {(name, node) for name in names if name}
    for place in traced.graph.nodes:
        for user in place.users if place.name in traced.random else ():
            if (place.name, user) not in covered:
                raise ValueError(
                    f"{traced.random[place.name].name} is used by {user.target}, for which there is no "
                    "linearisation"
                )
    return taps


def _name(node: Any, traced: Traced) -> str | None:
    return node.name if isinstance(node, fx.Node) and node.name in traced.random else None


def covariance(
    traced: Traced,
    taps: Sequence[Tap],
    slopes: Sequence[Tensor],
    means: Lookup,
    variances: Lookup,
) -> Tensor:
    """Covariance of the outputs, (batch, O, O).

    Args:
        traced: the graph.
        taps: its taps.
        slopes: derivatives of the outputs at each tap, (O, batch, ...) with the batch moved to the front.
        means: of the value of a node.
        variances: of the value of a node, or None.
    """
    by_weight: dict[str, list[tuple[Tap, Tensor]]] = {}
    by_bias: dict[str, list[tuple[Tap, Tensor]]] = {}
    for tap, slope in zip(taps, slopes, strict=True):
        if tap.weight is not None:
            by_weight.setdefault(tap.weight, []).append((tap, slope))
        if tap.bias is not None:
            by_bias.setdefault(tap.bias, []).append((tap, slope))
    total: Any = 0.0
    for name, uses in by_bias.items():
        direction = sum(_per_feature(tap, slope).sum(2) for tap, slope in uses)
        total = total + _products(traced.random[name], direction)
    for name, uses in by_weight.items():
        total = total + _weight_part(traced, traced.random[name], uses, means, variances)
    return total


def _per_feature(tap: Tap, slope: Tensor) -> Tensor:
    """(O, batch, positions, features)."""
    if tap.op in _CONV:
        return slope.flatten(3).mT
    return slope.reshape(*slope.shape[:2], -1, slope.shape[-1])


def _products(random: Random, slope: Any) -> Tensor:
    """⟨F ᵀ j_c, Fᵀ j_d⟩ of derivatives j (O, batch, ...)."""
    flat = slope.reshape(-1, *random.posterior.shape)
    pulled = random.posterior.pull(flat).unflatten(0, slope.shape[:2])
    pulled = pulled.transpose(0, 1)
    return pulled @ pulled.mT


def _weight_part(
    traced: Traced, random: Random, uses: list[tuple[Tap, Tensor]], means: Lookup, variances: Lookup
) -> Tensor:
    if all(tap.op is aten.embedding.default for tap, _ in uses):
        return _embedded(random, uses, means)
    total: Any = 0.0
    matrix: Any = 0.0
    exact = isinstance(random.posterior, Elementwise) and len(uses) == 1
    for tap, slope in uses:
        inputs = _batch_first(traced, tap.source, means(tap.source), slope.shape[1])
        noise = variances(tap.source)
        slope_ = _per_feature(tap, slope)
        if tap.op is aten.embedding.default:  # of a matrix that other layers use as well
            matrix = matrix + _scattered(random, inputs, slope_)
            continue
        single = exact and tap.op is aten.linear.default and slope_.shape[2] == 1
        squares = inputs.square() if single else None
        if noise is not None:
            moved = _batch_first(traced, tap.source, noise, slope.shape[1])
            squares = moved if squares is None else squares + moved
        if squares is not None:  # noise that is independent from place to place
            own = tap.op(squares, random.variance().detach(), None, *tap.node.args[3:])
            own = _per_feature(tap, own.unsqueeze(0))[0]
            spread = slope_.transpose(0, 1).flatten(2)  # (batch, O, positions · features)
            total = total + (spread * own.flatten(1).unsqueeze(1)) @ spread.mT
        if not single:
            matrix = matrix + _derivative(tap, inputs, slope_)
    if isinstance(matrix, float):
        return total
    if random.padding is not None:  # the row that is not random
        rows = torch.arange(matrix.shape[-2], device=matrix.device) != random.padding
        matrix = matrix * rows.to(matrix).unsqueeze(-1)
    return total + _products(random, matrix)


def _scattered(random: Random, ids: Tensor, slope: Tensor) -> Tensor:
    """Derivative in the rows of an embedding, (O, batch, words, features)."""
    words = random.posterior.shape[-2]
    return F.one_hot(ids.reshape(ids.shape[0], -1), words).to(slope).mT @ slope


def _batch_first(traced: Traced, node: fx.Node, value: Any, batch: Any) -> Tensor:
    place = traced.places.get(node)
    return value.unsqueeze(0).expand(batch, *value.shape) if place is None else place.split(value)


def _derivative(tap: Tap, inputs: Tensor, slope: Tensor) -> Tensor:
    """Derivative in the weight as a matrix, (O, batch, *blocks, out, in)."""
    if tap.op is aten.linear.default:
        rows = inputs.reshape(inputs.shape[0], -1, inputs.shape[-1])
        return slope.mT @ rows
    patches, groups = _patches(tap, inputs)  # (batch, groups, in, positions)
    split = slope.mT.unflatten(2, (groups, -1))  # (O, batch, groups, out, positions)
    return split @ patches.mT


def _patches(tap: Tap, x: Tensor) -> tuple[Tensor, int]:
    """What a convolution's kernel meets at every position, and its number of groups."""
    dims = _CONV[tap.op]
    given: tuple[Any, ...] = tap.node.args
    _, weight, _, stride, padding, dilation, groups = (*given, *_DEFAULTS[len(given) :])
    kernel = list(weight.meta["val"].shape[2:])
    stride, dilation = (_spatial(one, dims) for one in (stride, dilation))
    pads = _pads(padding, kernel, dilation, dims)
    if dims == 1:
        x, kernel, stride, dilation = x.unsqueeze(-2), [1, *kernel], [1, *stride], [1, *dilation]
    x = padded(x, pads)
    down, across = (
        _met(x.shape[dim - 2], kernel[dim], stride[dim], dilation[dim], x.device) for dim in (0, 1)
    )  # (kernel, positions) each
    where = (down[:, None, :, None] * x.shape[-1] + across[None, :, None, :]).reshape(-1)
    found = x.flatten(2).index_select(2, where)
    positions = down.shape[1] * across.shape[1]
    inputs = x.shape[1] // groups * kernel[0] * kernel[1]
    return found.reshape(x.shape[0], groups, inputs, positions), groups


def _met(size: int, kernel: int, stride: int, dilation: int, device: torch.device) -> Tensor:
    """Which input each place of a kernel meets at each position, along one dimension."""
    positions = (size - dilation * (kernel - 1) - 1) // stride + 1
    starts = torch.arange(positions, device=device) * stride
    return torch.arange(kernel, device=device).unsqueeze(1) * dilation + starts


_DEFAULTS: tuple[Any, ...] = (None, None, None, 1, 0, 1, 1)


def _spatial(value: Any, dims: int) -> list[int]:
    value = [value] if isinstance(value, int) else list(value)
    return value * dims if len(value) == 1 else value


def _pads(padding: Any, kernel: list[int], dilation: list[int], dims: int) -> list[int]:
    """As F.pad wants it: last dimension first, left and right."""
    if padding == "valid":
        return [0, 0] * dims
    pads: list[int] = []
    for index in reversed(range(dims)):
        if padding == "same":
            whole = dilation[index] * (kernel[index] - 1)
            pads += [whole // 2, whole - whole // 2]
        else:
            pads += [_spatial(padding, dims)[index]] * 2
    return pads


def _embedded(random: Random, uses: list[tuple[Tap, Tensor]], means: Lookup) -> Tensor:
    """Rows of a table; a word met twice moves both places alike.

    Rows are taken as independent of each other, which they are unless the family covaries rows.
    """
    rows, slopes = [], []
    for tap, slope in uses:
        ids = means(tap.source)
        assert ids is not None
        rows.append(ids.reshape(ids.shape[0], -1))
        slopes.append(_per_feature(tap, slope))
    ids, slope = torch.cat(rows, 1), torch.cat(slopes, 2)
    same = (ids.unsqueeze(1) == ids.unsqueeze(2)).to(slope.dtype)  # (batch, places, places)
    own = F.embedding(ids, random.variance().detach())
    right = (same @ slope).transpose(0, 1).flatten(2)
    left = (slope * own).transpose(0, 1).flatten(2)
    return left @ right.mT

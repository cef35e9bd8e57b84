"""Rules: what one torch operation does to means and variances of independent normal numbers.

A rule gives mean and variance of the result, (op, *arguments) -> (mean, variance). Operations without a rule
are taken at the mean of their arguments, and the variance of what they give is unknown.
"""

import math
import operator
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics import gaussian_moments as gm

aten = torch.ops.aten
Call = Callable[..., Any]
_VIEWS = aten.view.default, aten._unsafe_view.default
_LOWEST = -1e30  # mean of a padded place: never the largest, and its square is finite in float64


class Gauss(NamedTuple):
    """Independent normal numbers; the variance is shaped like the mean."""

    mean: Tensor
    variance: Tensor


def apply(op: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation: a Gauss, or its value at the means if no variance is known."""
    # a view as a reshape: other strides than those of the traced network may come about
    op = aten.reshape.default if op in _VIEWS else op
    if op in _RULES and is_random(args):
        return _joined(*_RULES[op](op, *args, **kwargs))
    return op(*mean_of(args), **{key: mean_of(value) for key, value in kwargs.items()})


def mean_of(value: Any) -> Any:
    """The mean of a Gauss, also inside lists; anything else as it is."""
    if isinstance(value, Gauss):
        return value.mean
    return type(value)(map(mean_of, value)) if isinstance(value, list | tuple) else value


def is_random(value: Any) -> bool:
    """Whether a variance is known for it, or for something inside it."""
    if isinstance(value, Gauss):
        return True
    return isinstance(value, list | tuple) and any(map(is_random, value))


def variance_of(value: Any) -> Tensor | None:
    """The variance of a Gauss; None for what is certain."""
    return value.variance if isinstance(value, Gauss) else None


def known_variance(value: Any) -> Any:
    """The variance of an argument, zeros for what is certain."""
    if isinstance(value, Gauss):
        return value.variance
    return torch.zeros_like(value) if isinstance(value, Tensor) else 0.0


def _joined(mean: Any, variance: Any) -> Any:
    if variance is None:
        return mean
    if isinstance(mean, list | tuple):
        return [Gauss(*pair) for pair in zip(mean, variance, strict=True)]
    # variances smooth and are constants: no derivative goes through them
    return Gauss(mean, variance.detach())


def _moved(op: Call, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Operations that move numbers about move variances likewise."""

    def variances(value: Any) -> Any:
        if isinstance(value, Gauss):
            return value.variance
        return [known_variance(item) for item in value] if is_random(value) else value

    return op(*mean_of(args), **kwargs), op(*map(variances, args), **kwargs)


# arithmetic


def _added(op: Call, a: Any, b: Any, alpha: float = 1) -> tuple[Tensor, Tensor]:
    mean = op(mean_of(a), mean_of(b), alpha=alpha)
    return mean, (known_variance(a) + known_variance(b) * alpha**2).expand_as(mean)


def _multiplied(op: Call, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    (am, bm), (av, bv) = mean_of((a, b)), (variance_of(a), variance_of(b))
    if av is None or bv is None:
        return op(am, bm), bv * (am * am) if av is None else av * (bm * bm)
    return op(am, bm), am.square() * bv + bm.square() * av + av * bv


def _divided(op: Call, a: Any, b: Any) -> tuple[Tensor, Tensor | None]:
    """By numbers without noise; otherwise the variance is unknown."""
    return op(*mean_of((a, b))), None if is_random((b,)) else a.variance / (b * b)


def _averaged(
    op: Call, x: Gauss, dims: Any, keepdim: bool = False, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    number = math.prod(x.mean.shape[dim] for dim in dims)
    return op(x.mean, dims, keepdim, **kwargs), op(x.variance, dims, keepdim) / number


def _ops(name: str, overload: str = "default") -> list[Any]:
    """An operation in one and in two dimensions."""
    return [getattr(getattr(aten, name.format(dims)), overload) for dims in (1, 2)]


CONVOLUTIONS = frozenset({*_ops("conv{}d"), *_ops("conv{}d", "padding")})


def _bilinear(op: Call, x: Any, w: Any, *rest: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    """Sums of products of independent factors: Var Σ w x = Σ (w̄² + v_w) v_x + v_w x̄²."""
    with_bias = op in CONVOLUTIONS or op is aten.linear.default
    bias = rest[0] if with_bias and rest else None
    plain = (None, *rest[1:]) if with_bias else rest
    ones = [] if op is aten.linear.default else [1] * (mean_of(w).dim() - 2)
    (xm, wm), (xv, wv) = mean_of((x, w)), (variance_of(x), variance_of(w))

    def product(x: Tensor, w: Tensor) -> Tensor:
        return op(x, w, *plain, **kwargs)

    mean = product(xm, wm)
    if bias is not None:
        mean = mean + mean_of(bias).reshape(-1, *ones)
    parts = []
    if xv is not None:
        parts.append(product(xv, wm.square() if wv is None else wm.square() + wv))
    if wv is not None:
        parts.append(product(xm.square(), wv))
    if isinstance(bias, Gauss):
        parts.append(bias.variance.reshape(-1, *ones).expand_as(mean))
    return mean, sum(parts[1:], parts[0]) if parts else None


# activations


def _relu(op: Call, x: Gauss) -> tuple[Tensor, Tensor]:
    return gm.rectified(x.mean, x.variance)


def _leaky_relu(op: Call, x: Gauss, slope: float = 0.01) -> tuple[Tensor, Tensor]:
    return gm.rectified(x.mean, x.variance, slope)


def _smooth(function: Call) -> Call:
    def rule(op: Call, x: Gauss, *options: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return gm.smooth_moments(lambda z: function(z, *options, **kwargs), x.mean, x.variance)

    return rule


def _softmax(op: Call, x: Gauss, dim: int, *rest: Any) -> tuple[Tensor, Tensor]:
    """To first order."""
    probs = op(x.mean, dim, *rest)
    return probs, gm.softmax_variance(probs, x.variance, dim)


# layers


def _layer_norm(
    op: Call,
    x: Any,
    shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Statistics taken at the mean."""
    centre, weight, bias = mean_of((x, weight, bias))
    dims, spread = tuple(range(-len(shape), 0)), variance_of(x)
    gain = (centre.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    gain = gain * (1 if weight is None else weight)
    mean = (centre - centre.mean(dims, keepdim=True)) * gain + (0 if bias is None else bias)
    return mean, None if spread is None else spread * gain.square()


# pooling


def _per_dimension(value: Any, dims: int) -> list[int]:
    """A size for every dimension of the pictures."""
    value = [value] if isinstance(value, int) else list(value)
    return value * dims if len(value) == 1 else value


def _windows(
    x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, fill: float
) -> list[Tensor]:
    """The places of every window, one picture for each place of the kernel."""
    sizes, pads, gaps, steps = (
        _per_dimension(part, x.dim() - 2) for part in (kernel, padding, dilation, stride or kernel)
    )
    x = F.pad(x, [pad for pad in reversed(pads) for _ in range(2)], value=fill)
    counts = [
        (length - gap * (size - 1) - 1) // step + 1
        for length, size, gap, step in zip(x.shape[2:], sizes, gaps, steps, strict=True)
    ]

    def window(place: tuple[int, ...]) -> Tensor:
        rows = [
            slice(at * gap, at * gap + (count - 1) * step + 1, step)
            for at, gap, count, step in zip(place, gaps, counts, steps, strict=True)
        ]
        return x[:, :, *rows]

    return [window(place) for place in product(*map(range, sizes))]


def _max_pool(
    op: Call,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The largest of every window, by Clark's formula, pair by pair as in a tournament."""
    where = kernel, stride, padding, dilation
    if ceil:
        return op(x.mean, *where, ceil), None
    means = _windows(x.mean, *where, fill=_LOWEST)
    players = list(zip(means, _windows(x.variance, *where, fill=0.0), strict=True))
    while len(players) > 1:
        pairs = [(*a, *b) for a, b in zip(players[::2], players[1::2], strict=False)]
        left = players[len(pairs) * 2 :]
        won = [gm.larger(*pair) for pair in pairs]
        players = [(mean, spread.detach()) for mean, spread in won] + left
    return players[0]


def _avg_pool(op: Call, x: Gauss, kernel: Any, *options: Any) -> tuple[Tensor, Tensor]:
    number = math.prod(_per_dimension(kernel, x.mean.dim() - 2))
    return op(x.mean, kernel, *options), op(x.variance, kernel, *options) / number


def _adaptive(op: Call, x: Gauss, size: Any) -> tuple[Tensor, Tensor]:
    mean = op(x.mean, size)
    share = math.prod(mean.shape[2:]) / math.prod(x.mean.shape[2:])
    return mean, op(x.variance, size) * share


_MOVES = (
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.numpy_T.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.unbind.int,
    aten.stack.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.movedim.int,
    aten.flip.default,
    aten.to.dtype,
    aten.sum.dim_IntList,
    aten.embedding.default,
    aten.dropout.default,
    operator.getitem,
    aten.cat.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.select.int,
    aten.slice.Tensor,
)
_SMOOTH: dict[Any, Call] = {
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
    aten.gelu.default: F.gelu,
    aten.silu.default: F.silu,
    aten.elu.default: F.elu,
    aten.softplus.default: F.softplus,
    aten.exp.default: torch.exp,
}
_RULES: dict[Any, Call] = {
    **dict.fromkeys(_MOVES, _moved),
    aten.linear.default: _bilinear,
    **{op: _smooth(function) for op, function in _SMOOTH.items()},
    **dict.fromkeys(CONVOLUTIONS, _bilinear),
    **dict.fromkeys(_ops("max_pool{}d"), _max_pool),
    aten.layer_norm.default: _layer_norm,
    aten.matmul.default: _bilinear,
    aten.bmm.default: _bilinear,
    aten.mm.default: _bilinear,
    aten.relu.default: _relu,
    aten.leaky_relu.default: _leaky_relu,
    aten.add.Tensor: _added,
    aten.sub.Tensor: _added,
    aten.mul.Tensor: _multiplied,
    aten.div.Tensor: _divided,
    aten.mean.dim: _averaged,
    **dict.fromkeys(_ops("avg_pool{}d"), _avg_pool),
    **dict.fromkeys(_ops("adaptive_avg_pool{}d"), _adaptive),
    aten.softmax.int: _softmax,
}

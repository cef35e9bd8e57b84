"""Rules: what one torch operation does to means and variances of independent normal numbers.

A rule has two parts. `mean` gives the mean of the result from arguments whose variances may be known;
`variance` its variances. Operations without a rule are taken at the mean of their arguments, and
the variance of what they give is unknown.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kasuri.numerics import gaussian_moments as gm
from kasuri.prediction.moments.layers import (
    WITH_BIAS,
    Call,
    at_means,
    attention_mean,
    attention_variance,
    batch_norm_mean,
    batch_norm_variance,
    bilinear,
    known,
    layer_norm_variance,
    prelu_mean,
    prelu_variance,
    softmax_variance,
)
from kasuri.prediction.moments.pooling import avg_pool_variance, max_pool_mean, max_pool_variance
from kasuri.prediction.moments.values import Gauss, is_random, mean_of, variance_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Rule:
    """Mean and variance of one operation's result.

    Args:
        variance: (op, *args, **kwargs) -> variances.
        mean: likewise the mean.
        both: likewise (mean, variances), where they share work.
    """

    variance: Call | None
    mean: Call
    both: Call | None = None


def apply(op: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Mean of an operation's result, and its variance, None if that is unknown or 0."""
    op = _safe(op)
    rule = RULES.get(op)
    if rule is None or not any(is_random(one) for one in args):
        return at_means(op, *args, **kwargs), None
    if rule.both is not None:
        return rule.both(op, *args, **kwargs)
    assert rule.variance is not None
    return rule.mean(op, *args, **kwargs), rule.variance(op, *args, **kwargs)


def mean_only(op: Any, args: Any, kwargs: Any) -> Any:
    """Mean of an operation's result."""
    op = _safe(op)
    rule = RULES.get(op)
    return (at_means if rule is None else rule.mean)(op, *args, **kwargs)


def smooths(op: Any) -> bool:
    """Whether the mean of this operation's result depends on variances."""
    rule = RULES.get(op)
    return rule is not None and rule.mean is not at_means


def _safe(op: Any) -> Any:
    """A view as a reshape: other strides than those of the traced network may come about."""
    return aten.reshape.default if op is aten.view.default else op


def _moved(op: Call, *args: Any, **kwargs: Any) -> Any:
    """Operations that move numbers about move variances likewise."""
    moved = [_zeros_inside(one) for one in args]
    return op(*moved, **kwargs)


def _zeros_inside(value: Any) -> Any:
    if isinstance(value, list | tuple) and is_random(value):
        return [known(one) for one in value]
    return variance_of(value) if isinstance(value, Gauss) else value


def _added(op: Call, a: Any, b: Any, alpha: float = 1) -> Tensor:
    out = at_means(op, a, b, alpha=alpha)
    total: Any = None
    for value, factor in ((a, 1), (b, alpha)):
        if is_random(value):
            part = value.variance if factor == 1 else value.variance * factor**2
            total = part if total is None else total + part
    return total.expand_as(out)


def _multiplied(op: Call, a: Any, b: Any) -> Tensor:
    if not isinstance(b, Gauss):
        return a.variance * (b * b)
    if not isinstance(a, Gauss):
        return b.variance * (a * a)
    va, vb = known(a), known(b)
    return a.mean.square() * vb + b.mean.square() * va + va * vb


def _divided(op: Call, a: Any, b: Any) -> Tensor:
    """To first order in the noise of both, as if they were independent."""
    low = mean_of(b)
    found = known(a) / (low * low)
    if is_random(b):
        found = found + (mean_of(a) / (low * low)) ** 2 * known(b)
    return found


def _averaged(op: Call, x: Gauss, dims: Any, keepdim: bool = False, **kwargs: Any) -> Tensor:
    return op(known(x), dims, keepdim) / math.prod(x.mean.shape[dim] for dim in dims)


def _adaptive(op: Call, x: Gauss, size: Any) -> Tensor:
    out = op(x.mean, size)
    share = math.prod(out.shape[2:]) / math.prod(x.mean.shape[2:])
    return op(known(x), size) * share


def _smooth(function: Call) -> Rule:
    def mean(op: Call, x: Any, *options: Any, **kwargs: Any) -> Tensor:
        def call(z: Tensor) -> Tensor:
            return function(z, *options, **kwargs)

        return gm.smooth_mean(call, x.mean, x.variance) if is_random(x) else call(mean_of(x))

    def both(op: Call, x: Any, *options: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return gm.smooth_moments(lambda z: function(z, *options, **kwargs), x.mean, x.variance)

    return Rule(None, mean, both)


def _rectifier(default: float) -> Rule:
    def mean(op: Call, x: Any, slope: float = default) -> Tensor:
        if is_random(x):
            return gm.rectified_mean(x.mean, x.variance, slope)
        return at_means(op, x) if slope == default else at_means(op, x, slope)

    def variance(op: Call, x: Any, slope: float = default) -> Tensor:
        return gm.rectified_variance(x.mean, x.variance, slope)

    return Rule(variance, mean)


def _embedding(op: Call, w: Any, ids: Any, *rest: Any) -> Tensor:
    return F.embedding(ids, w.variance)


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
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.unbind.int,
    aten.cat.default,
    aten.stack.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.movedim.int,
    aten.flip.default,
    aten.to.dtype,
    aten.sum.dim_IntList,
    operator.getitem,
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


def _same(op: Call, x: Any, *rest: Any, **kwargs: Any) -> Any:
    return known(x)


_ADAPTIVE = (
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
)
_AVERAGES = (aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
_MAXIMA = (aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)

RULES: dict[Any, Rule] = {
    **{op: Rule(_moved, at_means) for op in _MOVES},
    **{op: Rule(bilinear, at_means) for op in WITH_BIAS},
    **{op: _smooth(function) for op, function in _SMOOTH.items()},
    aten.matmul.default: Rule(bilinear, at_means),
    aten.bmm.default: Rule(bilinear, at_means),
    aten.mm.default: Rule(bilinear, at_means),
    aten.relu.default: _rectifier(0.0),
    aten.leaky_relu.default: _rectifier(0.01),
    aten.prelu.default: Rule(prelu_variance, prelu_mean),
    aten.add.Tensor: Rule(_added, at_means),
    aten.sub.Tensor: Rule(_added, at_means),
    aten.mul.Tensor: Rule(_multiplied, at_means),
    aten.div.Tensor: Rule(_divided, at_means),
    aten.mean.dim: Rule(_averaged, at_means),
    **{op: Rule(_adaptive, at_means) for op in _ADAPTIVE},
    **{op: Rule(avg_pool_variance, at_means) for op in _AVERAGES},
    **{op: Rule(max_pool_variance, max_pool_mean) for op in _MAXIMA},
    aten._native_batch_norm_legit_no_training.default: Rule(batch_norm_variance, batch_norm_mean),
    aten.layer_norm.default: Rule(layer_norm_variance, at_means),
    aten.softmax.int: Rule(softmax_variance, at_means),
    aten.scaled_dot_product_attention.default: Rule(attention_variance, attention_mean),
    aten.embedding.default: Rule(_embedding, at_means),
    aten.dropout.default: Rule(_same, at_means),
}

"""What layers do to variances: sums of products, norms, attention."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics import gaussian_moments as gm
from kasuri.prediction.moments.values import Gauss, mean_of, variance_of

aten = torch.ops.aten
Call = Callable[..., Any]

WITH_BIAS = frozenset(
    {
        aten.linear.default,
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
        aten.conv1d.padding,
        aten.conv2d.padding,
        aten.conv3d.padding,
        aten.conv_transpose1d.default,
        aten.conv_transpose2d.input,
        aten.conv_transpose3d.input,
    }
)


def at_means(op: Call, *args: Any, **kwargs: Any) -> Any:
    """The operation at the means of its arguments."""
    return op(*(mean_of(one) for one in args), **{k: mean_of(v) for k, v in kwargs.items()})


def known(value: Any) -> Tensor:
    """The variance of an argument, zeros for what is certain."""
    variance = variance_of(value)
    return torch.zeros_like(mean_of(value)) if variance is None else variance


def bilinear(op: Call, x: Any, w: Any, *rest: Any, **kwargs: Any) -> Tensor:
    """Sums of products of independent factors: Var Σ w x = Σ (w̄² + v_w) v_x + v_w x̄²."""
    plain = (None, *rest[1:]) if op in WITH_BIAS and rest else rest
    total: Any = None
    (xm, xv), (wm, wv) = ((mean_of(one), variance_of(one)) for one in (x, w))
    if xv is not None:
        total = op(xv, wm.square() if wv is None else wm.square() + wv, *plain, **kwargs)
    if wv is not None:
        part = op(xm.square(), wv, *plain, **kwargs)
        total = part if total is None else total + part
    bias = variance_of(rest[0]) if op in WITH_BIAS and rest else None
    if bias is not None:
        bias = bias if op is aten.linear.default else bias.reshape(-1, *[1] * (wm.dim() - 2))
        if total is None:
            total = torch.zeros_like(at_means(op, x, w, *rest, **kwargs))
        total = total + bias
    return total


def _batch_norm_terms(x: Any, *rest: Any) -> tuple[Tensor, Tensor]:
    weight, bias, mean, variance, _, eps = (mean_of(one) for one in rest)
    gain = (variance + eps).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * gain
    shape = [-1, *[1] * (mean_of(x).dim() - 2)]
    return gain.reshape(shape), shift.reshape(shape)


def batch_norm_mean(op: Call, x: Any, *rest: Any) -> tuple[Tensor]:
    """With the statistics of training: a shift and a gain for each channel."""
    gain, shift = _batch_norm_terms(x, *rest)
    return (mean_of(x) * gain + shift,)


def batch_norm_variance(op: Call, x: Any, *rest: Any) -> tuple[Tensor]:
    """Gain² times the variance."""
    return (known(x) * _batch_norm_terms(x, *rest)[0].square(),)


def layer_norm_variance(
    op: Call, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """Statistics taken at the mean."""
    dims = tuple(range(-len(shape), 0))
    gain = (x.mean.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    weight = mean_of(weight)
    return known(x) * (gain if weight is None else gain * weight).square()


def _slopes(x: Any, slope: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance of the slopes of PReLU, one for all or one for each channel, beside its input."""
    ones = [1] * (mean_of(x).dim() - 2)
    mean, variance = mean_of(slope).reshape(-1, *ones), known(slope).reshape(-1, *ones)
    return mean, variance


def prelu_mean(op: Call, x: Any, slope: Any) -> Tensor:
    """E max(x, 0) - a E max(-x, 0)."""
    if variance_of(x) is None:
        return at_means(op, x, slope)
    mean, variance = mean_of(x), known(x)
    return gm.rectified_mean(mean, variance) - _slopes(x, slope)[0] * gm.rectified_mean(
        -mean, variance
    )


def prelu_variance(op: Call, x: Any, slope: Any) -> Tensor:
    """Exact for a normal input and an independent slope: E y² = E max(x, 0)² + E a² E max(-x, 0)²."""
    mean, variance = mean_of(x), known(x)
    a, noise = _slopes(x, slope)
    up, down = (
        gm.rectified_variance(one, variance) + gm.rectified_mean(one, variance).square()
        for one in (mean, -mean)
    )
    first = prelu_mean(op, x, slope)
    return (up + (a.square() + noise) * down - first.square()).clamp(min=0)


def softmax_variance(op: Call, x: Any, dim: int, *rest: Any) -> Tensor:
    """To first order."""
    return gm.softmax_variance(op(x.mean, dim, *rest), known(x), dim)


def _attention_weights(
    q: Any,
    k: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Tensor:
    """Softmax of scaled products, spelt out: the fused form has no backward pass that can be exported.

    Arguments are called as torch calls them, so that they may be given by name.
    """
    query, key = mean_of(q), mean_of(k)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores, mask = query @ key.mT * scale, attn_mask
    if is_causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        mask = ones.tril()
    if mask is not None:
        mask = mean_of(mask)
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)


def attention_mean(op: Call, q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Tensor:
    """Weights at their mean times values at theirs."""
    return _attention_weights(q, k, *rest, **named) @ mean_of(v)


def attention_variance(op: Call, q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Tensor:
    """Of values and, through the softmax to first order, of scores."""
    weights = _attention_weights(q, k, *rest, **named)
    scale = named.get("scale") or 1 / math.sqrt(mean_of(q).shape[-1])
    turned = Gauss(mean_of(k).mT, known(k).mT)
    scores = bilinear(torch.matmul, Gauss(mean_of(q), known(q)), turned) * scale**2
    spread = gm.softmax_variance(weights, scores, -1)
    return bilinear(torch.matmul, Gauss(weights, spread), Gauss(mean_of(v), known(v)))

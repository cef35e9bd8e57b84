"""Functions of a von Mises-Fisher distribution's κ in float64, with derivatives that are theirs.

Element by element: for vmap a batch is more elements, and every operation is called once for all members.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kasuri.numerics.fused import members
from kasuri.numerics.quadrature import gauss_legendre
from kasuri.posteriors.radial.vmf_series import terms

NEAR = 0.5  # |log(κ_p/κ_q)| below which the KL is integrated; differences are accurate beyond
NODES, WEIGHTS = gauss_legendre(8)  # error 1e-15 of that integral

Function = Callable[[Tensor], Tensor]


def ratio(d: int) -> Function:
    """A(κ)."""
    return exactly(lambda k: k * terms(k, d).spread, slope(d))


def complement(d: int) -> Function:
    """1 - A(κ)."""

    def value(kappa: Tensor) -> Tensor:
        found = terms(kappa, d)
        # A' = 1 - A² - (d-1) A/κ, solved for 1 - A: nothing cancels
        return (found.slope + (d - 1) * found.spread) / (1 + kappa * found.spread)

    return exactly(value, lambda k: -slope(d)(k))


def slope(d: int) -> Function:
    """A'(κ); its plain derivative is accurate."""
    return lambda k: terms(k, d).slope


def exactly(value: Function, derivative: Function) -> Function:
    """`value` with a derivative of its own; while compiling, the plain function.

    torch.compile cannot trace such functions; the plain derivatives have errors of 1e-15 κ.
    """

    def function(kappa: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return value(kappa)
        return _Exactly.apply(kappa, value, derivative)

    return function


class _Exactly(torch.autograd.Function):
    """Element by element: for vmap a batch is more elements, and every operation is called once."""

    @staticmethod
    def forward(kappa: Tensor, value: Function, derivative: Function) -> Tensor:
        return value(kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kappa, _, ctx.derivative = inputs
        ctx.save_for_backward(kappa)
        ctx.save_for_forward(kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        return grad * ctx.derivative(kappa), None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        kappa: Tensor,
        value: Function,
        derivative: Function,
    ) -> tuple[Tensor, int | None]:
        found: Tensor = _Exactly.apply(kappa, value, derivative)
        return found, dims[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        (kappa,) = ctx.saved_tensors
        return tangent * ctx.derivative(kappa)


def bregman(q: Tensor, p: Tensor, d: int) -> Tensor:
    """ℓ(p) - ℓ(q) - (p - q) ℓ'(q), to 1e-11 relative; q and p have the same shape.

    Examples:
        >>> one = torch.ones((), dtype=torch.float64)
        >>> bregman(one, one, 3)
        tensor(0., dtype=torch.float64)
    """
    if torch.compiler.is_compiling():
        return _bregman(q, p, d)
    found: Tensor = _Bregman.apply(q, p, d)
    return found


class _Bregman(torch.autograd.Function):
    """`_bregman` with its derivatives (q - p) A'(q) and A(p) - A(q), element by element."""

    @staticmethod
    def forward(q: Tensor, p: Tensor, d: int) -> Tensor:
        return _bregman(q, p, d)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, p, ctx.d = inputs
        ctx.save_for_backward(q, p)
        ctx.save_for_forward(q, p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        q, p = ctx.saved_tensors
        first, second = ctx.needs_input_grad[:2]
        return (
            grad * (q - p) * slope(ctx.d)(q) if first else None,
            grad * _change(q, p, ctx.d) if second else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], q: Tensor, p: Tensor, d: int
    ) -> tuple[Tensor, int]:
        found: Tensor = _Bregman.apply(*members((q, p), dims, info.batch_size), d)
        return found, 0

    @staticmethod
    def jvp(ctx: Any, along_q: Tensor | None, along_p: Tensor | None, _: None) -> Tensor:
        q, p = ctx.saved_tensors
        found = torch.zeros_like(q)
        if along_q is not None:
            found = found + along_q * (q - p) * slope(ctx.d)(q)
        return found if along_p is None else found + along_p * _change(q, p, ctx.d)


def _change(q: Tensor, p: Tensor, d: int) -> Tensor:
    """A(p) - A(q), accurate also where both are close to 1 or to each other."""
    both = torch.stack((q, p))
    ratios, complements = ratio(d)(both), complement(d)(both)
    apart = torch.where(ratios[0] > 0.5, complements[0] - complements[1], ratios[1] - ratios[0])
    near, log, t, _, weights = _between(q, p)
    return torch.where(near, (t * slope(d)(t) * log) @ weights, apart)


def _bregman(q: Tensor, p: Tensor, d: int) -> Tensor:
    """ℓ(p) - ℓ(q) - (p - q) ℓ'(q): differences, or ∫ (p - t) ℓ''(t) dt where they are close."""
    both = torch.stack((q, p))
    found = terms(both, d)
    ratios, divergences = both * found.spread, found.divergence
    complements = (found.slope + (d - 1) * found.spread) / (1 + ratios)
    change = torch.where(ratios[0] > 0.5, complements[0] - complements[1], ratios[1] - ratios[0])
    apart = divergences[0] - divergences[1] + p * change
    near, log, t, nodes, weights = _between(q, p)
    inside = t.square() * torch.expm1((1 - nodes) * log) * slope(d)(t)
    return torch.where(near, (inside * log) @ weights, apart)


def _between(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where q and p are close, log(p/q) (..., 1), places between them (..., n), nodes and weights (n).

    The places are t = q e^{uL}, L = log(p/q): every factor of an integrand is of one sign and smooth in u.
    """
    relative = (p - q) / q.clamp(min=1e-300)
    near = (relative > math.expm1(-NEAR)) & (relative < math.expm1(NEAR)) & (q > 0)
    start = torch.where(near, q, 1.0).unsqueeze(-1)
    log = torch.where(near, relative, 0.0).log1p().unsqueeze(-1)
    nodes, weights = (torch.tensor(one, dtype=q.dtype, device=q.device) for one in (NODES, WEIGHTS))
    return near, log, start * torch.exp(nodes * log), nodes, weights

"""Draws of vectors with a random length and a von Mises-Fisher direction, in few sweeps over them.

With noise g, μ = loc/‖loc‖ and the cosine ω a vector is r (ω μ + √(1-ω²) τ), τ = (g - (gᵀμ) μ) over its
length: in every row a sum a · loc + b · g. Written out, that takes a dozen sweeps over memory
forwards and as many backwards, and each of them a call for every operation of a vmap; as one autograd
node it takes a few.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.fused import members
from kasuri.numerics.torch_internals import batched_apart, eager
from kasuri.posteriors.radial import vmf_sampling
from kasuri.posteriors.radial.vmf_slope import cosine_slope, cosine_slope_of_single
from kasuri.streams import normal_like, uniform


def draw(loc: Tensor, kappa: Tensor, radius: Tensor) -> Tensor:
    """Vectors radius · x with x ~ vMF(loc / ‖loc‖, κ), (..., d).

    Gradients are those of `vmf_sampling.sample`.

    Args:
        loc: (..., d) directions of any length.
        kappa: (...) concentrations in float64, or one for several rows.
        radius: (...) lengths in float64.

    Examples:
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> torch.allclose(draw(torch.randn(2, 9), one, 3 * one).norm(dim=-1), torch.tensor(3.0))
        True
    """
    if not batched_apart() or loc.dtype not in (torch.float32, torch.float64):
        directions = vmf_sampling.sample(F.normalize(loc, dim=-1), kappa)
        return radius.to(loc.dtype).unsqueeze(-1) * directions
    # a random number is batched wherever draws are to differ, whether parameters are batched or not
    token = radius.detach() if eager() else uniform((), device=loc.device)
    rows = loc.dim() - 1
    kappa, radius = (
        one.reshape((*[1] * (rows - one.dim()), *one.shape)) for one in (kappa, radius)
    )
    drawn: Tensor = _Draw.apply(loc, kappa, radius, token)[0]
    return drawn


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, (..., 1)."""
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


class _Draw(torch.autograd.Function):
    """A draw, and what its derivatives are made of."""

    @staticmethod
    def forward(loc: Tensor, kappa: Tensor, radius: Tensor, token: Tensor) -> tuple[Tensor, ...]:
        d, dtype = loc.shape[-1], loc.dtype
        gap = vmf_sampling.accepted_gap(kappa.expand(loc.shape[:-1]), d)
        if d < vmf_sampling.SMALL:
            loc = loc.double()
        noise = normal_like(loc)
        square = _dots(loc, loc).clamp_(min=1e-24)
        if d < vmf_sampling.SMALL:  # where next to nothing may be left of it
            noise.addcmul_(loc, _dots(loc, noise) / square, value=-1)
        along = _dots(loc, noise)
        across = (_dots(noise, noise) - along * along / square).sqrt_()
        cosine, sine, r = _scales(gap, radius, loc)
        b = sine / across
        a = cosine / square.sqrt() - b * along / square
        drawn = torch.mul(loc, r * a).addcmul_(noise, r * b)
        return drawn.to(dtype), noise, gap, square, along, across

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:3], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        loc, kappa, radius, noise, gap, square, along, across = ctx.saved_tensors
        wide = loc.to(noise.dtype)
        grad = grad.to(noise.dtype)
        cosine, sine, r = _scales(gap, radius, wide)
        p, q = _dots(grad, wide), _dots(grad, noise)
        length = square.sqrt()
        towards = (q - along / square * p) / across  # of the gradient, along τ
        of_radius = cosine / length * p + sine * towards
        of_cosine = (r * (p / length - cosine / sine * towards)).squeeze(-1).double()
        # a rotation takes μ along: r (ω G - √(1-ω²) (Gᵀμ) τ), projected, and over the length of loc
        turned = -r * sine / across * p / square
        kept = r * cosine / length
        of_loc = torch.mul(grad, kept).addcmul_(noise, turned)
        of_loc.addcmul_(wide, -(kept * p + turned * along) / square)
        single = loc.dtype == torch.float32
        slope = (cosine_slope_of_single if single else cosine_slope)(gap, kappa, loc.shape[-1])
        return (
            of_loc.to(loc.dtype),
            (of_cosine * slope).sum_to_size(kappa.shape),
            of_radius.squeeze(-1).double().sum_to_size(radius.shape),
            None,
        )

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        token = inputs[3] if dims[3] is None else inputs[3].select(dims[3], 0)
        found = _Draw.apply(*members(inputs[:3], dims, info.batch_size), token)
        return found, (0,) * len(found)


def _scales(gap: Tensor, radius: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine, sine and length of every row, (..., 1), in the precision of the draw."""
    sine = (gap * (2 - gap)).clamp(min=1e-300).sqrt()
    cosine, sine, radius = (one.to(like.dtype).unsqueeze(-1) for one in (1 - gap, sine, radius))
    return cosine, sine, radius

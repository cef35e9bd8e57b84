"""Draws of vectors with a random length and a von Mises-Fisher direction, in few sweeps over them.

With noise g, μ = loc/‖loc‖ and the cosine ω a vector is r (ω μ + √(1-ω²) τ), τ = (g - (gᵀμ) μ) over its
length: in every row a sum a · loc + b · g. Written out, that takes a dozen sweeps over memory
forwards and as many backwards; as one autograd node it takes a few.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.numerics import vmf_sampling
from weft.numerics.fused import eager


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
    d = loc.shape[-1]
    if not eager() or d < vmf_sampling.SMALL or loc.dtype not in (torch.float32, torch.float64):
        directions = vmf_sampling.sample(F.normalize(loc, dim=-1), kappa)
        return radius.to(loc.dtype).unsqueeze(-1) * directions
    cosine = 1 - vmf_sampling.sample_gap(kappa, d, loc.shape[:-1])
    return _Draw.apply(loc, cosine, radius)


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, (..., 1)."""
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loc: Tensor, cosine: Tensor, radius: Tensor) -> Tensor:
        noise = torch.randn_like(loc)
        square, along = _dots(loc, loc).clamp_(min=1e-24), _dots(loc, noise)
        across = (_dots(noise, noise) - along * along / square).sqrt_()
        gap = 1 - cosine
        sine = (gap * (1 + cosine)).clamp(min=1e-300).sqrt()
        cosine, sine, r = (one.to(loc.dtype).unsqueeze(-1) for one in (cosine, sine, radius))
        b = sine / across
        a = cosine / square.sqrt() - b * along / square
        ctx.save_for_backward(loc, noise, square, along, across, cosine, sine, r, a, b)
        return torch.mul(loc, r * a).addcmul_(noise, r * b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loc, noise, square, along, across, cosine, sine, r, a, b = ctx.saved_tensors
        p, q = _dots(grad, loc), _dots(grad, noise)
        length = square.sqrt()
        towards = (q - along / square * p) / across  # of the gradient, along τ
        cosine_grad = r * (p / length - cosine / sine * towards)
        # a rotation takes μ along: r (ω G - √(1-ω²) (Gᵀμ) τ), projected, and over the length of loc
        turned = -r * b * p / square
        kept = r * cosine / length
        loc_grad = torch.mul(grad, kept).addcmul_(noise, turned)
        loc_grad.addcmul_(loc, -(kept * p + turned * along) / square)
        return loc_grad, cosine_grad.squeeze(-1).double(), (a * p + b * q).squeeze(-1).double()

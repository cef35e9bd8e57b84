"""KL between von Mises-Fisher distributions as training needs it: one evaluation of the series.

KL = κ A(κ) - ℓ(κ) + ℓ(κ_p) - κ_p cos A(κ), whose derivatives are (κ - κ_p cos) A'(κ) in κ and -κ_p A(κ) in
the cosine. Its error is relative to these terms; `von_mises_fisher.kl` is exact relative to a small KL
as well, and takes many times as long.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kasuri.numerics.fused import members
from kasuri.numerics.torch_internals import batched_at_most
from kasuri.posteriors.radial import von_mises_fisher as vmf
from kasuri.posteriors.radial.vmf_series import COARSE, LOWEST, terms


def divergence(kappa: Tensor, cosine: Tensor, prior: float, d: int, single: bool = False) -> Tensor:
    """KL(vMF(μ, κ) ‖ vMF(μ_p, prior)), with first derivatives.

    Args:
        kappa: (...) concentrations in float64.
        cosine: (...) μᵀμ_p in float64; both broadcast.
        prior: concentration of the prior, 0 for the uniform distribution.
        d: dimension of the space around the sphere.
        single: whether single precision is enough: fewer operations in fewer than 30 dimensions.

    Examples:
        >>> one = torch.ones((), dtype=torch.float64)
        >>> divergence(one, one, 0.0, 3), divergence(one, one, 1.0, 3).abs() < 1e-15
        (tensor(0.1516, dtype=torch.float64), tensor(True))
    """
    if batched_at_most():
        lowest = COARSE if single else LOWEST
        both = torch.broadcast_tensors(kappa, cosine)
        found: Tensor = _Divergence.apply(*both, prior, d, lowest)[0]
        return found
    total = vmf.divergence_from_uniform(kappa, d)
    if prior == 0:
        return total
    constant = vmf.ell(torch.full_like(kappa, prior), d)
    return total + constant - prior * cosine * vmf.mean_resultant(kappa, d)


@lru_cache(maxsize=1024)
def _ell(prior: float, d: int) -> float:
    return float(vmf.ell(torch.tensor(prior, dtype=torch.float64), d))


class _Divergence(torch.autograd.Function):
    """The KL, and what its derivatives are made of."""

    @staticmethod
    def forward(
        kappa: Tensor, cosine: Tensor, prior: float, d: int, lowest: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = terms(kappa, d, lowest)
        resultant = kappa * found.spread
        value = found.divergence + _ell(prior, d) - prior * cosine * resultant
        return value, resultant, found.slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        kappa, cosine, ctx.prior, *_ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(kappa, cosine, *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        kappa, cosine, resultant, slope = ctx.saved_tensors
        return (
            grad * (kappa - ctx.prior * cosine) * slope,
            -ctx.prior * grad * resultant,
            None,
            None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        kappa: Tensor,
        cosine: Tensor,
        prior: float,
        d: int,
        lowest: float,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        each = members((kappa, cosine), dims, info.batch_size)
        return _Divergence.apply(*each, prior, d, lowest), (0, 0, 0)

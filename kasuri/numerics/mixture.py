"""Equal mixtures over draws: distribution function, and quantiles by bisection.

The components are normals, or Student-ts with 2a degrees of freedom, where `concentration` is a. In all
functions `means` (S, ...) are their centres, `scale` is (...), common to all, or (S, ...), one each, and
`concentration` is () or of the last dimension, None for normals.
"""

import math

import torch
from torch import Tensor

from kasuri.numerics.gamma import normals_of_student_t, student_t_cdf

_SQRT_TWO = math.sqrt(2)


def mixture_cdf(
    y: Tensor, means: Tensor, scale: Tensor, concentration: Tensor | None = None
) -> Tensor:
    """(1/S) Σ_s F((y - means_s)/scale_s), F that of a standard normal or Student-t."""
    z = (y - means) / scale
    probabilities = (
        torch.special.ndtr(z) if concentration is None else student_t_cdf(z, concentration)
    )
    return probabilities.mean(0)


def mixture_quantile(
    means: Tensor, scale: Tensor, probability: float, concentration: Tensor | None = None
) -> Tensor:
    """The y with `mixture_cdf(y, ...)` = probability, to the precision of the range of components.

    Examples:
        >>> mixture_quantile(torch.zeros(3, 1), torch.ones(1), 0.975)
        tensor([1.9600])
    """
    # in double precision: in single 2p - 1 is 1 for p above 1 - 3e-8, and the reach infinite
    tail = torch.erfinv(torch.tensor(2 * probability - 1.0, dtype=torch.float64)).abs()
    reach = scale * (_SQRT_TWO * float(tail) + 1)
    if concentration is not None:
        reach = reach * normals_of_student_t(concentration)[0].amax(0).to(reach)
    low, high = (means - reach).amin(0), (means + reach).amax(0)
    for _ in range(2 - round(math.log2(torch.finfo(low.dtype).eps))):
        middle = (low + high) / 2
        below = mixture_cdf(middle, means, scale, concentration) < probability
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2

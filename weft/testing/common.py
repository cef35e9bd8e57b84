"""What the laws are tested on."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from weft.posteriors.base import Family, Posterior

Covariance = Callable[[Posterior], Tensor]
Law = Callable[[Family], None]
SHAPES = ((3, 4), (2, 3, 4))
DRAWS = 20_000
ERRORS = 6.0  # standard errors allowed


def randomised(
    family: Family, shape: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> Posterior:
    """A posterior of this shape whose parameters are all moved by noise of size ½."""
    posterior = family(torch.randn(shape, dtype=dtype))
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
    return posterior


def random_posteriors(family: Family) -> Iterator[Posterior]:
    """One without and one with blocks."""
    for shape in SHAPES:
        yield randomised(family, shape)


def is_degenerate(posterior: Posterior) -> bool:
    """A point estimate: it has no density, so laws about its KL do not apply."""
    return bool((posterior.variance == 0).all())

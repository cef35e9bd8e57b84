"""What the laws are tested on."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kasuri.posteriors.base import Family, Located, Posterior
from kasuri.posteriors.radial.prior import RadialPrior
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal, Normal

Covariance = Callable[[Posterior], Tensor]
Law = Callable[[Family], None]
SHAPES = ((3, 4), (2, 3, 4))
DRAWS = 10_000
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


def has_density(posterior: Posterior) -> bool:
    """Whether the weights have a density; a hierarchical posterior answers `entropy` with a TypeError."""
    try:
        posterior.entropy()
    except TypeError:
        return False
    return True


def priors_for(posterior: Posterior) -> tuple[Prior, ...]:
    """Priors to test with: normal ones, or those of what a hierarchical posterior is made of."""
    if has_density(posterior):
        learned = [Normal(0.5, learn=how) for how in ("closed form", "gradient")]
        return Normal(0.7), HeNormal(), *learned
    return RadialPrior(0.5), RadialPrior(mean="uniform")


def equal_for(posterior: Posterior, a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, if the mean is a parameter; else up to rounding, since the mean is computed."""
    if isinstance(posterior, Located):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def is_degenerate(posterior: Posterior) -> bool:
    """A point estimate: it has no density, so laws about its KL do not apply."""
    return bool((posterior.variance == 0).all())

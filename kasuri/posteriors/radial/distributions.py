"""Distributions that torch.distributions lacks, for use on their own."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.radial import vmf_sampling
from kasuri.posteriors.radial import von_mises_fisher as vmf


class _Sphere(constraints.Constraint):
    """Vectors of length 1, up to rounding."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        eps = torch.finfo(vmf.real_type(value)).eps
        excess = torch.linalg.vector_norm(value.double(), dim=-1) - 1
        return excess.abs() < max(1e-6, 10 * eps * value.shape[-1] ** 0.5)


sphere = _Sphere()


class VonMisesFisher(Distribution):
    """Directions around a mean direction: density C_d(κ) exp(κ locᵀx) on the unit sphere of R^d.

    A `concentration` κ of 0 is the uniform distribution. `rsample` has first derivatives in both parameters,
    unbiased for any function of the draws (give `loc` as normalize(...), so that it stays on the sphere).
    Everything is computed in float64 and returned in the type of the parameters; d may be 2 or
    thousands, the concentration anything from 0 to 1e5 and beyond.

    Args:
        loc: (*batch, d) mean directions, of length 1.
        concentration: (*batch) how closely draws keep to them; both broadcast.
        validate_args: whether to check parameters and values. The default is that of all distributions,
            except while compiling and inside vmap and grad, where values cannot be looked at.

    Examples:
        >>> q = VonMisesFisher(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(2.0))
        >>> q.mean
        tensor([0.0000, 0.0000, 0.5373])
        >>> q.rsample((5,)).shape
        torch.Size([5, 3])
        >>> uniform = VonMisesFisher(q.loc, 0.0)
        >>> torch.distributions.kl_divergence(q, uniform), uniform.entropy() - q.entropy()
        (tensor(0.4794), tensor(0.4794))
    """

    arg_constraints = {  # noqa: RUF012
        "loc": sphere,
        "concentration": constraints.half_open_interval(0, math.inf),
    }
    support = sphere
    has_rsample = True

    def __init__(
        self, loc: Tensor, concentration: Tensor | float, validate_args: bool | None = None
    ) -> None:
        loc = torch.as_tensor(loc)
        vmf.check_dimension(loc.shape[-1] if loc.dim() else 1)
        loc = loc.to(vmf.real_type(loc))
        kappa = torch.as_tensor(concentration, device=loc.device)
        if not (isinstance(concentration, Tensor) and kappa.is_floating_point()):
            kappa = kappa.to(loc.dtype)
        batch = torch.broadcast_shapes(loc.shape[:-1], kappa.shape)
        self.loc = loc.expand(*batch, loc.shape[-1])
        self.concentration = kappa.expand(batch)
        if validate_args is None and not eager():
            validate_args = False
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "VonMisesFisher":
        new: VonMisesFisher = self._get_checked_instance(VonMisesFisher, _instance)
        batch = torch.Size(batch_shape)
        new.loc = self.loc.expand(batch + self.event_shape)
        new.concentration = self.concentration.expand(batch)
        super(VonMisesFisher, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """E[x] = A(κ) loc, (*batch, d)."""
        return vmf.terms(self.concentration, self._d).resultant.unsqueeze(-1) * self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Of each component, (*batch, d): the diagonal of A' μμᵀ + (A/κ) (I - μμᵀ)."""
        of = vmf.terms(self.concentration.unsqueeze(-1), self._d)
        return of.spread + (of.slope - of.spread) * self.loc.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws (*sample_shape, *batch, d) with implicit gradients."""
        return vmf_sampling.sample(self.loc, self.concentration, tuple(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at unit vectors (..., d), with respect to the surface of the sphere."""
        if self._validate_args and eager():
            self._validate_sample(value)
        kappa = self.concentration.double()
        # κ cos - ℓ is small beside its terms: differences before rounding
        cosine = (self.loc.double() * value.double()).sum(-1)
        result = kappa * cosine - vmf.terms(kappa, self._d).ell - vmf.log_surface(self._d)
        return result.to(torch.promote_types(self.concentration.dtype, value.dtype))

    def entropy(self) -> Tensor:
        """Differential entropy with respect to the surface of the sphere, (*batch)."""
        return vmf.entropy(self.concentration, self._d)

    @property
    def _d(self) -> int:
        return self.event_shape[0]


@register_kl(VonMisesFisher, VonMisesFisher)  # type: ignore[untyped-decorator]
def _kl(q: VonMisesFisher, p: VonMisesFisher) -> Tensor:
    d, other = q.event_shape[0], p.event_shape[0]
    if d != other:
        raise ValueError(
            f"a KL between spheres of R^{d} and R^{other}: the dimension must be the same"
        )
    # of unit vectors this is 1 - cosine, and exactly 0 where they are the same
    gap = (q.loc.double() - p.loc.double()).square().sum(-1) / 2
    result = vmf.kl(q.concentration, p.concentration, d, gap)
    return result.to(torch.promote_types(q.concentration.dtype, p.concentration.dtype))

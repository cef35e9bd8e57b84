"""Distributions that torch.distributions lacks, for use on their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from kasuri.checks import is_number
from kasuri.numerics.torch_internals import eager
from kasuri.posteriors.radial import vmf_sampling
from kasuri.posteriors.radial import von_mises_fisher as vmf


class _Sphere(constraints.Constraint):
    """Vectors of length 1, up to rounding."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Whether each of the vectors (..., d) has length 1."""
        value = value if value.is_floating_point() else value.double()
        rounding = 10 * torch.finfo(value.dtype).eps * value.shape[-1] ** 0.5
        return _excess(value) < max(1e-6, rounding)


sphere = _Sphere()


class VonMisesFisher(Distribution):
    """Directions around a mean direction: density C_d(κ) exp(κ locᵀx) on the unit sphere of R^d.

    A `concentration` κ of 0 is the uniform distribution. `rsample` has gradients in both parameters, unbiased
    for any function of the draws (give `loc` as normalize(...), so that it stays on the sphere).
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

    arg_constraints = {"loc": sphere, "concentration": constraints.nonnegative}  # noqa: RUF012
    support = sphere
    has_rsample = True

    def __init__(
        self, loc: Tensor, concentration: Tensor | float, validate_args: bool | None = None
    ) -> None:
        if not isinstance(loc, Tensor):
            raise TypeError(f"loc={loc!r}: mean directions are a tensor, torch.tensor({loc!r})")
        if loc.dim() == 0:
            raise ValueError(
                "loc is a single number, not a direction: give a vector of length 1 and d >= 2 components"
            )
        vmf.check_dimension(loc.shape[-1])
        loc = loc if loc.is_floating_point() else loc.to(torch.get_default_dtype())
        if not isinstance(concentration, Tensor):
            if not is_number(concentration):
                raise TypeError(f"concentration={concentration!r}: a number or a tensor of them")
            concentration = torch.full((), concentration, dtype=loc.dtype, device=loc.device)
        elif not concentration.is_floating_point():
            concentration = concentration.to(loc.dtype)
        batch = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
        self.loc = loc.expand(*batch, loc.shape[-1])
        self.concentration = concentration.expand(batch)
        if validate_args is None and not eager():
            validate_args = False
        if self._validate_args if validate_args is None else validate_args:
            _check(loc, concentration)
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "VonMisesFisher":
        """The same distribution with another batch shape."""
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
        return vmf.mean_resultant(self.concentration, self._d).unsqueeze(-1) * self.loc

    @property
    def mode(self) -> Tensor:
        """The mean direction, (*batch, d)."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Of each component, (*batch, d): the diagonal of A' μμᵀ + (A/κ) (I - μμᵀ)."""
        along = vmf.mean_resultant_slope(self.concentration, self._d).unsqueeze(-1)
        across = vmf.tangent_variance(self.concentration, self._d).unsqueeze(-1)
        return across + (along - across) * self.loc.square()

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
        result = kappa * cosine - vmf.ell(kappa, self._d) - vmf.log_surface(self._d)
        return result.to(torch.promote_types(self.concentration.dtype, value.dtype))

    def entropy(self) -> Tensor:
        """Differential entropy with respect to the surface of the sphere, (*batch)."""
        return vmf.entropy(self.concentration, self._d)

    @property
    def _d(self) -> int:
        return self.event_shape[0]


def _excess(vectors: Tensor) -> Tensor:
    """| length - 1 | of vectors (..., d)."""
    return (torch.linalg.vector_norm(vectors.double(), dim=-1) - 1).abs()


def _check(loc: Tensor, concentration: Tensor) -> None:
    if not sphere.check(loc).all():
        raise ValueError(
            f"loc is no direction: lengths differ from 1 by up to {float(_excess(loc).max()):.3g}; "
            "write torch.nn.functional.normalize(loc, dim=-1)"
        )
    if concentration.isnan().any():
        raise ValueError("concentration is not a number")
    if not (concentration >= 0).all():
        raise ValueError(
            f"concentration is down to {float(concentration.min()):.3g}: it cannot be negative; parametrise "
            "it by exp or softplus, or turn loc around"
        )
    if not concentration.isfinite().all():
        raise ValueError("concentration is infinite: that is a point, and has no density")


def _kl(q: VonMisesFisher, p: VonMisesFisher) -> Tensor:
    d, other = q.event_shape[0], p.event_shape[0]
    if d != other:
        raise ValueError(
            f"a KL between distributions on spheres of R^{d} and R^{other}: both need the same dimension"
        )
    # of unit vectors this is 1 - cosine, and exactly 0 where they are the same
    gap = (q.loc.double() - p.loc.double()).square().sum(-1) / 2
    result = vmf.kl(q.concentration, p.concentration, gap, d)
    return result.to(torch.promote_types(q.concentration.dtype, p.concentration.dtype))


register_kl(VonMisesFisher, VonMisesFisher)(_kl)

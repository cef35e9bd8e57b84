"""Laws of a posterior by itself: moments, entropy, KL, initial values; and what laws are tested on."""

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kasuri.posteriors.base import Elementwise, Family, Located, Posterior
from kasuri.posteriors.radial.prior import RadialPrior
from kasuri.priors.base import Prior
from kasuri.priors.normal import HeNormal, Normal

Covariance = Callable[[Posterior], Tensor]
Law = Callable[[Family], None]
DRAWS = 5_000
ERRORS = 6.0  # standard errors allowed


def randomised(family: Family, shape: tuple[int, ...]) -> Posterior:
    """A posterior of this shape, in float64, whose parameters are all moved by noise of size ½."""
    posterior = family(torch.randn(shape, dtype=torch.float64))
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
    return posterior


def random_posteriors(family: Family) -> Iterator[Posterior]:
    """One without and one with blocks."""
    for shape in ((3, 4), (2, 3, 4)):
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


def is_degenerate(posterior: Posterior) -> bool:
    """A point estimate: it has no density, so laws about its KL do not apply."""
    return bool((posterior.variance == 0).all())


def _draws(posterior: Posterior) -> Tensor:
    sample = torch.vmap(lambda _: posterior.rsample(), randomness="different")
    return sample(torch.zeros(DRAWS)).detach()


def samples_have_the_stated_moments(family: Family) -> None:
    """Mean and variance of draws are `mean` and `variance`."""
    for q in random_posteriors(family):
        draws, mean, variance = _draws(q), q.mean.detach(), q.variance.detach()
        slack = 1e-9 + 1e-6 * variance.sqrt()
        worst = ((draws.mean(0) - mean).abs() / ((variance / DRAWS).sqrt() + slack)).max()
        assert worst < ERRORS, f"mean of draws is off by {worst:.1f} standard errors"
        error = draws.var(0) * math.sqrt(2 / DRAWS) + slack**2
        worst = ((draws.var(0) - variance).abs() / error).max()
        assert worst < 2 * ERRORS, f"variance of draws is off by {worst:.1f} standard errors"


def entropy_is_that_of_the_dense_normal(
    family: Family, covariance: Covariance | None = None
) -> None:
    """The entropy equals ½ log det(2πe Σ)."""
    for q in random_posteriors(family):
        if is_degenerate(q) or (covariance is None and not isinstance(q, Elementwise)):
            continue
        dense = torch.diag(q.variance.reshape(-1)) if covariance is None else covariance(q)
        normal = torch.distributions.MultivariateNormal(q.mean.reshape(-1), dense)
        assert torch.allclose(q.entropy(), normal.entropy(), rtol=1e-10, atol=1e-10), (
            f"{q.entropy().item()} is not {normal.entropy().item()}"
        )


def prior_expectation_is_exact(family: Family) -> None:
    """E_q[log p] equals the average of log p over draws, for every prior."""
    for q in random_posteriors(family):
        draws = _draws(q)
        for prior in (Normal(0.7), HeNormal()):
            assert prior.log_prob(draws[0]).shape == q.shape, "log_prob is elementwise"
            values = torch.vmap(prior.log_prob)(draws).flatten(1).sum(1)
            error = values.std() / math.sqrt(len(values)) + 1e-9
            off = (values.mean() - prior.expected_log_prob(q)).abs() / error
            assert off < ERRORS, f"{prior}: off by {off:.1f} standard errors"


def squared_norm_is_mean_square(family: Family) -> None:
    """E‖W‖² = Σ (mean² + variance)."""
    for q in random_posteriors(family):
        assert torch.allclose(q.squared_norm(), (q.mean.square() + q.variance).sum(), rtol=1e-12)


def kl_is_never_negative_and_zero_at_the_prior(family: Family) -> None:
    """KL ≥ 0 for random parameters, and 0 where the posterior is the prior, if it can be."""
    for q in random_posteriors(family):
        if is_degenerate(q):
            return
        for prior in priors_for(q):
            assert q.kl(prior) >= 0, f"{prior}: {q.kl(prior).item()}"
        if not isinstance(q, Located):
            continue  # not normal
        same = dataclasses.replace(family, scale=0.7, noise=0.0, max_scale=None, mean="given")
        at_prior = same(torch.zeros(q.shape, dtype=torch.float64)).kl(Normal(0.7))
        assert at_prior.abs() < 1e-9, f"{at_prior.item()} at the prior"


def initial_scale_is_the_one_asked_for(family: Family) -> None:
    """The mean initial standard deviation is `scale`, whatever the noise and the bound."""
    if is_degenerate(family(torch.randn(3, 4))):
        return
    for noise in (0.0, 0.1, 0.3):
        wide = dataclasses.replace(family, scale=0.02, noise=noise, max_scale=None)
        weight = torch.zeros(50, 12, 10, dtype=torch.float64)  # many blocks
        trials = 10 if noise else 1
        mean = sum(wide(weight).variance.sqrt().mean().item() for _ in range(trials)) / trials
        assert abs(mean / 0.02 - 1) < 0.06 * noise + 1e-9, mean


def kl_gradient_is_right(family: Family) -> None:
    """Gradcheck of the KL in float64, in every parameter of posterior and prior."""
    for q in random_posteriors(family):
        for prior in priors_for(q)[-1:] if len(q.shape) > 2 else priors_for(q):
            prior.double()
            leaves = (*q.parameters(), *prior.parameters())
            assert torch.autograd.gradcheck(lambda *_, q=q, prior=prior: q.kl(prior), leaves)


def dtype_follows(family: Family) -> None:
    """`.to(dtype)` moves everything, but never below float32: standard deviations need it."""
    for wanted in (torch.float64, torch.bfloat16, torch.float32):
        q, dtype = family(torch.randn(3, 4)).to(wanted), torch.promote_types(wanted, torch.float32)
        values = [q.mean, q.variance, q.rsample(), q.squared_norm(), q.kl(priors_for(q)[0])]
        values += [q.entropy()] if has_density(q) else []
        assert {value.dtype for value in values} == {dtype}, wanted

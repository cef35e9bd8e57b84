"""The laws every posterior family obeys, as functions you can run on a family of your own.

    import weft.testing
    weft.testing.check_family(MyFamily(rank=3))

Structure parameters are randomised before a law is tested, since many mistakes cancel at the
symmetric initial values. Monte Carlo laws allow six standard errors.
"""

import copy
import dataclasses
import io
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from weft.contexts import named_posteriors, using
from weft.convert import bayesianize, collapse
from weft.estimators import Estimator, flipout, local, shared
from weft.likelihoods import Categorical
from weft.objectives import ELBO
from weft.posteriors.base import Elementwise, Family, Posterior, Pushable
from weft.priors import HeNormal, Normal, Prior
from weft.saving import load, save

Covariance = Callable[[Posterior], Tensor]
Law = Callable[[Family], None]
_SHAPES = ((3, 4), (2, 3, 4))
_DRAWS = 20_000
_ERRORS = 6.0


def check_family(family: Family, covariance: Covariance | None = None) -> None:
    """Run every law on a family; an AssertionError says which one is broken.

    Args:
        family: the family with its options.
        covariance: from a posterior to the dense covariance of W.reshape(-1), the oracle for its
            entropy; families with independent weights need none.

    >>> import weft
    >>> check_family(weft.KTied(rank=2))
    """
    for law in LAWS:
        _named(law, family)
    _named(lambda f: entropy_is_that_of_the_dense_normal(f, covariance), family)


def _named(law: Law, family: Family) -> None:
    torch.manual_seed(0)
    try:
        law(family)
    except AssertionError as error:
        name = getattr(law, "__name__", "entropy_is_that_of_the_dense_normal")
        raise AssertionError(f"{family} breaks the law {name!r}: {error}") from error


def randomised(
    family: Family, shape: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> Posterior:
    """A posterior of this shape whose parameters are all moved by noise of size ½."""
    posterior = family(torch.randn(shape, dtype=dtype))
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
    return posterior


def _posteriors(family: Family) -> Iterator[Posterior]:
    for shape in _SHAPES:
        yield randomised(family, shape)


def _draws(posterior: Posterior) -> Tensor:
    each = torch.vmap(lambda _: posterior.rsample(), randomness="different")
    return each(torch.zeros(_DRAWS)).detach()


def _priors() -> tuple[Prior, ...]:
    return Normal(0.7), HeNormal(), Normal(0.5, learn="closed form"), Normal(0.5, learn="gradient")


def _degenerate(posterior: Posterior) -> bool:
    """A point estimate: it has no density, so laws about its KL do not apply."""
    return bool((posterior.variance == 0).all())


def _same_moments(a: Tensor, mean: Tensor, variance: Tensor, what: str) -> None:
    """Draws `a` (n, ...) have this mean and variance, up to Monte Carlo error."""
    n = a.shape[0]
    slack = 1e-9 + 1e-6 * variance.sqrt()
    worst = ((a.mean(0) - mean).abs() / ((variance / n).sqrt() + slack)).max()
    assert worst < _ERRORS, f"mean of {what} is off by {worst:.1f} standard errors"
    error = a.var(0) * math.sqrt(2 / n) + slack**2
    worst = ((a.var(0) - variance).abs() / error).max()
    assert worst < 2 * _ERRORS, f"variance of {what} is off by {worst:.1f} standard errors"


def samples_have_the_stated_moments(family: Family) -> None:
    """Mean and variance of draws are `mean` and `variance`."""
    for q in _posteriors(family):
        draws = _draws(q)
        _same_moments(draws, q.mean.detach(), q.variance.detach(), "draws")


def entropy_is_that_of_the_dense_normal(
    family: Family, covariance: Covariance | None = None
) -> None:
    """The entropy equals ½ log det(2πe Σ)."""
    for q in _posteriors(family):
        if _degenerate(q) or (covariance is None and not isinstance(q, Elementwise)):
            continue
        dense = torch.diag(q.variance.reshape(-1)) if covariance is None else covariance(q)
        normal = torch.distributions.MultivariateNormal(q.mean.reshape(-1), dense)
        assert torch.allclose(q.entropy(), normal.entropy(), rtol=1e-10, atol=1e-10), (
            f"{q.entropy().item()} is not {normal.entropy().item()}"
        )


def prior_expectation_is_exact(family: Family) -> None:
    """E_q[log p] equals the average of log p over draws, for every prior."""
    for q in _posteriors(family):
        draws = _draws(q)
        for prior in _priors()[:2]:
            assert prior.log_prob(draws[0]).shape == q.shape, "log_prob is elementwise"
            values = torch.vmap(prior.log_prob)(draws).flatten(1).sum(1)
            error = values.std() / math.sqrt(len(values)) + 1e-9
            off = (values.mean() - prior.expected_log_prob(q)).abs() / error
            assert off < _ERRORS, f"{prior}: off by {off:.1f} standard errors"


def squared_norm_is_mean_square(family: Family) -> None:
    """E‖W‖² = Σ (mean² + variance)."""
    for q in _posteriors(family):
        assert torch.allclose(q.squared_norm(), (q.mean.square() + q.variance).sum(), rtol=1e-12)


def kl_is_never_negative_and_zero_at_the_prior(family: Family) -> None:
    """KL ≥ 0 for random parameters, and 0 where the posterior is the prior."""
    for q in _posteriors(family):
        if _degenerate(q):
            return
        for prior in _priors():
            assert q.kl(prior) >= 0, f"{prior}: {q.kl(prior).item()}"
        same = dataclasses.replace(family, scale=0.7, noise=0.0, max_scale=None, mean="given")
        at_prior = same(torch.zeros(q.shape, dtype=torch.float64)).kl(Normal(0.7))
        assert at_prior.abs() < 1e-9, f"{at_prior.item()} at the prior"


def initial_scale_is_the_one_asked_for(family: Family) -> None:
    """The mean initial standard deviation is `scale`, whatever the noise and the bound."""
    if _degenerate(family(torch.randn(3, 4))):
        return
    for noise in (0.0, 0.1, 0.3):
        wide = dataclasses.replace(family, scale=0.02, noise=noise, max_scale=None)
        scale = wide(torch.zeros(500, 500, dtype=torch.float64)).variance.sqrt()
        assert abs(scale.mean() / 0.02 - 1) < 0.06 * noise + 1e-9, scale.mean().item()


def kl_gradient_is_right(family: Family) -> None:
    """Gradcheck of the KL in float64, in every parameter of posterior and prior."""
    for q in _posteriors(family):
        for prior in _priors():
            inputs = [*q.parameters(), *(p.data.double() for p in prior.parameters())]
            for p, value in zip(
                prior.parameters(), inputs[len(list(q.parameters())) :], strict=True
            ):
                p.data = value
            leaves = tuple([*q.parameters(), *prior.parameters()])
            assert torch.autograd.gradcheck(lambda *_, q=q, prior=prior: q.kl(prior), leaves)


def _layers() -> Iterator[tuple[nn.Module, Tensor]]:
    yield nn.Linear(4, 3), torch.randn(2, 4)
    yield nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2, padding=2), torch.randn(2, 4, 6, 5)
    yield nn.Conv1d(2, 3, 3, padding="same", padding_mode="circular"), torch.randn(2, 2, 5)
    yield nn.ConvTranspose2d(4, 4, 3, stride=2, groups=2, output_padding=1), torch.randn(2, 4, 3, 2)


def _estimators(posterior: Posterior) -> list[Estimator]:
    valid: list[Estimator] = [shared]
    if isinstance(posterior, Pushable):
        valid.append(local)
    if isinstance(posterior, Elementwise):
        valid.append(flipout)
    return valid


def _outputs(bnn: nn.Module, x: Tensor, estimator: Estimator) -> Tensor:
    """Independent draws of the network's output, (n, ...)."""
    with using(bnn, estimator), torch.no_grad():
        each = torch.vmap(lambda _: bnn(x), randomness="different")
        return torch.cat([each(torch.zeros(_DRAWS // 10)) for _ in range(10)])


def estimators_agree(family: Family) -> None:
    """`local` and `flipout` give outputs with the mean and variance that `shared` has."""
    wide = dataclasses.replace(family, scale=0.3, noise=0.3, max_scale=None)
    for layer, x in _layers():
        bnn, x = bayesianize(layer.double(), wide), x.double()
        ((_, q), *_) = named_posteriors(bnn)
        reference = _outputs(bnn, x, shared)
        for estimator in _estimators(q)[1:]:
            y, title = _outputs(bnn, x, estimator), f"{estimator.__name__} of {layer}"
            error = (2 * reference.var(0) / len(y)).sqrt() + 1e-9
            worst = ((y.mean(0) - reference.mean(0)).abs() / error).max()
            assert worst < _ERRORS, f"{title}: mean off by {worst:.1f} standard errors"
            # the fourth moment of outputs is a little above a normal's, hence 3 and not 2
            error = reference.var(0) * (2 * 3 / len(y)) ** 0.5 + 1e-12
            worst = ((y.var(0) - reference.var(0)).abs() / error).max()
            assert worst < _ERRORS, f"{title}: variance off by {worst:.1f} standard errors"


def vanishing_scale_is_the_layer_itself(family: Family) -> None:
    """With scale → 0 every estimator reproduces the layer bit for bit."""
    tiny = dataclasses.replace(family, scale=1e-30, max_scale=None)
    for layer, x in _layers():
        bnn = bayesianize(layer, tiny)
        ((_, q), *_) = named_posteriors(bnn)
        for estimator in _estimators(q):
            with using(bnn, estimator):
                assert torch.equal(bnn(x), layer(x)), f"{estimator.__name__} of {layer}"


def collapse_undoes_bayesianize(family: Family) -> None:
    """Same classes, keys and bits, before and after a forward pass."""
    for layer, x in _layers():
        bnn = bayesianize(layer, family)
        bnn(x)
        plain = collapse(bnn)
        assert type(plain) is type(layer)
        assert list(plain.state_dict()) == list(layer.state_dict())
        assert torch.equal(plain(x), layer(x)), str(layer)


def gradients_reach_every_parameter(family: Family) -> None:
    """An ELBO step moves everything, under every valid estimator."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    for estimator in _estimators(family(torch.randn(3, 4))):
        bnn = bayesianize(net, family, estimator=estimator)
        elbo = ELBO(bnn, Categorical(), Normal(0.5), num_data=10)
        elbo(torch.randn(6, 4), torch.randint(3, (6,))).loss.backward()
        for name, parameter in bnn.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def copies_and_files_are_faithful(family: Family) -> None:
    """deepcopy, torch.save with weights_only, weft.save: before and after a forward pass."""
    net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(3, 4)
    bnn = bayesianize(net, family)
    for _ in range(2):
        twin = copy.deepcopy(bnn)
        for stored in (_through_torch(bnn), twin.state_dict()):
            assert list(stored) == list(bnn.state_dict())
            assert all(torch.equal(stored[key], bnn.state_dict()[key]) for key in stored)
        _through_weft(bnn, net, type(family))
        bnn(x).sum().backward()


def _through_torch(bnn: nn.Module) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(bnn.state_dict(), file)
    file.seek(0)
    state: dict[str, Tensor] = torch.load(file, weights_only=True)
    return state


def _through_weft(bnn: nn.Module, net: nn.Module, family: type[Family]) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save(bnn, path)
        again = load(path, net, families=[family])
    assert all(torch.equal(a, b) for a, b in zip(bnn.parameters(), again.parameters(), strict=True))


def vmap_and_compile_work(family: Family) -> None:
    """Draws inside vmap differ; a compiled training step is one graph with the same gradients."""
    q = family(torch.randn(3, 4))
    draws = torch.vmap(lambda _: q.rsample(), randomness="different")(torch.zeros(5))
    assert draws.shape == (5, 3, 4)
    assert _degenerate(q) or not torch.equal(draws[0], draws[1])
    kls = torch.vmap(lambda shift: q.kl(Normal(1.0)) + shift)(torch.zeros(2))
    assert torch.allclose(kls, q.kl(Normal(1.0)))
    bnn = bayesianize(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), family)
    elbo = ELBO(bnn, Categorical(), Normal(0.5), num_data=10)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    with using(bnn, "mean"):  # without noise the two must agree
        plain = torch.autograd.grad(elbo(x, y).loss, list(bnn.parameters()), allow_unused=True)
        compiled = torch.compile(elbo, fullgraph=True, backend="aot_eager")
        fused = torch.autograd.grad(compiled(x, y).loss, list(bnn.parameters()), allow_unused=True)
    for a, b in zip(plain, fused, strict=True):
        assert a is b is None or torch.allclose(a, b, atol=1e-5)
    for estimator in _estimators(q)[:2]:
        with using(bnn, estimator):
            torch.compile(elbo, fullgraph=True, backend="aot_eager")(x, y).loss.backward()
    torch.compiler.reset()


def dtype_follows(family: Family) -> None:
    """`.to(dtype)` moves everything, and what comes out has that type."""
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        q = family(torch.randn(3, 4)).to(dtype)
        values = (q.mean, q.variance, q.rsample(), q.entropy(), q.squared_norm())
        assert {value.dtype for value in values} == {dtype}


def extreme_parameters_stay_finite(family: Family) -> None:
    """Raw parameters of ±100 in float32 give finite values and gradients everywhere."""
    x = torch.randn(2, 4)
    for trial in range(8):
        bnn = bayesianize(nn.Linear(4, 3), family)
        ((_, q), *_) = named_posteriors(bnn)
        with torch.no_grad():
            for parameter in q.parameters():
                sign = torch.randn_like(parameter).sign() if trial > 1 else 2.0 * trial - 1
                parameter.copy_(torch.zeros_like(parameter) + 100 * sign)
        outputs = [q.variance.sum(), q.entropy(), q.kl(Normal(1.0)), q.squared_norm()]
        for estimator in _estimators(q):
            with using(bnn, estimator):
                outputs.append(bnn(x).sum())
        for value in outputs:
            assert torch.isfinite(value), value.item()
            if not value.requires_grad:
                continue
            for grad in torch.autograd.grad(value, list(q.parameters()), allow_unused=True):
                assert grad is None or torch.isfinite(grad).all()


LAWS: tuple[Law, ...] = (
    samples_have_the_stated_moments,
    prior_expectation_is_exact,
    squared_norm_is_mean_square,
    kl_is_never_negative_and_zero_at_the_prior,
    initial_scale_is_the_one_asked_for,
    kl_gradient_is_right,
    estimators_agree,
    vanishing_scale_is_the_layer_itself,
    collapse_undoes_bayesianize,
    gradients_reach_every_parameter,
    copies_and_files_are_faithful,
    vmap_and_compile_work,
    dtype_follows,
    extreme_parameters_stay_finite,
)

"""Laws of a posterior in a network: estimators, conversion, copies, compilation, extremes."""

import copy
import dataclasses
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from kasuri.likelihoods import Categorical
from kasuri.network.contexts import using
from kasuri.network.convert import bayesianize, collapse
from kasuri.network.estimators import Estimator, flipout, local, shared
from kasuri.network.random import named_posteriors
from kasuri.network.saving import load, save
from kasuri.objectives.elbo import ELBO
from kasuri.posteriors.base import Elementwise, Family, Located, Posterior, Pushable
from kasuri.testing.posterior_laws import DRAWS, ERRORS, has_density, is_degenerate, priors_for


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
    """Independent draws of the network's output, (n, ...), by the plain formulas (inside vmap)."""
    with using(bnn, estimator), torch.no_grad():
        sample = torch.vmap(lambda _: bnn(x), randomness="different")
        return torch.cat([sample(torch.zeros(DRAWS // 10)) for _ in range(10)])


def _same_law(y: Tensor, reference: Tensor, title: str) -> None:
    """Draws (n, ...) have the mean and variance of others, up to Monte Carlo error."""
    share = 1 / len(y) + 1 / len(reference)
    error = (share * reference.var(0)).sqrt() + 1e-9
    worst = ((y.mean(0) - reference.mean(0)).abs() / error).max()
    assert worst < ERRORS, f"{title}: mean off by {worst:.1f} standard errors"
    # the fourth moment of outputs is a little above a normal's, hence 3 and not 2; or far above
    square = reference.var(0).square()
    fourth = (reference - reference.mean(0)).pow(4).mean(0)
    error = (torch.maximum(fourth - square, 3 * square) * share).sqrt() + 1e-12
    worst = ((y.var(0) - reference.var(0)).abs() / error).max()
    assert worst < ERRORS, f"{title}: variance off by {worst:.1f} standard errors"


def _converted(layer: nn.Module, family: Family) -> tuple[nn.Module, Posterior]:
    """The layer with random weights, and the posterior of its weight."""
    bnn = bayesianize(layer, family)
    ((_, posterior), *_) = named_posteriors(bnn)
    return bnn, posterior


def _wide(family: Family) -> Family:
    return dataclasses.replace(family, scale=0.3, noise=0.3, max_scale=None)


def _same(posterior: Posterior, a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit if the mean is a parameter; else up to rounding, since the mean is computed."""
    if isinstance(posterior, Located):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def estimators_agree(family: Family) -> None:
    """`local` and `flipout` give outputs with the mean and variance that `shared` has."""
    for layer, x in _layers():
        (bnn, q), x = _converted(layer.double(), _wide(family)), x.double()
        reference = _outputs(bnn, x, shared)
        for estimator in _estimators(q)[1:]:
            _same_law(_outputs(bnn, x, estimator), reference, f"{estimator.__name__} of {layer}")


def fused_and_plain_draws_agree(family: Family) -> None:
    """Eager mode, with and without gradients, draws from the law of the plain formulas."""
    layer, x = next(_layers())
    (bnn, q), x = _converted(layer.double(), _wide(family)), x.double()
    for estimator in _estimators(q):
        reference = _outputs(bnn, x, estimator)
        for grad in (True, False):
            with using(bnn, estimator), torch.set_grad_enabled(grad):
                y = torch.stack([bnn(x).detach() for _ in range(DRAWS // 12)])
            _same_law(y, reference, f"{estimator.__name__} of {layer}, gradients {grad}")


def vanishing_scale_is_the_layer_itself(family: Family) -> None:
    """With scale → 0 every estimator reproduces the layer, bit for bit if the mean is a parameter."""
    tiny = dataclasses.replace(family, scale=1e-30, max_scale=None)
    for layer, x in _layers():
        bnn, q = _converted(layer, tiny)
        for estimator in _estimators(q):
            with using(bnn, estimator):
                assert _same(q, bnn(x), layer(x)), f"{estimator.__name__} of {layer}"


def collapse_undoes_bayesianize(family: Family) -> None:
    """Same classes, keys and bits, before and after a forward pass."""
    for layer, x in _layers():
        bnn, q = _converted(layer, family)
        bnn(x)
        plain = collapse(bnn)
        assert type(plain) is type(layer)
        assert list(plain.state_dict()) == list(layer.state_dict())
        assert _same(q, plain(x), layer(x)), str(layer)


def gradients_reach_every_parameter(family: Family) -> None:
    """An ELBO step moves everything, under every valid estimator."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    for estimator in _estimators(family(torch.randn(3, 4))):
        bnn, q = _converted(net, family)
        elbo = ELBO(bnn, Categorical(), priors_for(q)[0], num_data=10)
        with using(bnn, estimator):
            elbo(torch.randn(6, 4), torch.randint(3, (6,))).loss.backward()
        for name, parameter in bnn.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def copies_and_files_are_faithful(family: Family) -> None:
    """deepcopy, torch.save with weights_only, kasuri.save: before and after a forward pass."""
    net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(3, 4)
    bnn = bayesianize(net, family)
    for _ in range(2):
        file = io.BytesIO()
        torch.save(bnn.state_dict(), file)
        file.seek(0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            save(bnn, path)
            loaded = load(path, net)
        state, twin = bnn.state_dict(), copy.deepcopy(bnn)
        read = torch.load(file, weights_only=True)
        for stored in (read, twin.state_dict(), loaded.state_dict()):
            assert list(stored) == list(state)
            assert all(torch.equal(stored[key], state[key]) for key in state)
        bnn(x).sum().backward()


def vmap_and_compile_work(family: Family) -> None:
    """Draws inside vmap differ; a compiled training step is one graph with the same gradients."""
    q = family(torch.randn(3, 4))
    draws = torch.vmap(lambda _: q.rsample(), randomness="different")(torch.zeros(5))
    assert draws.shape == (5, 3, 4)
    assert is_degenerate(q) or not torch.equal(draws[0], draws[1])
    prior = priors_for(q)[0]
    kls = torch.vmap(lambda shift: q.kl(prior) + shift)(torch.zeros(2))
    assert torch.allclose(kls, q.kl(prior))
    # not smaller: in low dimensions a direction takes a recurrence, which is slow to compile
    bnn, _ = _converted(nn.Sequential(nn.Linear(30, 32)), family)
    elbo = ELBO(bnn, Categorical(), prior, num_data=10)
    x, y = torch.randn(6, 30), torch.randint(3, (6,))
    with using(bnn, "mean"):  # without noise the two must agree
        plain = torch.autograd.grad(elbo(x, y).loss, list(bnn.parameters()), allow_unused=True)
        compiled = torch.compile(elbo, fullgraph=True, backend="aot_eager")
        fused = torch.autograd.grad(compiled(x, y).loss, list(bnn.parameters()), allow_unused=True)
    for a, b in zip(plain, fused, strict=True):
        assert a is b is None or torch.allclose(a, b, atol=1e-5)
    for estimator in _estimators(q)[:2]:
        with using(bnn, estimator):
            torch.compile(bnn, fullgraph=True, backend="aot_eager")(x).sum().backward()
    torch.compiler.reset()


def extreme_parameters_stay_finite(family: Family) -> None:
    """Raw parameters of ±100 in float32 give finite values and gradients everywhere."""
    x = torch.randn(2, 4)
    for trial in range(8):
        bnn, q = _converted(nn.Linear(4, 3), family)
        with torch.no_grad():
            for parameter in q.parameters():
                sign = torch.randn_like(parameter).sign() if trial > 1 else 2.0 * trial - 1
                parameter.copy_(torch.zeros_like(parameter) + 100 * sign)
        outputs = [q.variance.sum(), q.kl(priors_for(q)[0]), q.squared_norm()]
        outputs += [q.entropy()] if has_density(q) else []
        for estimator in _estimators(q):
            with using(bnn, estimator):
                outputs.append(bnn(x).sum())
        for value in outputs:
            assert torch.isfinite(value), value.item()
            if not value.requires_grad:
                continue
            for grad in torch.autograd.grad(value, list(q.parameters()), allow_unused=True):
                assert grad is None or torch.isfinite(grad).all()

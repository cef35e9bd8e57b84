"""Looking into a converted network, and changing for a while how it draws."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from weft.bayesian import named_bayesian
from weft.estimators import Estimator, resolve, shared
from weft.posteriors.base import Posterior
from weft.scope import Drawn, Frozen


def named_posteriors(net: nn.Module) -> Iterator[tuple[str, Posterior]]:
    """(name, posterior) of every random parameter, under its name in the ordinary network.

    Tied weights have one posterior and appear once.

    Examples:
        >>> import weft
        >>> bnn = weft.bayesianize(nn.Linear(3, 2), weft.KTied(rank=1))
        >>> {name: tuple(q.shape) for name, q in weft.named_posteriors(bnn)}
        {'weight': (2, 3), 'bias': (2,)}
    """
    seen: set[int] = set()
    for name, layer in named_bayesian(net):
        for parameter, posterior in layer.named():
            if id(posterior) not in seen:
                seen.add(id(posterior))
                yield (f"{name}.{parameter}" if name else parameter), posterior


def require_posteriors(net: nn.Module) -> dict[str, Posterior]:
    """All posteriors by name; refuse a network without any."""
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"{type(net).__name__} is no network: give one from weft.bayesianize, its ELBO, or what "
            "weft.fit gave"
        )
    found = dict(named_posteriors(net))
    if not found:
        raise ValueError(
            f"{type(net).__name__} has no Bayesian layer: "
            "write bnn = weft.bayesianize(net, weft.KTied(rank=2)) first and use bnn"
        )
    return found


@contextmanager
def plain_path() -> Iterator[None]:
    """Transformer layers call their parts, so that hooks see them and replaced parts are used."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def using(net: nn.Module, estimator: Estimator | str) -> Iterator[nn.Module]:
    """Draw by this estimator inside the block, in training and evaluation mode alike.

    Examples:
        >>> import torch, weft
        >>> bnn = weft.bayesianize(nn.Linear(3, 2), weft.MeanField())
        >>> with weft.using(bnn, weft.mean):
        ...     torch.equal(bnn(torch.ones(3)), bnn(torch.ones(3)))
        True
    """
    estimator = resolve(estimator)
    layers = dict(named_bayesian(net))
    for name, layer in layers.items():
        layer.check(estimator, name)
    before = [(layer, layer.override, layer.frozen) for layer in layers.values()]
    try:
        for layer in layers.values():
            layer.override, layer.frozen = estimator, None
        yield net
    finally:
        for layer, override, fixed in before:
            layer.override, layer.frozen = override, fixed


@contextmanager
def frozen(net: nn.Module, seed: int) -> Iterator[nn.Module]:
    """One function: inside the block the network has the same weights at every call.

    The weights depend on `seed` alone, so other processes see the same ones. They follow the
    parameters, and gradients flow to them; with gradients off they are made again only when a
    parameter has changed.

    Examples:
        >>> import torch, weft
        >>> bnn = weft.bayesianize(nn.Linear(3, 2), weft.MeanField())
        >>> with weft.frozen(bnn, seed=1):
        ...     first = bnn(torch.ones(3))
        >>> with weft.frozen(bnn, seed=1):
        ...     torch.equal(bnn(torch.ones(3)), first)
        True
    """
    with drawing_from(net, Frozen(require_posteriors(net).values(), seed)):
        yield net


@contextmanager
def drawing_from(net: nn.Module, draws: Drawn) -> Iterator[None]:
    """Take every weight from these draws inside the block."""
    with using(net, shared):
        for _, layer in named_bayesian(net):
            layer.frozen = draws
        yield

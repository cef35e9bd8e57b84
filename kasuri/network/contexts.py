"""Changing for a while, in one thread, how a converted network draws."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from kasuri.network import calls
from kasuri.network.estimators import Estimator, check, resolve, shared
from kasuri.network.random import Conversion, named_layers, posterior_of, require_posteriors
from kasuri.numerics.shadow import shadow
from kasuri.posteriors.base import Posterior

Module = TypeVar("Module", bound=nn.Module)


@contextmanager
def using(net: nn.Module, estimator: Estimator | str) -> Iterator[nn.Module]:
    """Draw by this estimator inside the block, in training and evaluation mode alike.

    Only this thread is concerned.

    Examples:
        >>> import torch, kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> with kasuri.using(bnn, "mean"):
        ...     torch.equal(bnn(torch.ones(3)), bnn(torch.ones(3)))
        True
    """
    estimator = resolve(estimator)
    layers = list(named_layers(net))
    for name, layer, conversion in layers:
        check_layer(layer, conversion, estimator, name)
    with calls.overriding((layer for _, layer, _ in layers), calls.Override(estimator)):
        yield net


@contextmanager
def frozen(net: nn.Module, seed: int) -> Iterator[nn.Module]:
    """One function: inside the block the network has the same weights at every call.

    The weights depend on `seed` alone, so other threads and processes see the same ones. They follow
    the parameters, and gradients flow to them; with gradients off they are made again only when a
    parameter has changed. Only this thread is concerned.

    Examples:
        >>> import torch, kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
        >>> with kasuri.frozen(bnn, seed=1):
        ...     first = bnn(torch.ones(3))
        >>> with kasuri.frozen(bnn, seed=1):
        ...     torch.equal(bnn(torch.ones(3)), first)
        True
    """
    with drawing_from(net, calls.Frozen(require_posteriors(net).values(), seed)):
        yield net


@contextmanager
def drawing_from(net: nn.Module, weights: calls.Weights) -> Iterator[None]:
    """Inside the block, every weight comes from this source."""
    layers = [layer for _, layer, _ in named_layers(net)]
    with calls.overriding(layers, calls.Override(shared, weights)):
        yield


@contextmanager
def drawing(net: nn.Module) -> Iterator[None]:
    """Draw whole weights inside the block, in evaluation mode too, unless a block outside says how."""
    layers = [layer for _, layer, _ in named_layers(net)]
    with calls.overriding(layers, calls.WHOLE, unless_overridden=True):
        yield


def check_layer(layer: nn.Module, conversion: Conversion, estimator: Estimator, name: str) -> None:
    """Refuse an estimator that would be wrong here; `name` is the layer's, for the message."""
    title = f"{name or 'the network'!r} ({type(layer).__name__})"
    for parameter, view in conversion.views.items():
        if not view.vector:
            check(estimator, posterior_of(layer, parameter), title, conversion.obstacle)


@contextmanager
def evaluating(net: Module) -> Iterator[Module]:
    """The network in evaluation mode, to be used inside the block.

    A network in training mode is not touched, since other threads may be using it: the block gets a
    second tree of modules over the same tensors. So it does for a compiled network, whose program could not
    draw from seeds. Where torch keeps state outside of modules (sharded
    parameters, scripted modules) the network's own mode is changed and put back.
    """
    modes = [(module, module.training) for module in net.modules()]
    compiled = any(_is_compiled(module) for module, _ in modes)
    if not compiled and not any(training for _, training in modes):
        yield net
        return
    if not any(_has_state_elsewhere(module) for module, _ in modes):
        yield shadow(net, keep=Posterior, training=False)
        return
    net.eval()
    try:
        yield net
    finally:
        for module, mode in modes:
            module.training = mode


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def _has_state_elsewhere(module: nn.Module) -> bool:
    sharded = any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
    return sharded or isinstance(module, torch.jit.ScriptModule)


@contextmanager
def plain_path() -> Iterator[None]:
    """Transformer layers call their parts, so that hooks see them and replaced parts are used."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)

"""Changing for a while, in one thread, how a converted network draws."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from kasuri.network.calls import Override, seeded_draw, state
from kasuri.network.estimators import Estimator, check, resolve, shared
from kasuri.network.random import named_layers, posterior_of, require_posteriors, titled
from kasuri.numerics.shadow import shadow
from kasuri.numerics.torch_internals import eager
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
    for name, layer, conversion in named_layers(net):
        for parameter, view in conversion.views.items():
            if not view.vector:
                posterior = posterior_of(layer, parameter)
                check(estimator, posterior, titled(name, layer), conversion.obstacle)
    with _overriding(net, Override(estimator)):
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
    indices = {id(q): index for index, q in enumerate(require_posteriors(net).values())}
    kept: dict[int, tuple[int, Tensor]] = {}

    def draw(posterior: Posterior) -> Tensor:
        key = id(posterior)
        if torch.is_grad_enabled() or not eager():  # each backward pass needs a graph of its own
            return seeded_draw(posterior, seed, indices[key])
        version = sum(p._version for p in posterior.parameters())
        if key not in kept or kept[key][0] != version:
            kept[key] = version, seeded_draw(posterior, seed, indices[key])
        return kept[key][1]

    with _overriding(net, Override(shared, draw)):
        yield net


@contextmanager
def drawing_from(net: nn.Module, weights: Mapping[int, Tensor]) -> Iterator[None]:
    """Inside the block, these weights stand for posteriors, by id; they may change meanwhile."""
    with _overriding(net, Override(shared, lambda posterior: weights[id(posterior)])):
        yield


@contextmanager
def drawing(net: nn.Module) -> Iterator[None]:
    """Draw whole weights inside the block, in evaluation mode too, unless a block outside says how."""
    with _overriding(net, Override(shared), unless_overridden=True):
        yield


@contextmanager
def _overriding(
    net: nn.Module, override: Override, *, unless_overridden: bool = False
) -> Iterator[None]:
    before = state.overrides
    new = {id(layer): override for _, layer, _ in named_layers(net)}
    try:
        state.overrides = {**new, **before} if unless_overridden else {**before, **new}
        yield
    finally:
        state.overrides = before


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
        yield shadow(net, keep=Posterior)
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

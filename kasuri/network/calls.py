"""Calls: the outermost call of a converted network has one draw of every posterior.

All state is that of the calling thread, and nothing about drawing is stored on the network. So any
number of threads may use one network, and a layer in a loop, a module used in two places, tied weights
and code that reads `layer.weight` see one draw in one call.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn

from kasuri.network.estimators import Estimator, mean, shared, takes_weights
from kasuri.numerics.torch_internals import eager, is_recomputing
from kasuri.posteriors.base import Posterior
from kasuri.streams import mix, seeded


class Call:
    """One call: what was drawn in it so far, and which layers drew outputs instead of weights.

    Args:
        whole: whether the network that was converted is being called, and not one of its layers alone.
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.grad = torch.is_grad_enabled()
        self.draws: dict[int, Tensor] = {}
        self.means: dict[int, Tensor] = {}
        self.outputs: set[int] = set()


class Weights(Protocol):
    """Where the weights of a network come from while it does not draw them itself."""

    def draw(self, posterior: Posterior) -> Tensor:
        """The weight that stands for a posterior."""


class Override(NamedTuple):
    """How a layer draws for a while, in training and evaluation mode alike."""

    estimator: Estimator
    weights: Weights | None = None


class _State(threading.local):
    """What the present thread is doing.

    Attributes:
        call: the open call, if there is one.
        overrides: of `using` and `frozen`, by id of the layer.
        given: a layer and values of its parameters, while an estimator runs the layer.
    """

    def __init__(self) -> None:
        self.call: Call | None = None
        self.overrides: Mapping[int, Override] = {}
        self.given: tuple[Any, Mapping[str, Tensor | None]] | None = None


state = _State()
_reused: WeakSet[Posterior] = WeakSet()  # posteriors that some call has used more than once


def active(layer: nn.Module) -> Estimator:
    """The estimator in force: an override, or the layer's own, or the mean in evaluation mode."""
    override = state.overrides.get(id(layer))
    if override is not None:
        return override.estimator
    if state.call is None or not layer.training:
        return mean
    conversion: Any = layer._conversion
    estimator: Estimator = conversion.estimator
    return estimator


def value(
    layer: nn.Module, name: str, posterior: Posterior, present: Callable[[Tensor], Tensor]
) -> Tensor:
    """A random parameter of a layer, as everyone who reads it in this call sees it.

    Args:
        layer: whose parameter is read.
        name: of the parameter.
        posterior: of the parameter.
        present: turns a matrix, as posteriors have it, into what the layer wants.
    """
    call, key = state.call, id(posterior)
    override = state.overrides.get(id(layer))
    weights = None if override is None else override.weights
    if weights is not None:  # again at every use, so that checkpoints can be recomputed
        return present(weights.draw(posterior))
    if call is None:
        return present(posterior.mean)
    estimator = active(layer)
    values = call.means if estimator is mean else call.draws
    if key in values:
        if values is call.draws and eager():
            _reused.add(posterior)
        return values[key]
    if not takes_weights(estimator) and key in call.outputs:
        raise RuntimeError(
            f"{type(layer).__name__}.{name} is read after its layer has drawn outputs, not weights, in "
            f"this call ({estimator.__name__}): no single value exists. "
            'Convert this layer with estimator="shared"'
        )
    # a first use inside no_grad must not cost the later ones their gradient
    with torch.set_grad_enabled(call.grad):
        if estimator is mean:
            matrix = posterior.mean
        else:
            _refuse_replay(call, posterior, f"{type(layer).__name__}.{name}")
            matrix = draw(posterior)
        values[key] = present(matrix)
    return values[key]


def claim_outputs(weight: Posterior, bias: Any) -> bool:
    """Whether a layer may draw outputs: not if its weights have been drawn in this call already."""
    call = state.call
    assert call is not None
    posteriors = [weight, *([bias] if isinstance(bias, Posterior) else [])]
    if any(id(posterior) in call.draws for posterior in posteriors):
        return False
    call.outputs.update(map(id, posteriors))
    return True


def _refuse_replay(call: Call, posterior: Posterior, where: str) -> None:
    """Refuse gradient checkpointing that runs one layer again: the draw of its call is not kept."""
    if not call.whole and eager() and posterior in _reused and is_recomputing():
        raise RuntimeError(
            f"{where} is used several times in one forward pass and is being recomputed by gradient "
            "checkpointing, which cannot replay its draw. Run forward and backward inside "
            "`with kasuri.frozen(bnn, seed):`, or keep it out of checkpoints"
        )


@contextmanager
def overriding(
    layers: Iterable[nn.Module], override: Override, *, unless_overridden: bool = False
) -> Iterator[None]:
    """These layers draw in this way inside the block, in this thread."""
    before = state.overrides
    new = {id(layer): override for layer in layers}
    try:
        state.overrides = {**new, **before} if unless_overridden else {**before, **new}
        yield
    finally:
        state.overrides = before


class Given:
    """Weights that someone else has chosen.

    Args:
        weights: for every posterior, by its id, a weight of its shape.
    """

    def __init__(self, weights: Mapping[int, Tensor]) -> None:
        self.weights = weights

    def draw(self, posterior: Posterior) -> Tensor:
        """The given weight."""
        return self.weights[id(posterior)]

    def turn_to(self, weights: Mapping[int, Tensor]) -> None:
        """Use other weights from now on."""
        self.weights = weights


class Frozen:
    """Fixed draws: every posterior has a seed of its own, made from the seed of the whole.

    With gradients the draw is made again from its seed in every call, so that each backward pass has
    its own graph; without, it is made once and kept until a parameter changes.

    Args:
        posteriors: in an order that is the same in every process.
        seed: of the whole.
    """

    def __init__(self, posteriors: Iterable[Posterior], seed: int) -> None:
        self.seeds = {id(q): mix(seed, index) for index, q in enumerate(posteriors)}
        self.kept: dict[int, tuple[int, Tensor]] = {}

    def draw(self, posterior: Posterior) -> Tensor:
        """The draw belonging to the posterior's seed."""
        key = id(posterior)
        if torch.is_grad_enabled() or not eager():
            return seeded_draw(posterior, self.seeds[key])
        version = sum(p._version for p in posterior.parameters())
        if key not in self.kept or self.kept[key][0] != version:
            self.kept[key] = version, seeded_draw(posterior, self.seeds[key])
        return self.kept[key][1]


def seeded_draw(posterior: Posterior, seed: int) -> Tensor:
    """The draw that belongs to a seed."""
    if torch.compiler.is_compiling():  # compiled code knows no generators: it is left for the draw
        uncompiled: Callable[[Posterior, int], Tensor] = torch.compiler.disable(_seeded_draw)
        return uncompiled(posterior, seed)
    return _seeded_draw(posterior, seed)


def _seeded_draw(posterior: Posterior, seed: int) -> Tensor:
    with seeded(seed):
        return draw(posterior)


def all_draws(posteriors: Iterable[Posterior], seed: int) -> dict[int, Tensor]:
    """One draw of everything, by id of the posterior: the weights that `frozen` has at this seed."""
    return {id(q): seeded_draw(q, mix(seed, index)) for index, q in enumerate(posteriors)}


def draw(posterior: Posterior) -> Tensor:
    """A draw in the posterior's own precision, also inside autocast."""
    kind = device_of(posterior).type
    if not torch.is_autocast_enabled(kind):  # entering a context that changes nothing costs time
        return posterior.rsample()
    with torch.autocast(kind, enabled=False):
        return posterior.rsample()


def device_of(posterior: Posterior) -> torch.device:
    """Where a posterior's parameters are."""
    for parameter in posterior._parameters.values():  # much faster than parameters()
        if parameter is not None:
            return parameter.device
    return next(posterior.parameters()).device


WHOLE = Override(shared)

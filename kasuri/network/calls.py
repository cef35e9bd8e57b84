"""Calls: the outermost call of a converted network has one draw of every posterior.

All state is that of the calling thread, and nothing about drawing is stored on the network. So any
number of threads may use one network, and a layer in a loop, a module used in two places, tied weights
and code that reads `layer.weight` see one draw in one call.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kasuri.network.estimators import Estimator
from kasuri.posteriors.base import Posterior
from kasuri.streams import mix, seeded


class Call:
    """One call: what was drawn in it so far, and which posteriors drew outputs instead of weights.

    Args:
        whole: whether the network that was converted is being called, and not one of its layers alone.
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.grad = torch.is_grad_enabled()
        self.draws: dict[int, Tensor] = {}
        self.means: dict[int, Tensor] = {}
        self.outputs: set[int] = set()


class Override(NamedTuple):
    """How a layer draws for a while, in training and evaluation mode alike.

    Args:
        estimator: in the place of the layer's own.
        weights: what stands for a posterior, if the network does not draw weights itself.
    """

    estimator: Estimator
    weights: Callable[[Posterior], Tensor] | None = None


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


def all_draws(posteriors: Iterable[Posterior], seed: int) -> dict[int, Tensor]:
    """One draw of everything, by id of the posterior: the weights that `frozen` has at this seed."""
    return {id(q): seeded_draw(q, seed, index) for index, q in enumerate(posteriors)}


def seeded_draw(posterior: Posterior, seed: int, index: int) -> Tensor:
    """The draw of the posterior number `index` that belongs to a seed."""
    if torch.compiler.is_compiling():  # compiled code knows no generators: it is left for the draw
        uncompiled: Callable[[Posterior, int, int], Tensor] = torch.compiler.disable(_seeded_draw)
        return uncompiled(posterior, seed, index)
    return _seeded_draw(posterior, seed, index)


def _seeded_draw(posterior: Posterior, seed: int, index: int) -> Tensor:
    with seeded(mix(seed, index)):
        return draw(posterior)


def draw(posterior: Posterior) -> Tensor:
    """A draw in the posterior's own precision, also inside autocast."""
    kind = _device_of(posterior).type
    if not torch.is_autocast_enabled(kind):  # entering a context that changes nothing costs time
        return posterior.rsample()
    with torch.autocast(kind, enabled=False):
        return posterior.rsample()


def _device_of(posterior: Posterior) -> torch.device:
    for parameter in posterior._parameters.values():  # much faster than parameters()
        if parameter is not None:
            return parameter.device
    return next(posterior.parameters()).device

"""One call of a converted network, and what is drawn in it."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from weft.numerics.seeds import mix, reseed, seeded
from weft.posteriors.base import Posterior


class Scope:
    """One call of a converted network: each weight is drawn once in it, however often it is used.

    Opened and closed by hooks on the network that was converted, so a layer called in a loop, a
    module used in two places, tied weights and code that reads `layer.weight` see one draw.
    """

    def __init__(self) -> None:
        self.draws: dict[int, Tensor] | None = None
        self.depth = 0
        self.grad = True
        self.reused: set[int] = set()

    def open(self, module: nn.Module, args: Any) -> None:
        """Forward pre-hook of the converted network; a call within a call stays in the outer one."""
        if self.depth and not _is_running(module):
            self.depth = 0  # an interrupt ended an earlier call before its hooks could run
        if self.depth == 0:
            self.draws = {}
            self.grad = torch.is_grad_enabled()
        self.depth += 1

    def close(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of the converted network; runs after exceptions as well."""
        self.depth -= 1
        if self.depth <= 0:
            self.draws, self.depth = None, 0

    def draw(self, posterior: Posterior, where: str) -> Tensor:
        """The draw of this call, or a fresh one outside of any call."""
        key = id(posterior)
        if self.draws is None:
            if key in self.reused and _is_recomputing():
                raise RuntimeError(
                    f"{where} is used several times in one forward pass and is being recomputed by "
                    "gradient checkpointing, which cannot replay its draw. Run forward and "
                    "backward inside `with weft.frozen(bnn, seed):`, or keep it out of checkpoints"
                )
            return draw(posterior)
        if key in self.draws:
            self.reused.add(key)
        else:
            # a first use inside no_grad must not cost the later ones their gradient
            with torch.set_grad_enabled(self.grad):
                self.draws[key] = draw(posterior)
        return self.draws[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Scope":
        """A closed scope: draws belong to a call and are never copied."""
        memo[id(self)] = twin = Scope()
        return twin

    def __reduce__(self) -> tuple[type["Scope"], tuple[()]]:
        """Pickled as a closed scope."""
        return Scope, ()


class Drawn(Protocol):
    """Where the weights of a network come from while it does not draw them itself."""

    def draw(self, posterior: Posterior) -> Tensor:
        """The weight that stands for a posterior."""


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


class Frozen:
    """Fixed draws: every posterior has a seed of its own, made from the seed of the whole.

    With gradients the draw is made again from its seed at every use, so that each backward pass
    has its own graph; without, it is made once and kept until a parameter changes.

    Args:
        posteriors: in an order that is the same in every process.
        seed: of the whole.
        exclusive: nothing else happens meanwhile: the generators need not be restored after each
            draw, since someone else does it at the end, and no parameter changes.
    """

    def __init__(self, posteriors: Iterable[Posterior], seed: int, exclusive: bool = False) -> None:
        self.order = {id(posterior): index for index, posterior in enumerate(posteriors)}
        self.exclusive = exclusive
        self.seed = seed
        self.width = 1.0
        self.kept: dict[int, tuple[tuple[int, int, float], Tensor]] = {}

    def reseed(self, seed: int, width: float = 1.0) -> None:
        """Move on to the draws of another seed; old ones are given up one by one, as new ones come.

        Args:
            seed: of the whole.
            width: distance of the draws from the mean, as a multiple: draws of a posterior that is
                so much wider.
        """
        self.seed, self.width = seed, width

    def draw(self, posterior: Posterior) -> Tensor:
        """The draw belonging to the posterior's seed."""
        key, grad = id(posterior), torch.is_grad_enabled()
        watched = not (grad or self.exclusive)
        changes = sum(p._version for p in posterior.parameters()) if watched else 0
        version = (self.seed, changes, self.width)
        if key in self.kept and not grad and self.kept[key][0] == version:
            return self.kept[key][1]
        seed, device = mix(self.seed, self.order[key]), device_of(posterior)
        if self.exclusive:
            reseed(seed, device)
            weight = draw(posterior)
        else:
            with seeded(seed, device):
                weight = draw(posterior)
        if self.width != 1.0:
            weight = torch.lerp(posterior.mean, weight, self.width)
        if not grad:
            self.kept[key] = (version, weight)
        return weight


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


def _is_running(module: nn.Module) -> bool:
    """Whether a call of this module is on the stack below the present one."""
    calls, frame = 0, sys._getframe().f_back
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__ and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back
    return calls > 1


def _is_recomputing() -> bool:
    """Whether a backward pass is under way: forward code then runs for checkpointing only."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1

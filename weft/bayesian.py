"""The only layer of weft: any module, run by itself with weights drawn from posteriors."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from weft.estimators import WHOLE_WEIGHT, Estimator, check, mean
from weft.numerics.seeds import seeded
from weft.posteriors.base import FamilyLike, Posterior
from weft.views import View, op_of

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


class Scope:
    """One call of a converted network: each weight is drawn once in it, however often it is used.

    Opened and closed by hooks on the network that was converted, so a layer called in a loop, a
    module used in two places, tied weights and code that reads `layer.weight` see one draw.
    """

    def __init__(self) -> None:
        self.draws: dict[int, Tensor] | None = None
        self.reused: set[int] = set()

    def open(self, module: nn.Module, args: Any) -> None:
        """Forward pre-hook of the converted network."""
        self.draws = {}

    def close(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of the converted network; runs after exceptions as well."""
        self.draws = None

    def draw(self, posterior: Posterior, where: str) -> Tensor:
        """The draw of this call, or a fresh one outside of any call."""
        key = id(posterior)
        if self.draws is None:
            if key in self.reused and _recomputing():
                raise RuntimeError(
                    f"{where} is used several times in one forward pass and is being recomputed by "
                    "gradient checkpointing, which cannot replay its draw. Run forward and "
                    "backward inside `with weft.frozen(bnn, seed):`, or keep it out of checkpoints"
                )
            return _draw(posterior)
        if key in self.draws:
            if torch.is_grad_enabled():
                self.reused.add(key)
            return self.draws[key]
        self.draws[key] = _draw(posterior)
        return self.draws[key]


class Frozen:
    """Fixed draws: every posterior has its own seed.

    With gradients the draw is made again from its seed at every use, so that each backward pass
    has its own graph; without, it is made once and kept.
    """

    def __init__(self, seeds: Mapping[int, int]) -> None:
        self.seeds = dict(seeds)
        self.kept: dict[int, Tensor] = {}

    def draw(self, posterior: Posterior) -> Tensor:
        """The draw belonging to the posterior's seed."""
        key = id(posterior)
        if key in self.kept and not torch.is_grad_enabled():
            return self.kept[key]
        with seeded(self.seeds[key], next(posterior.parameters()).device):
            weight = _draw(posterior)
        if not torch.is_grad_enabled():
            self.kept[key] = weight
        return weight


def _draw(posterior: Posterior) -> Tensor:
    """A draw in the posterior's own precision, also inside autocast."""
    with torch.autocast(next(posterior.parameters()).device.type, enabled=False):
        return posterior.rsample()


def _recomputing() -> bool:
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Bayesian(nn.Module):
    """A module some of whose parameters are random: `wrapped` run with weights from `posteriors`.

    In training mode weights enter by `estimator`; in evaluation mode the posterior mean is used,
    so that the network is deterministic, as validation loops and exporters expect. `weft.using`,
    `weft.frozen`, `weft.predict` and `weft.ELBO` draw in either mode.

    Attributes and methods that the wrapper does not have are the layer's. Reading a random parameter
    (`bnn.fc.weight`) gives the draw of the running forward pass, outside of one the mean.

    Args:
        layer: any module.
        posteriors: for each parameter name, dotted for parameters of children, its posterior,
            view and family; the parameters themselves are taken out of the layer.
        estimator: how randomness enters, in training mode.
        scope: the call of the network this layer belongs to.
        obstacle: why the layer's output cannot be drawn directly, if it cannot.
    """

    def __init__(
        self,
        layer: nn.Module,
        posteriors: Mapping[str, tuple[Posterior, View, FamilyLike]],
        estimator: Estimator,
        scope: Scope,
        obstacle: str | None = None,
    ) -> None:
        super().__init__()
        self.wrapped = layer
        self.posteriors = nn.Module()  # a ModuleDict would refuse parameters called "keys"
        self.views = {name: view for name, (_, view, _) in posteriors.items()}
        self.families = {name: family for name, (_, _, family) in posteriors.items()}
        self.estimator = estimator
        self.override: Estimator | None = None
        self.frozen: Frozen | None = None
        self.scope = scope
        self.obstacle = obstacle
        self._order: dict[str, tuple[str, ...]] = {}
        for name, (posterior, _, _) in posteriors.items():
            self.posteriors.add_module(_key(name), posterior)
            self._remove(name)
        for (
            hooks
        ) in _HOOKS:  # they saw inputs and outputs of the layer, which are now the wrapper's
            mine, theirs = getattr(self, hooks), getattr(layer, hooks)
            setattr(self, hooks, theirs)
            setattr(layer, hooks, mine)
        self.train(layer.training)

    def _remove(self, name: str) -> None:
        """Put an empty buffer in a parameter's place (without the name, DDP and compile break)."""
        path, _, last = name.rpartition(".")
        owner = self.wrapped.get_submodule(path)
        self._order.setdefault(path, tuple(owner._parameters))
        old = owner._parameters.pop(last)
        assert old is not None
        owner.register_buffer(last, old.detach().new_empty(0), persistent=False)
        if isinstance(owner, nn.RNNBase):
            owner._init_flat_weights()  # it holds on to the old parameters otherwise

    def restore(self, values: Mapping[str, nn.Parameter]) -> nn.Module:
        """The layer with these parameters in the place of posteriors, in their original order."""
        for name, value in values.items():
            path, _, last = name.rpartition(".")
            owner = self.wrapped.get_submodule(path)
            del owner._buffers[last]
            owner._non_persistent_buffers_set.discard(last)
            owner._parameters[last] = value
        for path, order in self._order.items():
            owner = self.wrapped.get_submodule(path)
            parameters = {name: owner._parameters[name] for name in order}
            owner._parameters.clear()
            owner._parameters.update(parameters)
            if isinstance(owner, nn.RNNBase):
                owner._init_flat_weights()
        for hooks in _HOOKS:
            mine, theirs = getattr(self, hooks), getattr(self.wrapped, hooks)
            setattr(self.wrapped, hooks, mine)
            setattr(self, hooks, theirs)
        return self.wrapped

    def check(self, estimator: Estimator, name: str) -> None:
        """Refuse an estimator that would be wrong here; `name` is the layer's, for the message."""
        for parameter, posterior in self.named():
            if not self.views[parameter].vector:
                check(
                    estimator, posterior, f"{name!r} ({type(self.wrapped).__name__})", self.obstacle
                )

    def named(self) -> Iterator[tuple[str, Posterior]]:
        """(parameter name, posterior) pairs."""
        for name in self.views:
            yield name, self.posterior(name)

    def posterior(self, name: str) -> Posterior:
        """The posterior of one parameter."""
        return self.posteriors._modules[_key(name)]  # type: ignore[return-value]

    @property
    def active(self) -> Estimator:
        """The estimator in force: an override, or the layer's own, or the mean in eval mode."""
        if self.override is not None:
            return self.override
        return self.estimator if self.training else mean

    def value_of(self, name: str) -> Tensor:
        """One parameter as the layer wants it: the mean, or the draw of this call."""
        posterior = self.posterior(name)
        if self.active is mean:
            value = posterior.mean
        elif self.frozen is not None:
            value = self.frozen.draw(posterior)
        else:
            value = self.scope.draw(posterior, f"{type(self.wrapped).__name__}.{name}")
        return self.views[name].tensor(value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward."""
        if self.active in WHOLE_WEIGHT:
            values = {name: self.value_of(name) for name in self.views}
            return functional_call(self.wrapped, values, args, kwargs)
        x, *rest = args if args else (kwargs.pop("input"),)
        if rest:  # ConvTranspose takes output_size by position
            kwargs["output_size"] = rest[0]
        bias = self.posterior("bias") if "bias" in self.views else self.wrapped.bias
        op = op_of(self.wrapped, self.views["weight"], bias, kwargs)  # type: ignore[arg-type]
        return self.active(self.posterior("weight"), op, x)

    def __getattr__(self, name: str) -> Any:
        """The wrapper's own, then a random parameter, then whatever the layer has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            pass
        views = self.__dict__.get("views")
        if views is None or "wrapped" not in self.__dict__["_modules"]:
            raise AttributeError(name)
        if name not in views:
            return getattr(self._modules["wrapped"], name)
        if self.scope.draws is None and self.frozen is None:
            return views[name].tensor(self.posterior(name).mean)
        if self.active not in WHOLE_WEIGHT:
            raise RuntimeError(
                f"{type(self.wrapped).__name__}.{name} is read by another module while its own layer "
                f"draws outputs, not weights ({self.active.__name__}): no single value exists. "
                'Convert this layer with estimator="shared"'
            )
        return self.value_of(name)


def _key(name: str) -> str:
    return name.replace(".", "/")


def original_modules(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of every module of the ordinary network, once, under its ordinary name."""
    seen: set[int] = set()

    def walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
        module = module.wrapped if isinstance(module, Bayesian) else module
        if id(module) in seen:
            return
        seen.add(id(module))
        yield name, module
        for child_name, child in module.named_children():
            yield from walk(child, f"{name}.{child_name}" if name else child_name)

    return walk(net, "")


def named_bayesian(net: nn.Module) -> Iterator[tuple[str, Bayesian]]:
    """(name, layer) of every Bayesian layer, once each, under the names of the ordinary network."""
    wrappers = {id(m.wrapped): m for m in net.modules() if isinstance(m, Bayesian)}
    for name, module in original_modules(net):
        if id(module) in wrappers:
            yield name, wrappers[id(module)]

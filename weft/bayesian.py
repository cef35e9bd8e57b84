"""The only layer of weft: any module, run by itself with weights drawn from posteriors."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from weft.estimators import WHOLE_WEIGHT, Estimator, auto, check, mean, preferred, shared
from weft.posteriors.base import Builder, Posterior
from weft.scope import Drawn, Scope
from weft.views import View, op_of

Posteriors = Mapping[str, tuple[Posterior, View, Builder]]

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
        posteriors: Posteriors,
        estimator: Estimator,
        scope: Scope,
        obstacle: str | None = None,
    ) -> None:
        super().__init__()
        self.posteriors = nn.Module()  # a ModuleDict would refuse parameters called "keys"
        self.views: dict[str, View] = {}
        self.families: dict[str, Builder] = {}
        self.estimator = estimator
        self.override: Estimator | None = None
        self.frozen: Drawn | None = None
        self.scope = scope
        self.obstacle = obstacle
        self._order: dict[str, tuple[str, ...]] = {}
        self.training = self.posteriors.training = layer.training
        for hooks in _HOOKS:  # what they saw of the layer is now to be seen at the wrapper
            mine, theirs = getattr(self, hooks), getattr(layer, hooks)
            setattr(self, hooks, theirs)
            setattr(layer, hooks, mine)
        self.wrapped = layer
        self.extend(posteriors)

    def extend(self, posteriors: Posteriors) -> None:
        """Make further parameters of the layer random."""
        for name, (posterior, view, family) in posteriors.items():
            self.posteriors.add_module(_key(name), posterior)
            self.views[name], self.families[name] = view, family
            self._remove(name)

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
                layer = f"{name or 'the network'!r} ({type(self.wrapped).__name__})"
                check(estimator, posterior, layer, self.obstacle)

    def named(self) -> Iterator[tuple[str, Posterior]]:
        """(parameter name, posterior) pairs."""
        for name in self.views:
            yield name, self.posterior(name)

    def posterior(self, name: str) -> Posterior:
        """The posterior of one parameter."""
        posterior = self.posteriors._modules[_key(name)]
        assert isinstance(posterior, Posterior)
        return posterior

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
        value = self.views[name].tensor(value)
        padding = getattr(self.wrapped, "padding_idx", None)
        if padding is None or self.active is mean or name != "weight":
            return value
        # the padding row of an embedding means "nothing": it is trained by nothing and stays put
        row = torch.arange(len(value), device=value.device).unsqueeze(-1) == padding
        return torch.where(row, self.views[name].tensor(posterior.mean), value)

    def _draws_weights(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self.active is not auto:
            return self.active in WHOLE_WEIGHT
        x = args[0] if args else kwargs["input"]
        op = op_of(self.wrapped, self.views["weight"], None, {})
        return preferred(self.posterior("weight"), op, x) is shared

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward."""
        if self.obstacle is not None or self._draws_weights(args, kwargs):
            values = {name: self.value_of(name) for name in self.views}
            if type(self.wrapped) is nn.Linear and len(args) == 1:  # its forward, without a detour
                weight, bias = (values.get(n, getattr(self.wrapped, n)) for n in ("weight", "bias"))
                return F.linear(args[0], weight, bias)
            return functional_call(self.wrapped, values, args, kwargs)
        x, *rest = args if args else (kwargs.pop("input"),)
        if rest:  # ConvTranspose takes output_size by position
            kwargs["output_size"] = rest[0]
        shift: Any = self.posterior("bias") if "bias" in self.views else self.wrapped.bias
        op = op_of(self.wrapped, self.views["weight"], shift, kwargs)
        return self.active(self.posterior("weight"), op, x)

    def __getattr__(self, name: str) -> Any:
        """The wrapper's own, then a random parameter, then whatever the layer has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            pass
        layer = self.__dict__["_modules"].get("wrapped")
        if layer is None or name.startswith("__"):  # copy and pickle ask for the wrapper's own
            raise AttributeError(name)
        return self.read(name)

    def read(self, name: str) -> Any:
        """An attribute of the layer, dotted for its children's; random parameters as draws."""
        if name in self.views:
            return self._read(name)
        path, _, last = name.rpartition(".")
        value = getattr(self.wrapped.get_submodule(path), last)
        inside = isinstance(value, nn.Module) and any(v.startswith(f"{name}.") for v in self.views)
        return Inside(self, name) if inside else value

    def _read(self, name: str) -> Tensor:
        """A random parameter as seen from outside of the layer."""
        if self.scope.draws is None and self.frozen is None:
            return self.views[name].tensor(self.posterior(name).mean)
        if self.active not in WHOLE_WEIGHT and self.obstacle is None:
            raise RuntimeError(
                f"{type(self.wrapped).__name__}.{name} is read by another module while its own "
                f"layer draws outputs, not weights ({self.active.__name__}): no single value "
                'exists. Convert this layer with estimator="shared"'
            )
        return self.value_of(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Options of the layer are set on the layer, random parameters not at all."""
        layer = self.__dict__.get("_modules", {}).get("wrapped")
        mine = name in self.__dict__ or name in self._modules or hasattr(type(self), name)
        if (
            layer is None
            or mine
            or name not in {*layer.__dict__, *layer._parameters, *layer._buffers}
        ):
            super().__setattr__(name, value)
        elif name in self.views:
            raise AttributeError(
                f"{type(layer).__name__}.{name} is random and cannot be replaced by a tensor; its "
                f"mean is the parameter layer.posterior({name!r}).loc"
            )
        else:
            setattr(layer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles made inside `using` or `frozen` are outside of it."""
        return {**self.__dict__, "override": None, "frozen": None}

    def __len__(self) -> int:
        """Of the layer, if it is a container."""
        container: Any = self.wrapped
        return len(container)

    def __iter__(self) -> Iterator[Any]:
        """Over the layer, if it is a container."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """An item of the layer, if it is a container; of a ParameterList, a draw."""
        if isinstance(self.wrapped, nn.ParameterList) and isinstance(index, int):
            return getattr(self, str(range(len(self))[index]))
        container: Any = self.wrapped
        return container[index]

    def __bool__(self) -> bool:
        """True, as for any module (`__len__` would make an empty container false)."""
        return True


class Inside:
    """A child of a layer that was converted as a whole, seen from outside, with its random weights."""

    def __init__(self, layer: Bayesian, path: str) -> None:
        self._layer, self._path = layer, path

    def __getattr__(self, name: str) -> Any:
        """The child's attribute; a random parameter as a draw."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._layer.read(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The child with its random weights."""
        prefix = f"{self._path}."
        inside = [name for name in self._layer.views if name.startswith(prefix)]
        values = {name.removeprefix(prefix): self._layer.read(name) for name in inside}
        child = self._layer.wrapped.get_submodule(self._path)
        return functional_call(child, values, args, kwargs)


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

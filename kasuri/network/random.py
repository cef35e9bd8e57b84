"""A converted layer: its own class, with parameters that are read as draws from posteriors.

For every class of layer one subclass is made, with the same name. Conversion sets `layer.__class__` to
it and moves the random parameters into a child `posteriors`. Reading `layer.weight` then ends in
`Random.__getattr__`, which answers with the draw of the running call, or with the mean. The layer's own
code, other modules and other methods all read the same thing, and nothing else about the layer changes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kasuri.network import calls
from kasuri.network.estimators import OF_WEIGHTS, Estimator, auto, mean, preferred, shared
from kasuri.network.views import View, has_op, op_of
from kasuri.numerics.torch_internals import eager, is_recomputing
from kasuri.posteriors.base import Builder, Posterior

POSTERIORS = "posteriors"  # the child that holds the posteriors of a layer


@dataclass
class Conversion:
    """What conversion did to one layer.

    Args:
        order: names of the layer's own parameters before conversion.
        estimator: how randomness enters in training mode.
        root: whether this is the network that was converted, whose call is a whole function.
        obstacle: why the layer's output cannot be drawn directly, if it cannot.
        views: how each random parameter is laid out as a matrix.
        families: what each random parameter's posterior was built by.
        dtypes: the type in which the layer wants each random parameter.
        flat: views as version 0.2 had them, see `view_of`.
    """

    order: tuple[str, ...]
    estimator: Estimator = shared
    root: bool = False
    obstacle: str | None = None
    views: dict[str, View] = field(default_factory=dict)
    families: dict[str, Builder] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    flat: bool = False


if TYPE_CHECKING:
    _Layer = nn.Module  # what a made class has as its other base
else:
    _Layer = object


class Random(_Layer):
    """What a converted layer has besides its own class; always the first base of a made class."""

    _conversion: Conversion

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The layer, in the call of this thread; the outermost one opens that call."""
        if calls.state.call is not None:
            return super().__call__(*args, **kwargs)
        try:
            calls.state.call = calls.Call(self._conversion.root)
            return super().__call__(*args, **kwargs)
        finally:
            calls.state.call = None

    def __getattr__(self, name: str) -> Any:
        """A random parameter as the running call sees it; everything else as in any module."""
        given = calls.state.given
        if given is not None and given[0] is self and name in given[1]:
            return given[1][name]
        conversion = self.__dict__.get("_conversion")
        if conversion is not None and name in conversion.views:
            return value(self, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to put a tensor in the place of a posterior, which it would hide."""
        self._refuse_random(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_random(name)
        super().__delattr__(name)

    def _refuse_random(self, name: str) -> None:
        conversion = self.__dict__.get("_conversion")
        if conversion is not None and name in conversion.views:
            raise AttributeError(
                f"{type(self).__name__}.{name} is random and cannot be replaced or deleted. Its mean is the "
                f"parameter layer.posteriors.{name}.loc; to change the layer itself (resize an embedding, "
                "load other weights) do it before kasuri.bayesianize, or after kasuri.collapse"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Posteriors keep their precision; draws follow the type the layer is asked to have."""
        super()._apply(fn, recurse)
        dtypes = self._conversion.dtypes
        for name, dtype in dtypes.items():
            dtypes[name] = fn(torch.empty(0, dtype=dtype)).dtype
        return self

    def _get_name(self) -> str:
        return f"Bayesian{type(self).__name__}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copied and pickled by the class of the plain layer, since the made class has no module."""
        return _rebuild, (plain_class(type(self)),), self.__getstate__()


class RandomAffine(Random):
    """A layer whose output can be drawn directly, without drawing its weight."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, or a draw of its output."""
        plain = super().forward
        layer: Any = self
        estimator, conversion = active(layer), layer._conversion
        if estimator in OF_WEIGHTS or conversion.obstacle is not None:
            return plain(*args, **kwargs)
        x, *rest = args if args else (kwargs.pop("input"),)
        if rest:  # a transposed convolution takes output_size by position
            kwargs["output_size"] = rest[0]
        weight = posterior_of(layer, "weight")
        bias: Any = posterior_of(layer, "bias") if "bias" in conversion.views else layer.bias

        op = op_of(layer, conversion.views["weight"], bias, partial(_run, layer, plain, kwargs))
        if estimator is auto:
            estimator = shared if _is_reused(weight, bias) else preferred(weight, op, x)
        if estimator in OF_WEIGHTS or not _claim_outputs(weight, bias):
            return plain(x, **kwargs)
        wide = weight.mean.dtype
        if x.dtype == wide or torch.is_autocast_enabled(x.device.type):
            return estimator(weight, op, x)
        if isinstance(bias, Tensor):
            op.bias = bias.to(wide)
        return estimator(weight, op, x.to(wide)).to(x.dtype)  # a network in half precision


def _run(
    layer: nn.Module,
    forward: Callable[..., Tensor],
    options: dict[str, Any],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """The layer's own forward with this weight and bias."""
    before = calls.state.given
    try:
        calls.state.given = layer, {"weight": weight, "bias": bias}
        return forward(x, **options)
    finally:
        calls.state.given = before


class RandomRecurrent(Random):
    """A recurrent layer, which keeps a list of its parameters."""

    @property
    def _flat_weights(self) -> list[Tensor]:
        names: Any = self._flat_weights_names
        return [getattr(self, name) for name in names]

    @_flat_weights.setter
    def _flat_weights(self, weights: Any) -> None:
        """The list is always made anew."""

    def flatten_parameters(self) -> None:
        """Draws have no common memory."""


class RandomContainer(Random):
    """A list or dictionary of modules with parameters of its own, which does not count posteriors."""

    def _items(self) -> dict[str, nn.Module]:
        modules: Any = self._modules
        return {name: module for name, module in modules.items() if name != POSTERIORS}

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Any]:
        named = isinstance(self, nn.ModuleDict)
        return iter(self._items() if named else self._items().values())

    def __contains__(self, key: object) -> bool:
        return key in list(self)

    def __getitem__(self, key: Any) -> Any:
        container: Any = super()
        if not isinstance(key, slice):
            return container.__getitem__(key)
        modules, plain = list(self._items().values())[key], plain_class(type(self))
        return plain(*modules) if issubclass(plain, nn.Sequential) else plain(modules)

    def keys(self) -> Any:
        return self._items().keys()

    def values(self) -> Any:
        return self._items().values()

    def items(self) -> Any:
        return self._items().items()


_made: dict[type, type] = {}


def random_class(plain: type[nn.Module]) -> type[nn.Module]:
    """The class of converted layers of a plain class, the same one every time.

    Examples:
        >>> random_class(nn.Linear).__name__, issubclass(random_class(nn.Linear), nn.Linear)
        ('Linear', True)
    """
    if plain not in _made:
        mixin: type = Random
        if has_op(plain):
            mixin = RandomAffine
        elif issubclass(plain, nn.RNNBase):
            mixin = RandomRecurrent
        elif issubclass(plain, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            mixin = RandomContainer
        names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
        metaclass: Any = type(plain)
        _made[plain] = metaclass(plain.__name__, (mixin, plain), names)
    return _made[plain]


def plain_class(kind: type) -> type[nn.Module]:
    """The class of the layer before conversion."""
    layers = (base for base in kind.__mro__ if issubclass(base, nn.Module))
    return next(layer for layer in layers if not issubclass(layer, Random))


def _rebuild(plain: type[nn.Module]) -> nn.Module:
    cls = random_class(plain)
    return cls.__new__(cls)


def conversion_of(layer: nn.Module) -> Conversion | None:
    """What conversion did to a layer; None for a layer that is as it was."""
    return layer.__dict__.get("_conversion")


def posterior_of(layer: nn.Module, name: str) -> Posterior:
    """The posterior of one parameter of a converted layer."""
    posteriors: Any = layer._modules[POSTERIORS]
    return posteriors._modules[name]


def active(layer: Any) -> Estimator:
    """The estimator in force: an override, or the layer's own, or the mean in evaluation mode."""
    override = calls.state.overrides.get(id(layer))
    if override is not None:
        return override.estimator
    if calls.state.call is None or not layer.training:
        return mean
    estimator: Estimator = layer._conversion.estimator
    return estimator


def value(layer: Any, name: str) -> Tensor:
    """A random parameter, as everyone who reads it in this call sees it."""
    posterior = posterior_of(layer, name)
    call, key = calls.state.call, id(posterior)
    override = calls.state.overrides.get(id(layer))
    weights = None if override is None else override.weights
    if weights is not None:  # again at every use, so that checkpoints can be recomputed
        return _presented(layer, name, weights(posterior))
    if call is None:
        return _presented(layer, name, posterior.mean)
    estimator = active(layer)
    values = call.means if estimator is mean else call.draws
    if key in values:
        if values is call.draws and eager():
            posterior.is_reused = True
        return values[key]
    if estimator is auto and key in call.outputs:
        posterior.is_reused = True
    elif estimator not in OF_WEIGHTS and key in call.outputs:
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
            matrix = calls.draw(posterior)
        values[key] = _presented(layer, name, matrix)
    return values[key]


def _presented(layer: Any, name: str, matrix: Tensor) -> Tensor:
    """A matrix, as posteriors have it, in the layout and type that the layer wants."""
    conversion: Conversion = layer._conversion
    view = conversion.views[name]
    return view.tensor(view.padded(matrix, posterior_of(layer, name))).to(conversion.dtypes[name])


def _is_reused(*drawn: Any) -> bool:
    """Whether some call uses one of these more than once: all uses must see one draw of the weights.

    That is found out when it happens, so in the first call uses before the second have draws of their own.
    """
    call = calls.state.call
    posteriors = [posterior for posterior in drawn if isinstance(posterior, Posterior)]
    for posterior in posteriors:
        if call is not None and id(posterior) in call.outputs:
            posterior.is_reused = True
    return any(posterior.is_reused for posterior in posteriors)


def _claim_outputs(weight: Posterior, bias: Any) -> bool:
    """Whether a layer may draw outputs: not if its weights have been drawn in this call already."""
    call = calls.state.call
    assert call is not None
    posteriors = [weight, *([bias] if isinstance(bias, Posterior) else [])]
    if any(id(posterior) in call.draws for posterior in posteriors):
        return False
    call.outputs.update(map(id, posteriors))
    return True


def _refuse_replay(call: calls.Call, posterior: Posterior, where: str) -> None:
    """Refuse gradient checkpointing that runs one layer again: the draw of its call is not kept."""
    if not call.whole and eager() and posterior.is_reused and is_recomputing():
        raise RuntimeError(
            f"{where} is used several times in one forward pass and is being recomputed by gradient "
            "checkpointing, which cannot replay its draw. Run forward and backward inside "
            "`with kasuri.frozen(bnn, seed):`, or keep it out of checkpoints"
        )


def titled(name: str, module: nn.Module) -> str:
    """A module in an error message."""
    return f"{name or 'the network'!r} ({type(module).__name__})"


def full_name(path: str, name: str) -> str:
    """The name in the network of something in the module at a path."""
    return f"{path}.{name}" if path else name


def original_modules(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, module) of every module of the ordinary network, once, under its ordinary name."""
    found: dict[int, tuple[str, nn.Module]] = {}

    def walk(name: str, module: nn.Module) -> None:
        if id(module) in found:
            return
        found[id(module)] = name, module
        for child_name, child in module._modules.items():
            if child is not None and not (isinstance(module, Random) and child_name == POSTERIORS):
                walk(full_name(name, child_name), child)

    walk("", net)
    return list(found.values())


def named_layers(net: nn.Module) -> Iterator[tuple[str, nn.Module, Conversion]]:
    """(name, layer, what was done) of every layer with random parameters, once each."""
    for name, module in original_modules(net):
        if isinstance(module, Random) and module._conversion.views:
            yield name, module, module._conversion


def named_posteriors(net: nn.Module) -> Iterator[tuple[str, Posterior]]:
    """(name, posterior) of every random parameter, under its name in the ordinary network.

    Tied weights have one posterior and appear once.

    Examples:
        >>> import kasuri
        >>> bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.KTied(1))
        >>> {name: tuple(q.shape) for name, q in kasuri.named_posteriors(bnn)}
        {'weight': (2, 3), 'bias': (2,)}
    """
    found: dict[int, tuple[str, Posterior]] = {}
    for name, layer, conversion in named_layers(net):
        for parameter in conversion.views:
            posterior = posterior_of(layer, parameter)
            found.setdefault(id(posterior), (full_name(name, parameter), posterior))
    return iter(found.values())


def require_posteriors(net: nn.Module) -> dict[str, Posterior]:
    """All posteriors by name; refuse a network without any."""
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"{type(net).__name__} is no network: give one from kasuri.bayesianize, its ELBO, or what "
            "kasuri.fit returned"
        )
    posteriors = dict(named_posteriors(net))
    if not posteriors:
        raise ValueError(
            f"{type(net).__name__} has no Bayesian layer: "
            "write bnn = kasuri.bayesianize(net, kasuri.KTied(2)) first and use bnn"
        )
    return posteriors

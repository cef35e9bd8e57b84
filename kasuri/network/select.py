"""Which modules and parameters of a network a conversion speaks of."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from kasuri.checks import near_misses
from kasuri.network.bayesian import Bayesian, original_modules

Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | Sequence["Where"] | None

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
WHOLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that read the parameters of their children directly: converted as one unit."""


@dataclass(frozen=True)
class Unit:
    """A module that uses parameters itself, with their names relative to it."""

    name: str
    module: nn.Module
    parameters: tuple[str, ...]

    def full(self, parameter: str) -> str:
        """The parameter's name in the network."""
        return f"{self.name}.{parameter}" if self.name else parameter


def units(net: nn.Module) -> Iterator[Unit]:
    """Every module with parameters of its own that are not random yet; norm layers are left out.

    So are ParameterDicts, whose values are read in ways a wrapper cannot follow.
    """
    seen: set[int] = set()

    def walk(module: nn.Module, name: str) -> Iterator[Unit]:
        if id(module) in seen:
            return
        seen.add(id(module))
        module = module.wrapped if isinstance(module, Bayesian) else module
        if isinstance(module, (*NORMS, nn.ParameterDict)):
            return
        whole = isinstance(module, WHOLE)
        held = tuple(_below(module)) if whole else tuple(own_parameters(module))
        if held:
            yield Unit(name, module, held)
        if not whole:
            yield from walk_children(module, name)

    def walk_children(module: nn.Module, name: str) -> Iterator[Unit]:
        for child_name, child in module.named_children():
            yield from walk(child, f"{name}.{child_name}" if name else child_name)

    yield from walk(net, "")


def own_parameters(module: nn.Module) -> Iterator[str]:
    """Names of the parameters a module holds itself."""
    return (name for name, p in module._parameters.items() if p is not None)


def _below(module: nn.Module) -> Iterator[str]:
    for path, child in module.named_modules():
        if not isinstance(child, NORMS):
            for name in own_parameters(child):
                yield f"{path}.{name}" if path else name


def select(net: nn.Module, where: Where) -> list[Unit]:
    """The units that `where` names; an error with near misses if there are none."""
    every = list(units(net))
    if not every:
        raise ValueError(
            f"{type(net).__name__} has no parameters left to convert: "
            "everything is Bayesian already, or it has none but those of norm layers"
        )
    if isinstance(where, Sequence) and not isinstance(where, str):
        for one in where:  # a misspelt part of a list is an error of its own
            select(net, one)
    modules = dict(original_modules(net))
    chosen = []
    for unit in every:
        held = [p for p in unit.parameters if _wanted(modules, _holder(unit, p), where)]
        if held:
            chosen.append(Unit(unit.name, unit.module, tuple(held)))
    if chosen:
        return chosen
    reason = _why_nothing(modules, {type(unit.module).__name__ for unit in every}, where)
    raise ValueError(f"where={where!r} matches no layer that can be made Bayesian; {reason}")


def _why_nothing(modules: Mapping[str, nn.Module], kinds: Set[str], where: Where) -> str:
    """What was asked for instead of something that can become random."""
    matched = [name for name in modules if _wanted(modules, name, where)]
    if matched:
        title = f"{matched[0] or 'the network'!r} ({type(modules[matched[0]]).__name__})"
        return f"{title} is a norm layer, which stays deterministic, or has no parameters left"
    if isinstance(where, type):
        return near_misses(where.__name__, kinds)
    module, _, parameter = str(where).rpartition(".")
    if module in modules and parameter in own_parameters(modules[module]):
        return f"names are those of modules: write where={module!r}"
    return near_misses(str(where), {name for name in modules if name})


def _holder(unit: Unit, parameter: str) -> str:
    """Name of the module that holds a parameter of a unit."""
    return unit.full(parameter).rpartition(".")[0]


def _wanted(modules: Mapping[str, nn.Module], name: str, where: Where) -> bool:
    if where is None:
        return True
    if isinstance(where, Sequence) and not isinstance(where, str):
        return any(_wanted(modules, name, one) for one in where)
    if callable(where) and not isinstance(where, type):
        return bool(where(name, modules[name]))
    parts = name.split(".") if name else []
    around = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
    if isinstance(where, str):  # choosing a block chooses what is inside
        return any(fnmatch.fnmatchcase(outer, where) for outer in around)
    return any(isinstance(modules[outer], where) for outer in around if outer in modules)


def last_layer(net: nn.Module) -> str:
    """Name of the last module with parameters, for `where=kasuri.last_layer(net)`.

    "Last" is by registration, which for networks written in the order they run is the output layer.

    Examples:
        >>> last_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
        '2'
    """
    every = list(units(net))
    if not every:
        raise ValueError(f"{type(net).__name__} has no layer with parameters")
    return every[-1].name

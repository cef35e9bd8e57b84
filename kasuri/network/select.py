"""Which modules and parameters of a network a conversion speaks of."""

import re
from collections.abc import Callable, Mapping, Sequence, Set

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from kasuri.checks import matches, near_misses
from kasuri.network.random import original_modules, titled

Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | Sequence["Where"] | None

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_NAMED_NORM = re.compile(r"(?i:norm)(2d|1d|3d|alization)?(?![a-z])")


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm layer, whose gains and shifts stay ordinary parameters.

    torch's own, and whatever is called a norm and holds nothing but vectors, as the RMSNorm of most
    language models does.
    """
    if isinstance(module, _NORMS):
        return True
    parameters = list(module.parameters(recurse=False))
    gains = all(sum(size > 1 for size in p.shape) <= 1 for p in parameters)
    return bool(parameters) and gains and _NAMED_NORM.search(type(module).__name__) is not None


def units(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module with parameters of its own that are not random yet; norm layers are left out."""
    modules = original_modules(net)
    holders = [(name, m) for name, m in modules if list(m.parameters(recurse=False))]
    return [(name, module) for name, module in holders if not is_norm(module)]


def select(net: nn.Module, where: Where) -> list[tuple[str, nn.Module]]:
    """The modules that `where` names; an error with near misses if there are none."""
    candidates = units(net)
    if not candidates:
        raise ValueError(
            f"{type(net).__name__} has no parameters left to convert: "
            "everything is Bayesian already, or it has none but those of norm layers"
        )
    if isinstance(where, Sequence) and not isinstance(where, str):
        for part in where:  # a misspelt part of a list is an error of its own
            select(net, part)
    modules = dict(original_modules(net))
    chosen = [(name, module) for name, module in candidates if _is_wanted(modules, name, where)]
    if chosen:
        return chosen
    reason = _why_nothing(modules, {type(module).__name__ for _, module in candidates}, where)
    raise ValueError(f"where={where!r} matches no layer that can be made Bayesian; {reason}")


def _why_nothing(modules: Mapping[str, nn.Module], kinds: Set[str], where: Where) -> str:
    """What `where` matches instead of a layer that can become random."""
    matched = [name for name in modules if _is_wanted(modules, name, where)]
    if matched:
        title = titled(matched[0], modules[matched[0]])
        return f"{title} is a norm layer, which stays deterministic, or has no parameters left"
    if isinstance(where, type):
        return near_misses(where.__name__, kinds)
    module, _, parameter = str(where).rpartition(".")
    if module in modules and parameter in dict(modules[module].named_parameters(recurse=False)):
        return f"names are those of modules: write where={module!r}"
    return near_misses(str(where), {name for name in modules if name})


def _is_wanted(modules: Mapping[str, nn.Module], name: str, where: Where) -> bool:
    if where is None:
        return True
    if isinstance(where, Sequence) and not isinstance(where, str):
        return any(_is_wanted(modules, name, part) for part in where)
    if callable(where) and not isinstance(where, type):
        return bool(where(name, modules[name]))
    if isinstance(where, str):  # choosing a block chooses what is inside
        return matches(where, name)
    parts = name.split(".") if name else []
    around = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
    return any(isinstance(modules[outer], where) for outer in around if outer in modules)


def last_layer(net: nn.Module) -> str:
    """Name of the last module with parameters, for `where=kasuri.last_layer(net)`.

    "Last" is by registration, which for networks written in the order they run is the output layer.

    Examples:
        >>> last_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
        '2'
    """
    candidates = units(net)
    if not candidates:
        raise ValueError(f"{type(net).__name__} has no layer with parameters")
    return candidates[-1][0]

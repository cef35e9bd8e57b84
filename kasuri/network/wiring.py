"""Putting posteriors into a network: ties, shared modules, the scope of a call."""

import copy
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from kasuri.network.bayesian import Bayesian, original_modules
from kasuri.network.estimators import Estimator, check
from kasuri.network.scope import Scope
from kasuri.network.select import own_parameters
from kasuri.network.views import View, has_op, view_of
from kasuri.posteriors.base import Builder, Family, Posterior


@dataclass(frozen=True)
class Plan:
    """What is to become of one module.

    Args:
        name: of the module in the ordinary network.
        families: of each parameter that becomes random, by its name relative to the module.
        blocks: whether gates and attention maps are separate matrices.
        estimator: how randomness enters in training mode.
    """

    name: str
    families: Mapping[str, Builder]
    blocks: bool
    estimator: Estimator

    def full(self, parameter: str) -> str:
        """The parameter's name in the network."""
        return f"{self.name}.{parameter}" if self.name else parameter


def apply_plans(net: nn.Module, plans: Sequence[Plan], *, inplace: bool = False) -> nn.Module:
    """The network with the plans carried out, on a copy unless `inplace`.

    Whatever can be refused is refused before the network is touched.
    """
    net = net if inplace else copy.deepcopy(net)
    hung, scope = places(net), Scope()
    for step in _prepare(net, plans, hung):
        if step.wrapper is not None:
            if all(view.vector for view in step.wrapper.views.values()):
                step.wrapper.estimator = step.plan.estimator  # the first one that matters
            step.wrapper.extend(step.posteriors)
            step.wrapper.obstacle = step.obstacle
            continue
        wrapper = Bayesian(step.module, step.posteriors, step.plan.estimator, scope, step.obstacle)
        for parent, name in hung.get(id(step.module), []):
            parent._modules[name] = wrapper
        net = wrapper if step.module is net else net
    _rescope(net, scope)
    return net


@dataclass(frozen=True)
class _Step:
    """A plan, the module it speaks of, its wrapper if it has one already, and what goes into it."""

    plan: Plan
    module: nn.Module
    wrapper: Bayesian | None
    posteriors: dict[str, tuple[Posterior, View, Builder]]
    obstacle: str | None


def _prepare(
    net: nn.Module, plans: Sequence[Plan], hung: Mapping[int, Sequence[tuple[nn.Module, str]]]
) -> list[_Step]:
    """Posteriors for every plan, tied parameters sharing one; nothing in the network changes."""
    modules = dict(original_modules(net))
    wrappers = {id(m.wrapped): m for m in net.modules() if isinstance(m, Bayesian)}
    tied = _tied(modules, plans)
    built: dict[int, tuple[Posterior, View, Builder]] = {}
    steps = []
    for plan in plans:
        module = modules[plan.name]
        _refuse_impossible(plan, module)
        wrapper = wrappers.get(id(module))
        uses = len(hung.get(id(wrapper or module), []))
        random = {*plan.families, *(wrapper.views if wrapper else ())}
        step = _Step(plan, module, wrapper, {}, _obstacle(module, random, plan, tied, uses))
        for name, family in plan.families.items():
            tensor = module.get_parameter(name)
            if id(tensor) not in built:
                owner = module.get_submodule(name.rpartition(".")[0])
                built[id(tensor)] = _build(family, view_of(owner, tensor, plan.blocks), tensor)
            posterior, view, _ = step.posteriors[name] = built[id(tensor)]
            if not view.vector:
                check(plan.estimator, posterior, _title(plan, module), step.obstacle)
        steps.append(step)
    return steps


def _title(plan: Plan, module: nn.Module) -> str:
    return f"{plan.name or 'the network'!r} ({type(module).__name__})"


def _build(family: Builder, view: View, tensor: nn.Parameter) -> tuple[Posterior, View, Builder]:
    if isinstance(family, Family) and not view.vector:
        family = family.for_kernel(view.positions)
    # random starts are drawn number by number in memory: the same for every layout
    posterior = family(view.matrix(tensor.detach()).contiguous())
    if not isinstance(posterior, Posterior):
        raise TypeError(f"{family!r} made a {type(posterior).__name__}, not a kasuri.Posterior")
    return posterior, view, family


def places(net: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """For every module, each (parent, attribute) it hangs at."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in net.modules():
        for name, child in parent._modules.items():
            if child is not None:
                found.setdefault(id(child), []).append((parent, name))
    return found


def _tied(modules: Mapping[str, nn.Module], plans: Sequence[Plan]) -> set[int]:
    """Ids of chosen parameters that several modules hold; refuse if only some of these are chosen."""
    holders: dict[int, list[str]] = {}
    for path, module in modules.items():
        for name in own_parameters(module):
            full = f"{path}.{name}" if path else name
            holders.setdefault(id(module._parameters[name]), []).append(full)
    taken: dict[int, list[str]] = {}
    for plan in plans:
        for name in plan.families:
            tensor = modules[plan.name].get_parameter(name)
            taken.setdefault(id(tensor), []).append(plan.full(name))
    for key, names in taken.items():
        others = [name for name in holders[key] if name not in names]
        if others:
            every = sorted({name.rpartition(".")[0] for name in holders[key]})
            raise ValueError(
                f"{names[0]!r} is tied to {', '.join(map(repr, others))}, which was not chosen: "
                f"converting one alone would untie them; write where={every}"
            )
    return {key for key, names in taken.items() if len(names) > 1}


def _obstacle(
    module: nn.Module, random: Set[str], plan: Plan, tied: set[int], uses: int
) -> str | None:
    """Why `local` and `flipout` would be wrong here, if they would."""
    if not has_op(module) or "weight" not in random:
        return "it works on Linear and convolution layers whose weight is random, and no others"
    if uses > 1:
        return "the layer is used in several places, which must see the same weights"
    if any(id(module.get_parameter(name)) in tied for name in plan.families):
        return "its weight is tied to another layer's, which must see the same draw"
    return None


def _refuse_impossible(plan: Plan, module: nn.Module) -> None:
    """Layers whose weight is made elsewhere, or whose gradients no posterior can take."""
    title = _title(plan, module)
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod):
            raise ValueError(
                f"{title} computes its weight in a {type(hook).__name__} hook, which would overwrite "
                "every draw; use torch.nn.utils.parametrizations instead of the old weight_norm and "
                "spectral_norm, and prune.remove(layer, name) to make pruning permanent"
            )
    if getattr(module, "sparse", False) is True:
        raise ValueError(
            f"{title} has sparse=True, and the gradients of a posterior are dense; "
            "build it with sparse=False"
        )


def _rescope(net: nn.Module, scope: Scope) -> None:
    """Make one call of `net` the scope of every Bayesian layer in it."""
    for module in net.modules():
        drop_scope(module)
        if isinstance(module, Bayesian):
            module.scope = scope
    net.register_forward_pre_hook(scope.open)
    net.register_forward_hook(scope.close, always_call=True)


def drop_scope(module: nn.Module) -> None:
    """Remove the hooks that make a module the scope of draws."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), Scope):
                del hooks[key]
                module._forward_hooks_always_called.pop(key, None)

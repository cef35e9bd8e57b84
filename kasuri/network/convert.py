"""From an ordinary network to a Bayesian one and back: `bayesianize` and `collapse` are exact inverses."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from kasuri.checks import one_of
from kasuri.network import random
from kasuri.network.contexts import frozen, using
from kasuri.network.estimators import Estimator, check, mean, resolve
from kasuri.network.select import Where, select
from kasuri.network.views import View, has_op, view_of
from kasuri.posteriors.base import Builder, Family, FamilyLike, Posterior
from kasuri.streams import fresh


def bayesianize(
    net: nn.Module,
    family: FamilyLike,
    *,
    where: Where = None,
    estimator: Estimator | str = "auto",
    bias: FamilyLike | bool = True,
    blocks: bool = False,
    inplace: bool = False,
) -> nn.Module:
    """The network with posteriors in the place of its weights.

    Every layer keeps its class, options, methods and hooks; only its parameters are read as draws. Norm
    layers and parameters with requires_grad=False stay as they are. Call it again on the result, with
    another `where`, to mix families. `kasuri.summary(bnn)` tells what was done.

    Args:
        net: any module.
        family: posterior of matrices, e.g. kasuri.KTied(2).
        where: which layers: a glob over module names ("layer*.conv?"; a container's name means all
            inside), a module class, a callable (name, module) -> bool, or a list of these.
            kasuri.last_layer(net) names the last one.
        estimator: how noise enters during training: "auto" (local where it is exact and cheaper, else
            shared), "shared" (exact for everything), "local", "flipout", "mean", or the function.
        bias: posterior of vectors (biases): True for the family's own choice, False to leave
            them ordinary parameters, or a family.
        blocks: treat the gates of recurrent layers and the heads of attention as separate matrices.
        inplace: convert the given object instead of a copy.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> bnn = kasuri.bayesianize(net, kasuri.KTied(2))
        >>> [name for name, _ in kasuri.named_posteriors(bnn)]
        ['0.weight', '0.bias', '2.weight', '2.bias']
        >>> isinstance(bnn[0], nn.Linear)
        True
    """
    matrices, vectors = _families(family, bias)
    estimator = resolve(estimator)
    plans = [
        Plan(name, families, blocks, estimator)
        for name, module in select(net, where)
        if (families := _assign(module, matrices, vectors))
    ]
    if not plans:
        raise ValueError(
            f"where={where!r} with bias={bias!r} leaves nothing to convert: every parameter there "
            "is frozen (requires_grad=False) or a bias"
        )
    return apply_plans(net, plans, inplace=inplace)


def _assign(module: nn.Module, matrices: Builder, vectors: Builder | None) -> dict[str, Builder]:
    """The family of each parameter of a module that becomes random."""
    families: dict[str, Builder] = {}
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        family = matrices if parameter.dim() >= 2 else vectors
        if family is not None and parameter.requires_grad and parameter.is_floating_point():
            families[name] = family
    return families


def _families(family: FamilyLike, bias: FamilyLike | bool) -> tuple[Builder, Builder | None]:
    """The builders for matrices and for vectors (None: leave vectors alone)."""
    matrices = _instance(family, "family")
    if bias is False:
        return matrices, None
    if bias is True:
        return matrices, matrices.for_vectors() if isinstance(matrices, Family) else matrices
    return matrices, _instance(bias, "bias")


def _instance(family: FamilyLike, argument: str) -> Builder:
    if isinstance(family, type) and issubclass(family, Family):
        return family()
    if callable(family) and not isinstance(family, nn.Module | type):
        return family
    raise TypeError(
        f"{argument}={family!r} is not a posterior family: write kasuri.KTied(2), "
        "kasuri.MeanField(), kasuri.Point() or a function from a weight to a kasuri.Posterior"
    )


@dataclass(frozen=True)
class Plan:
    """What is to become of one module.

    Args:
        name: of the module in the ordinary network.
        families: of each parameter that becomes random.
        blocks: whether gates and attention maps are separate matrices.
        estimator: how randomness enters in training mode.
        flat: views as version 0.2 had them, see `view_of`.
    """

    name: str
    families: Mapping[str, Builder]
    blocks: bool
    estimator: Estimator
    flat: bool = False


class _Built(NamedTuple):
    """A posterior for one parameter, and for all that are tied to it."""

    posterior: Posterior
    view: View
    family: Builder
    dtype: torch.dtype


def apply_plans(net: nn.Module, plans: Sequence[Plan], *, inplace: bool = False) -> nn.Module:
    """The network with the plans carried out, on a copy unless `inplace`.

    Whatever can be refused is refused before the network is touched.
    """
    net = net if inplace else copy.deepcopy(net)
    modules = dict(random.original_modules(net))
    for plan, built, obstacle in _prepare(net, modules, plans):
        layer = modules[plan.name]
        conversion = _converted(layer)
        if all(view.vector for view in conversion.views.values()):
            conversion.estimator = plan.estimator  # the first one that matters
        conversion.obstacle, conversion.flat = obstacle, plan.flat
        for name, parameter in built.items():
            del layer._parameters[name]
            _put_posterior(layer, name, parameter.posterior)
            conversion.views[name] = parameter.view
            conversion.families[name] = parameter.family
            conversion.dtypes[name] = parameter.dtype
    for module in modules.values():
        if isinstance(module, random.Random):
            module._conversion.root = False
    _converted(net).root = True
    return net


def _converted(layer: nn.Module) -> random.Conversion:
    """What conversion did to a layer; one that is plain is given the class of converted ones."""
    conversion = random.conversion_of(layer)
    if conversion is None:
        if random.POSTERIORS in layer._modules or random.POSTERIORS in layer._parameters:
            raise ValueError(
                f"{type(layer).__name__} has an attribute {random.POSTERIORS!r}, which is where kasuri keeps "
                "the posteriors of a layer; rename it"
            )
        conversion = random.Conversion(tuple(layer._parameters))
        layer.__class__ = random.random_class(type(layer))
        layer.__dict__["_conversion"] = conversion
    return conversion


def _put_posterior(layer: nn.Module, name: str, posterior: Posterior) -> None:
    """Set or replace the posterior of one parameter of a converted layer."""
    holder = layer._modules.get(random.POSTERIORS)
    if holder is None:
        holder = nn.Module()
        holder.training = layer.training
        layer._modules[random.POSTERIORS] = holder
    holder._modules[name] = posterior


def _prepare(
    net: nn.Module, modules: Mapping[str, nn.Module], plans: Sequence[Plan]
) -> list[tuple[Plan, dict[str, _Built], str | None]]:
    """Posteriors for every plan, tied parameters sharing one; nothing in the network changes."""
    holders = _holders(modules)
    _refuse_untying(plans, holders)
    uses = Counter(id(child) for parent in net.modules() for child in parent._modules.values())
    built: dict[int, _Built] = {}
    prepared = []
    for plan in plans:
        module = modules[plan.name]
        title = random.titled(plan.name, module)
        _refuse_impossible(title, module)
        conversion = random.conversion_of(module)
        converted = {*plan.families, *(conversion.views if conversion else ())}
        tensors = {name: module.get_parameter(name) for name in plan.families}
        tied = any(len(holders[id(tensor)]) > 1 for tensor in tensors.values())
        obstacle = _obstacle(module, converted, tied, uses[id(module)])
        mine = {}
        for name, tensor in tensors.items():
            if id(tensor) not in built:
                owners = [modules[full.rpartition(".")[0]] for full in holders[id(tensor)]]
                view = view_of(module, tensor, plan.blocks, flat=plan.flat)
                view = _with_padding(view, owners)
                built[id(tensor)] = _build(plan.families[name], view, tensor)
            mine[name] = built[id(tensor)]
            if not mine[name].view.vector:
                check(plan.estimator, mine[name].posterior, title, obstacle)
        prepared.append((plan, mine, obstacle))
    return prepared


def _with_padding(view: View, owners: Sequence[nn.Module]) -> View:
    """A padding row of an embedding is a padding row of every layer that is tied to it."""
    for owner in owners:
        padding: Any = getattr(owner, "padding_idx", None)
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and padding is not None:
            return replace(view, padding=padding)
    return view


def _build(family: Builder, view: View, tensor: nn.Parameter) -> _Built:
    if isinstance(family, Family) and not view.vector:
        family = family.for_kernel(view.positions)
    weight = tensor.detach()
    if weight.dtype in (torch.float16, torch.bfloat16):
        weight = weight.float()  # standard deviations are not learned in half precision
    # random starts are drawn number by number in memory: the same for every layout
    posterior = family(view.matrix(weight).contiguous())
    if not isinstance(posterior, Posterior):
        raise TypeError(f"{family!r} made a {type(posterior).__name__}, not a kasuri.Posterior")
    return _Built(posterior, view, family, tensor.dtype)


def _holders(modules: Mapping[str, nn.Module]) -> dict[int, list[str]]:
    """By id of a parameter, all of its names."""
    holders: dict[int, list[str]] = {}
    for path, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            holders.setdefault(id(parameter), []).append(random.full_name(path, name))
    return holders


def _refuse_untying(plans: Sequence[Plan], holders: Mapping[int, list[str]]) -> None:
    """Refuse to convert a parameter in some of the modules that hold it."""
    chosen = {random.full_name(plan.name, name) for plan in plans for name in plan.families}
    for names in holders.values():
        mine = [name for name in names if name in chosen]
        others = [name for name in names if name not in chosen]
        if mine and others:
            layers = sorted({name.rpartition(".")[0] for name in names})
            raise ValueError(
                f"{mine[0]!r} is tied to {', '.join(map(repr, others))}, which was not chosen: "
                f"converting one alone would untie them; write where={layers}"
            )


def _obstacle(module: nn.Module, converted: Set[str], tied: bool, uses: int) -> str | None:
    """Why `local` and `flipout` would be wrong here, if they would."""
    plain = random.plain_class(type(module))
    if not has_op(plain) or "weight" not in converted:
        return "it works on Linear and convolution layers whose weight is random, and no others"
    if uses > 1:
        return "the layer is used in several places, which must see the same weights"
    if tied:
        return "its weight is tied to another layer's, which must see the same draw"
    return None


def _refuse_impossible(title: str, module: nn.Module) -> None:
    """Layers whose weight is made elsewhere, or whose gradients no posterior can take."""
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


def replace_posteriors(net: nn.Module, new: Mapping[str, tuple[Posterior, Builder]]) -> None:
    """Exchange posteriors in place.

    Args:
        net: a converted network.
        new: by name, as in `named_posteriors`, a posterior and the family that files will know it by.
    """
    exchanged = {id(q): new[name] for name, q in random.named_posteriors(net) if name in new}
    for title, layer, conversion in random.named_layers(net):
        for name in conversion.views:
            old = random.posterior_of(layer, name)
            if id(old) in exchanged:
                posterior, family = exchanged[id(old)]
                if not conversion.views[name].vector:
                    check(conversion.estimator, posterior, repr(title), conversion.obstacle)
                _put_posterior(layer, name, posterior.train(old.training))
                conversion.families[name] = family


def collapse(
    net: nn.Module, draw: Literal["mean", "sample"] = "mean", *, seed: int | None = None
) -> nn.Module:
    """The ordinary network again: `bayesianize` undone, on a copy.

    Classes, names, order of parameters and ties are the original ones; nothing of kasuri is left.

    Args:
        net: a network from `bayesianize`.
        draw: "mean" for the posterior mean, "sample" for one draw.
        seed: of the draw; `collapse(bnn, "sample", seed=s)` has the weights of `frozen(bnn, s)`.

    Examples:
        >>> import kasuri
        >>> net = nn.Linear(3, 2)
        >>> again = kasuri.collapse(kasuri.bayesianize(net, kasuri.MeanField()))
        >>> torch.equal(net.weight, again.weight)
        True
    """
    one_of(draw=(draw, Literal["mean", "sample"]))
    net = copy.deepcopy(net)
    parameters: dict[int, nn.Parameter] = {}
    weights = using(net, mean)
    if draw == "sample":
        weights = frozen(net, fresh() if seed is None else seed)
    with torch.no_grad(), weights:
        for _, layer, conversion in random.named_layers(net):
            for name in conversion.views:
                posterior = random.posterior_of(layer, name)
                if id(posterior) not in parameters:
                    value = random.value(layer, name).detach().clone()
                    trained = any(p.requires_grad for p in posterior.parameters())
                    parameters[id(posterior)] = nn.Parameter(value, requires_grad=trained)
    for _, module in random.original_modules(net):
        if isinstance(module, random.Random):
            views = module._conversion.views
            values = {n: parameters[id(random.posterior_of(module, n))] for n in views}
            _make_plain(module, values)
    return net


def _make_plain(layer: nn.Module, values: Mapping[str, nn.Parameter]) -> None:
    """Undo the conversion of a layer: these parameters in the place of posteriors, in their old order."""
    conversion: random.Conversion = layer.__dict__.pop("_conversion")
    layer._modules.pop(random.POSTERIORS, None)
    layer.__class__ = random.plain_class(type(layer))
    parameters: dict[str, Any] = {**layer._parameters, **values}
    layer._parameters.clear()
    for name in [*(n for n in conversion.order if n in parameters), *parameters]:
        layer._parameters.setdefault(name, parameters[name])
    if isinstance(layer, nn.RNNBase):
        layer._init_flat_weights()

"""From an ordinary network to a Bayesian one and back."""

import copy

import torch
from torch import nn

from kasuri.network.bayesian import Bayesian
from kasuri.network.contexts import frozen, using
from kasuri.network.estimators import Estimator, mean, resolve, shared
from kasuri.network.select import Unit, Where, select
from kasuri.network.summary import summary
from kasuri.network.wiring import Plan, apply_plans, drop_scope, places
from kasuri.posteriors.base import Builder, Family, FamilyLike
from kasuri.streams import fresh


def bayesianize(
    net: nn.Module,
    family: FamilyLike,
    *,
    where: Where = None,
    estimator: Estimator | str | None = None,
    bias: FamilyLike | bool = True,
    blocks: bool = False,
    inplace: bool = False,
    verbose: bool = False,
) -> nn.Module:
    """The network with posteriors in the place of its weights.

    Every layer keeps its class, options and forward; only where its parameters come from changes.
    Norm layers and parameters with requires_grad=False stay as they are. Call it again on the
    result, with another `where`, to mix families. `kasuri.summary(bnn)` tells what was done.

    Args:
        net: any module.
        family: posterior of matrices, e.g. kasuri.KTied(rank=2).
        where: which layers: a glob over module names ("layer*.conv?"; a container's name means all
            inside), a module class, a callable (name, module) -> bool, or a list of these.
            kasuri.last_layer(net) names the last one.
        estimator: how noise enters during training: "shared" (exact for everything), "local",
            "flipout", "auto" (local where it is exact and cheaper, else shared), "mean", or the
            function. By default "auto" for matrix normals, "shared" for the others.
        bias: posterior of vectors (biases): True for the family's own choice, False to leave
            them ordinary parameters, or a family.
        blocks: treat the gates of recurrent layers and the heads of attention as separate matrices.
        inplace: convert the given object instead of a copy. Use the returned one in any case:
            a network that is itself one layer, or holds parameters itself, is wrapped.
        verbose: print the summary.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2))
        >>> [name for name, _ in kasuri.named_posteriors(bnn)]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    matrices, vectors = _families(family, bias)
    if estimator is None:
        estimator = matrices.estimator if isinstance(matrices, Family) else shared
    estimator = resolve(estimator)
    plans = [
        Plan(unit.name, families, blocks, estimator)
        for unit in select(net, where)
        if (families := _assign(unit, matrices, vectors))
    ]
    if not plans:
        raise ValueError(
            f"where={where!r} with bias={bias!r} leaves nothing to convert: every parameter there "
            "is frozen (requires_grad=False) or a bias"
        )
    net = apply_plans(net, plans, inplace=inplace)
    if verbose:
        print(summary(net))
    return net


def _assign(unit: Unit, matrices: Builder, vectors: Builder | None) -> dict[str, Builder]:
    """The family of each parameter of a unit that becomes random."""
    families: dict[str, Builder] = {}
    for name in unit.parameters:
        parameter = unit.module.get_parameter(name)
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
        f"{argument}={family!r} is not a posterior family: write kasuri.KTied(rank=2), "
        "kasuri.MeanField(), kasuri.Point() or a function from a weight to a kasuri.Posterior"
    )


def collapse(net: nn.Module, draw: Estimator | str = mean, *, seed: int | None = None) -> nn.Module:
    """The ordinary network again: `bayesianize` undone, on a copy.

    Classes, names, order of parameters and ties are the original ones; nothing of kasuri is left.

    Args:
        net: a network from `bayesianize`.
        draw: "mean" for the posterior mean, "sample" (or kasuri.shared) for one draw.
        seed: of the draw; `collapse(bnn, "sample", seed=s)` has the weights of `frozen(bnn, s)`.

    Examples:
        >>> import kasuri
        >>> net = nn.Linear(3, 2)
        >>> again = kasuri.collapse(kasuri.bayesianize(net, kasuri.MeanField()))
        >>> torch.equal(net.weight, again.weight)
        True
    """
    estimator = shared if draw == "sample" else resolve(draw)
    if estimator not in (mean, shared):
        raise ValueError(f'collapse(draw={draw!r}): write draw="mean" or draw="sample"')
    net = copy.deepcopy(net)
    values: dict[int, nn.Parameter] = {}
    # a mean takes no number of the global generator
    drawn = None if estimator is mean else fresh() if seed is None else seed
    with torch.no_grad(), using(net, mean) if drawn is None else frozen(net, drawn):
        for module in list(net.modules()):
            if isinstance(module, Bayesian):
                for name, q in module.named():
                    if id(q) not in values:
                        value = module.value_of(name).detach().clone()
                        trained = any(one.requires_grad for one in q.parameters())
                        values[id(q)] = nn.Parameter(value, requires_grad=trained)
    hung = places(net)
    for module in list(net.modules()):
        drop_scope(module)
        if isinstance(module, Bayesian):
            plain = module.restore({name: values[id(q)] for name, q in module.named()})
            for parent, name in hung.get(id(module), []):
                parent._modules[name] = plain
            net = plain if module is net else net
    return net

"""What networks must have in common to be trained together, refused with a sentence if they have not."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from kasuri.network.random import named_layers
from kasuri.objectives.elbo import ELBO, Objective
from kasuri.training import preparing
from kasuri.training.sources import tensors


def check_members(
    models: Sequence[nn.Module], trains: Sequence[Any], valids: Sequence[Any] | None
) -> None:
    """Refuse what cannot be stacked, with a sentence."""
    if not models:
        raise ValueError("fit_many([], ...): there is no network to train")
    if len({id(model) for model in models}) < len(models):
        raise ValueError("fit_many: give different networks; copy.deepcopy makes more of one")
    if any(isinstance(model, Objective) and not model.has_targets for model in models):
        raise TypeError("fit_many cannot stack auto-encoders; train them by kasuri.fit one by one")
    for name, given in (("trains", trains), ("valids", valids)):
        if given is not None and len(given) != len(models):
            raise ValueError(f"fit_many: {len(given)} {name} for {len(models)} networks")
    shapes = set()
    for train in trains:
        x, y = tensors(train)
        if not isinstance(x, Tensor):
            raise TypeError(f"fit_many: inputs are a {type(x).__name__}, they must be one tensor")
        shapes.add((x.shape, y.shape))
    if len(shapes) > 1:
        raise ValueError(
            "fit_many: the training sets have different sizes "
            f"({', '.join(str(tuple(x)) for x, _ in sorted(shapes))}): steps are taken together, so give "
            "each network the same number of examples, or train those groups apart"
        )


def check_equal(objectives: Sequence[Objective]) -> None:
    """Refuse members that differ in more than parameters and buffers: the first one's program serves all."""
    programs = [_program(one) for one in objectives]
    for member, one in enumerate(programs):
        for what, (first, other) in _pairs(programs[0], one):
            if first != other:
                raise ValueError(
                    f"fit_many: networks 0 and {member} must be equal in all but the values of their "
                    f"parameters, since one program serves all; they differ in their {what}: {first} "
                    f"and {other}"
                )


def _program(objective: Objective) -> dict[str, Any]:
    """All that a stack takes from its first member, for people."""
    told: dict[str, Any] = {
        "likelihoods and priors": " with ".join(preparing.described(objective)),
        "output": objective.output,
    }
    for name, module in objective.net.named_modules():
        told[f"module {name or 'as a whole'}"] = f"{type(module).__name__}({module.extra_repr()})"
    for name, _, conversion in named_layers(objective.net):
        told[f"families and estimator of {name or 'the network'}"] = (
            f"{conversion.families}, {conversion.estimator.__name__}"
        )
    for name, parameter in objective.named_parameters():
        told[f"requires_grad of {name}"] = parameter.requires_grad
    if isinstance(objective, ELBO):
        told["num_data and samples"] = (objective.num_data, objective.samples)
        told["patterns of priors"] = objective.governed
    return told


def _pairs(first: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key in dict.fromkeys((*first, *other)):
        yield key, (first.get(key), other.get(key))

"""Which layers read the inputs of the network itself, and nothing that other layers make."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from weft.compression.counting import watching
from weft.compression.graph import run


@torch.no_grad()
def input_readers(net: nn.Module, example: Any) -> frozenset[str]:
    """Names of layers whose inputs stay the same whatever the parameters of the network are.

    Args:
        net: plain, in evaluation mode.
        example: a batch of inputs.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> sorted(input_readers(net, torch.ones(1, 2, 2)))
        ['1']
    """
    other = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    for parameter in other.parameters():
        if parameter.is_floating_point():
            noise = torch.empty(parameter.shape, dtype=torch.float64).normal_(generator=generator)
            parameter.data += noise.to(parameter)
    one, two = _inputs(net, example), _inputs(other, example)
    return frozenset(name for name, seen in one.items() if name in two and _equal(seen, two[name]))


def _inputs(net: nn.Module, example: Any) -> dict[str, list[Tensor]]:
    """What every layer was given, call by call; attention counts as one layer."""
    names = {module: name for name, module in net.named_modules()}
    seen: dict[str, list[Tensor]] = {}

    def look(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        given = [one.clone() for one in leaves if isinstance(one, Tensor)]
        seen.setdefault(names[module], []).extend(given)

    with watching(net, look):
        run(net, example)
    return seen


def _equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))

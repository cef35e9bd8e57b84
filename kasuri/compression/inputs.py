"""Which layers read the inputs of the network itself, and nothing that other layers make."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.compression.counting import watching
from kasuri.compression.running import run

TRIALS = 6  # rectifiers that are all dead give the same zeros whatever is before them


@torch.no_grad()
def input_readers(net: nn.Module, example: Any) -> frozenset[str]:
    """Names of modules whose inputs stay the same whatever the parameters are; "" is the network itself.

    Args:
        net: plain, in evaluation mode.
        example: a batch of inputs.

    Examples:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> sorted(input_readers(net, torch.ones(1, 2, 2)))
        ['', '0', '1']
    """
    generator = torch.Generator().manual_seed(0)
    one = _inputs(net, example)
    same = frozenset(one)
    for _ in range(TRIALS):
        two = _inputs(_disturbed(net, generator), example)
        same = frozenset(name for name in same if name in two and _equal(one[name], two[name]))
    return same


def _disturbed(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with noise on every parameter."""
    other = copy.deepcopy(net)
    for parameter in other.parameters():
        if parameter.is_floating_point():
            # a factor as well: a bias of -100 is still one after adding a little
            noise = torch.empty(2, *parameter.shape, dtype=torch.float64)
            factor, more = noise.normal_(generator=generator).to(parameter)
            parameter.data = parameter.data * factor + more
    return other


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
    return len(one) == len(other) and all(
        a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(one, other, strict=True)
    )

"""What is left of networks, layer by layer, and which of them to report."""

from collections.abc import Sequence
from typing import Any

from torch import nn


def layers_of(net: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """Convolutions and dense layers, in the order in which they are declared."""
    return [one for one in net.modules() if isinstance(one, nn.Conv2d | nn.Linear)]


def weights_by_layer(net: nn.Module) -> list[int]:
    """Weights other than 0 of every layer."""
    return [int(layer.weight.count_nonzero()) for layer in layers_of(net)]


def widths(net: nn.Module) -> str:
    """Units that are left, layer after layer, as tables write them: 4-7-110-66 for a LeNet-5.

    Where a layer reads a number of inputs that the layer before it does not have, that number stands between;
    inputs of images and outputs of the network are left out.

    Examples:
        >>> widths(nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 10)))
        '4-64-6'
    """
    found: list[int] = []
    for layer in layers_of(net):
        read = int((layer.weight.detach() != 0).transpose(0, 1).flatten(1).any(1).sum())
        dense = isinstance(layer, nn.Linear)
        if (found and found[-1] != read) or (not found and dense):
            found.append(read)
        found.append(len(layer.weight))
    return "-".join(map(str, found[:-1]))


def chosen(
    points: Sequence[dict[str, Any]], error: float, slack: float = 0.0, size: str = "weights"
) -> int:
    """The smallest point whose validation error is within a bound, or within `slack` of the lowest.

    Examples:
        >>> points = [{"weights": 9, "valid_error": 0.005}, {"weights": 5, "valid_error": 1 - 0.99},
        ...           {"weights": 2, "valid_error": 0.05}]
        >>> chosen(points, 0.01), chosen(points, 0.001), chosen(points, 0.001, slack=0.005)
        (1, 0, 1)
    """
    bound = max(error, min(one["valid_error"] for one in points) + slack)
    # a share of wrong answers is a number that rounding may have moved
    within = [i for i, one in enumerate(points) if one["valid_error"] <= bound + 1e-6]
    return min(within, key=lambda i: points[i][size])

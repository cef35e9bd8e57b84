"""What layers see: inputs that are the same for every example, position and time step."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kasuri.compression.layers import feature_dim
from kasuri.compression.running import run
from kasuri.network.contexts import plain_path

ROUNDING = 1e-12  # relative: sums of the same numbers differ by the order they are taken in


@torch.no_grad()
def constants(
    net: nn.Module, inputs: Sequence[Any], reading: set[str], making: set[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Constant inputs of some layers and constant outputs of others; NaN where they vary.

    Args:
        net: plain, in evaluation mode.
        inputs: probes.
        reading: names of layers whose inputs are wanted.
        making: names of recurrent layers whose outputs are.
    """
    ranges: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def note(key: tuple[str, str], value: Tensor, dim: int) -> None:
        flat = value.detach().movedim(dim, -1).reshape(-1, value.shape[dim])
        low, high = flat.amin(0), flat.amax(0)
        if key in ranges:
            low = torch.minimum(low, ranges[key][0])
            high = torch.maximum(high, ranges[key][1])
        ranges[key] = (low, high)

    handles = []
    for name in reading | making:
        module = net.get_submodule(name)

        def seen(module: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            x = x.data if isinstance(x, PackedSequence) else x
            note((name, "in"), x, feature_dim(module))
            if name in making:
                y = out[0].data if isinstance(out[0], PackedSequence) else out[0]
                note((name, "out"), y, -1)

        handles.append(module.register_forward_hook(seen, with_kwargs=True))
    try:
        with plain_path():
            for one in inputs:
                run(net, one)
    finally:
        for handle in handles:
            handle.remove()
    found = {key: _fixed(*pair) for key, pair in ranges.items()}
    return (
        {name: value for (name, side), value in found.items() if side == "in"},
        {name: value for (name, side), value in found.items() if side == "out"},
    )


def _fixed(low: Tensor, high: Tensor) -> Tensor:
    same = (high - low).abs() <= ROUNDING * torch.maximum(high.abs(), low.abs())
    return torch.where(same, (low + high) / 2, math.nan)

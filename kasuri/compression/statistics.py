"""Statistics of units: what every unit of every layer is worth, on a logarithmic scale."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kasuri.compression.criteria import RADII, Entries, Random, entries_of, log_modes
from kasuri.compression.layers import IN, OUT, OWN, blocks, sides_of, simple_recurrent, weights_on
from kasuri.compression.peeling import Ratios, peel

HEAD_VALUES, HEAD_OUTPUTS = "values of heads", "outputs of heads"
Key = tuple[str, str]  # name of a module of the plain network, side


@dataclass(frozen=True)
class Statistic:
    """What the units on one side of one layer are worth.

    Args:
        layer: name of the module.
        side: "out", "in", "own", or one of the two of attention heads.
        logs: (units,) logarithms of ratios, or log-modes; -inf for what is certainly 0.
        offset: what makes logs of several layers comparable when taken off: 0 for ratios, the largest
            one for radii, whose size means something within one side of one layer only.
    """

    layer: str
    side: str
    logs: Tensor
    offset: float = 0.0


def unit_statistics(
    net: nn.Module, weights: Mapping[str, Random], criterion: str, rows: bool, columns: bool
) -> dict[Key, Statistic]:
    """Statistics of every side of every layer all of whose weights are random.

    Args:
        net: the plain network (`kasuri.collapse`).
        weights: from `random_weights`.
        criterion: one of the criteria.
        rows: whether rows may go, and their noise with them.
        columns: whether columns may.
    """
    found: dict[Key, Statistic] = {}
    for name, module in net.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            sides = _heads(name, module, weights, criterion)
        elif sides_of(module):
            wanted = [f"{name}.{w}" if name else w for w in _all_weights(module)]
            if not all(one in weights for one in wanted):
                continue
            chosen = {
                short: weights[full]
                for short, full in zip(_all_weights(module), wanted, strict=True)
            }
            sides = _of_layer(name, module, chosen, criterion, rows, columns)
        else:
            continue
        for side, logs in sides.items():
            finite = logs[logs.isfinite()]
            offset = float(finite.max()) if criterion in RADII and len(finite) else 0.0
            found[name, side] = Statistic(name, side, logs, offset)
    return found


def _all_weights(module: nn.Module) -> tuple[str, ...]:
    return weights_on(module, OUT)


def _of_layer(
    layer: str,
    module: nn.Module,
    weights: Mapping[str, Random],
    criterion: str,
    rows: bool,
    columns: bool,
) -> dict[str, Tensor]:
    if criterion in RADII:
        return _radii(module, weights, criterion)
    entries = {
        name: entries_of(f"{layer}.{name}" if layer else name, one, criterion)
        for name, one in weights.items()
    }
    if isinstance(module, nn.Embedding):  # its units are columns, and words are no units
        one = entries["weight"]
        worth = peel(Ratios(*one.row, *one.column), rows=False)[1]
        return {OUT: worth.log()}
    if simple_recurrent(module):
        assert isinstance(module, nn.RNNBase)
        matrix = _recurrent(module, entries)
        out, ins = peel(matrix, rows, columns)
        size = module.input_size
        return {OUT: out.log(), IN: ins[:size].log(), OWN: ins[size:].log()}
    pooled = [
        [blocks(module, p).sum(-1) for p in pair]
        for pair in (entries["weight"].row, entries["weight"].column)
    ]
    peeled = [
        peel(Ratios(*(part[group] for pair in pooled for part in pair)), rows, columns)
        for group in range(len(pooled[0][0]))
    ]
    out, ins = (torch.cat(side) for side in zip(*peeled, strict=True))
    return {OUT: out.log(), IN: ins.log()}


def _recurrent(module: nn.RNNBase, entries: Mapping[str, Entries]) -> Ratios:
    """(hidden, inputs and hidden), gates summed."""

    def pooled(side: str, part: int) -> Tensor:
        halves = []
        for name in ("weight_ih_l0", "weight_hh_l0"):
            tensor = getattr(entries[name], side)[part]
            halves.append(tensor.reshape(-1, module.hidden_size, tensor.shape[-1]).sum(0))
        return torch.cat(halves, 1)

    return Ratios(*(pooled(side, part) for side in ("row", "column") for part in (0, 1)))


def _radii(module: nn.Module, weights: Mapping[str, Random], criterion: str) -> dict[str, Tensor]:
    modes = {name: log_modes(one, criterion) for name, one in weights.items()}
    if isinstance(module, nn.Embedding):
        columns = modes["weight"][1]
        return {} if columns is None else {OUT: columns.flatten()}
    found: dict[str, Tensor] = {}
    if isinstance(module, nn.RNNBase):
        rows = [one[0] for one in modes.values()]
        if all(one is not None for one in rows):
            # a unit is as strong as the strongest of its gates
            every = [one.reshape(-1, module.hidden_size) for one in rows if one is not None]
            found[OUT] = torch.cat(every).amax(0)
        for side, name in ((IN, "weight_ih_l0"), (OWN, "weight_hh_l0")):
            columns = modes[name][1]
            if columns is not None:
                found[side] = columns.reshape(-1, columns.shape[-1]).amax(0)
        return found
    for side, one in zip((OUT, IN), modes["weight"], strict=True):
        if one is not None:
            found[side] = one.flatten()
    return found


def _heads(
    name: str, module: nn.MultiheadAttention, weights: Mapping[str, Random], criterion: str
) -> dict[str, Tensor]:
    """Heads as rows of the map to values, and as columns of the map from heads to outputs."""
    if criterion in RADII:
        return {}  # a head is many rows, whose radii do not add up to one of the head
    prefix, heads = f"{name}." if name else "", module.num_heads
    found = {}
    packed = f"{prefix}in_proj_weight"
    values = packed if packed in weights else f"{prefix}v_proj_weight"
    if values in weights:
        signal, noise = entries_of(values, weights[values], criterion).row
        if values == packed:
            signal, noise = (part.chunk(3)[2] for part in (signal, noise))
        sums = [part.reshape(heads, -1).sum(1) for part in (signal, noise)]
        found[HEAD_VALUES] = (sums[0] / sums[1]).log()
    outputs = f"{prefix}out_proj.weight"
    if outputs in weights:
        signal, noise = entries_of(outputs, weights[outputs], criterion).column
        sums = [part.T.reshape(heads, -1).sum(1) for part in (signal, noise)]
        found[HEAD_OUTPUTS] = (sums[0] / sums[1]).log()
    return found

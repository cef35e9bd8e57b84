"""How the weights of a plain layer belong to its units: those it makes, those it reads, its own again."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from kasuri.network.random import full_name
from kasuri.network.views import in_channels_last, is_channels_last

OUT, IN, OWN, FOLLOWS = "out", "in", "own", "follows"
"""Units a layer makes, units it reads, its own that it reads at the next time step; units on which it acts
one by one."""
HEAD_VALUES, HEAD_OUTPUTS = "values of heads", "outputs of heads"
MAKES, READS = (OUT, HEAD_VALUES), (IN, OWN, HEAD_OUTPUTS)

Masks = Mapping[str, Tensor]
"""By name of a parameter, False where a weight is set to 0; parameters without one stay whole."""

Key = tuple[str, str]
"""A layer by its name in the plain network, and one of its sides."""
Gone = Mapping[Key, Tensor]
"""By layer and side, True at the units that go."""

# by kind of layer and side, the attribute with the number of units
_SIZES: dict[Any, dict[str, str]] = {
    nn.Linear: {OUT: "out_features", IN: "in_features"},
    _ConvNd: {OUT: "out_channels", IN: "in_channels"},
    nn.RNNBase: {OUT: "hidden_size", IN: "input_size", OWN: "hidden_size"},
    nn.Embedding: {OUT: "embedding_dim"},
    _NormBase: {FOLLOWS: "num_features"},
    nn.PReLU: {FOLLOWS: "num_parameters"},
    nn.MultiheadAttention: {HEAD_VALUES: "num_heads", HEAD_OUTPUTS: "num_heads"},
}


def sides_of(module: nn.Module) -> dict[str, str]:
    """Sides on which units of this layer can go, with their attributes; none for kinds that are not known."""
    if isinstance(module, nn.RNNBase):
        is_simple = module.num_layers == 1 and not module.bidirectional and module.proj_size == 0
        return _SIZES[nn.RNNBase] if is_simple else {}
    if (
        isinstance(module, nn.Linear | _ConvNd | nn.Embedding)
        and "weight" not in module._parameters
    ):
        return {}  # computed from others, by a parametrisation
    if isinstance(module, nn.PReLU) and module.num_parameters == 1:
        return {}  # one slope for all
    return next((sides for kind, sides in _SIZES.items() if isinstance(module, kind)), {})


def units_on(module: nn.Module, side: str) -> int:
    """How many units a layer has on a side."""
    return int(getattr(module, sides_of(module)[side]))


def is_depthwise(module: nn.Module) -> bool:
    """A convolution with one channel per group: it acts on every channel by itself."""
    return (
        isinstance(module, _ConvNd)
        and module.groups == module.out_channels == module.in_channels
        and module.groups > 1
    )


def unit_index(module: nn.Module, side: str) -> dict[str, Tensor]:
    """For the tensors of a layer, to which unit of a side every entry belongs; -1 for none.

    Shapes are those of the tensors, or broadcast to them. The queries and keys of a head belong to it on
    either side.

    Examples:
        >>> unit_index(nn.Conv2d(4, 6, 3, groups=2), IN)["weight"].squeeze()
        tensor([[0, 1],
                [0, 1],
                [0, 1],
                [2, 3],
                [2, 3],
                [2, 3]])
    """
    units = torch.arange(units_on(module, side))
    if isinstance(module, nn.MultiheadAttention):
        return _head_index(module, side, units)
    if isinstance(module, nn.Embedding):
        return {"weight": units}
    if isinstance(module, nn.RNNBase):
        if side != OUT:
            return {"weight_ih_l0" if side == IN else "weight_hh_l0": units}
        rows = units.repeat(len(module.get_parameter("weight_ih_l0")) // len(units))
        named = module.named_parameters(recurse=False)
        return {name: rows[:, None] if tensor.dim() > 1 else rows for name, tensor in named}
    if side == FOLLOWS:
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        return {name: units for name, tensor in tensors if tensor.dim() == 1}
    weight, groups = module.get_parameter("weight"), getattr(module, "groups", 1)
    tail = (1,) * (weight.dim() - 2)
    if (side == IN) == isinstance(module, _ConvTransposeNd):  # the first dimension counts them
        index = units.reshape(-1, 1, *tail)
    else:
        index = units.reshape(groups, -1).repeat_interleave(len(weight) // groups, 0)
        index = index.reshape(*index.shape, *tail)
    has_bias = side == OUT and module._parameters["bias"] is not None
    return {"weight": index} | ({"bias": units} if has_bias else {})


def _head_index(module: nn.MultiheadAttention, side: str, heads: Tensor) -> dict[str, Tensor]:
    rows = heads.repeat_interleave(module.embed_dim // module.num_heads)
    values = rows if side == HEAD_VALUES else torch.full_like(rows, -1)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    index = {name: part[:, None] for name, part in zip(names, (rows, rows, values), strict=True)}
    if module.in_proj_weight is not None:
        index = {"in_proj_weight": torch.cat(list(index.values()))}
    return index | ({"out_proj.weight": rows} if side == HEAD_OUTPUTS else {})


def add_to(gone: dict[Key, Tensor], key: Key, units: Tensor) -> None:
    """Let these units go as well."""
    gone[key] = gone[key] | units if key in gone else units


def left_of(net: nn.Module, gone: Gone) -> dict[str, Tensor]:
    """For each tensor of a layer that loses units, True at the entries that belong to none of them.

    Examples:
        >>> left_of(nn.Linear(3, 2), {("", IN): torch.tensor([False, False, True])})["weight"]
        tensor([[ True,  True, False],
                [ True,  True, False]])
    """
    left: dict[str, Tensor] = {}
    for (layer, side), units in gone.items():
        module = net.get_submodule(layer)
        chosen = torch.cat([units, units.new_zeros(1)])  # the last is for -1
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, index in unit_index(module, side).items():
            full = full_name(layer, name)
            here = ~chosen[index].expand(tensors[name].shape)
            left[full] = left[full] & here if full in left else here
    return left


def masks_without(net: nn.Module, gone: Gone) -> dict[str, Tensor]:
    """Masks that drop all weights of some units; biases stay."""
    return {name: left for name, left in left_of(net, gone).items() if left.dim() > 1}


@torch.no_grad()
def masked_net(net: nn.Module, masks: Masks) -> nn.Module:
    """The masked network: a copy of a plain one with 0 wherever a mask is False.

    This is what the small network is compared with. A unit whose incoming weights are 0 is not silent: it
    gives what its bias, batch norm and activation make of it, the same for every input.

    Examples:
        >>> masked_net(nn.Linear(2, 1), {"weight": torch.tensor([[True, False]])}).weight[0, 1]
        tensor(0., grad_fn=<SelectBackward0>)
    """
    net = copy.deepcopy(net)
    set_to_zero(net, masks)
    return net


def set_to_zero(net: nn.Module, masks: Masks) -> None:
    """Put 0 wherever a mask is False, in place."""
    for name, mask in masks.items():
        weight = net.get_parameter(name)
        weight.masked_fill_(~mask.to(weight.device), 0.0)


def alive(module: nn.Module, side: str) -> Tensor:
    """Which units of a side have a weight that is not 0.

    Examples:
        >>> layer = nn.Linear(3, 2)
        >>> layer.weight.data[1] = 0
        >>> alive(layer, OUT)
        tensor([ True, False])
    """
    is_alive = torch.zeros(units_on(module, side), dtype=torch.bool)
    for name, index in unit_index(module, side).items():
        weight = module.get_parameter(name).detach().cpu() != 0
        if weight.dim() > 1:
            is_alive[index.expand(weight.shape)[weight]] = True
    return is_alive


def part_of(value: Tensor, left: Tensor) -> Tensor:
    """The entries of a tensor that stay, in its new shape."""
    left = left.to(value.device)
    if value.dim() < 2:
        return value[left]
    rows = int(left.flatten(1).any(1).sum())
    part = value[left].reshape(rows, -1, *value.shape[2:])
    return in_channels_last(part) if is_channels_last(value) else part


@torch.no_grad()
def take_out(net: nn.Module, gone: Gone) -> None:
    """Cut units out of all layers that make or read them, in place."""
    for name, left in left_of(net, gone).items():
        layer, _, title = name.rpartition(".")
        module = net.get_submodule(layer)
        if title in module._buffers:
            module._buffers[title] = part_of(module.get_buffer(title), left)
        else:
            old = module.get_parameter(title)
            new = nn.Parameter(part_of(old, left), requires_grad=old.requires_grad)
            setattr(module, title, new)
    for (layer, side), units in gone.items():
        module, size = net.get_submodule(layer), int((~units).sum())
        attributes = {sides_of(module)[side]}
        if is_depthwise(module):  # it makes and reads the same channels, a group each
            attributes = {"out_channels", "in_channels", "groups"}
        for attribute in attributes:
            setattr(module, attribute, size)


def zero_padded(module: nn.Module) -> bool:
    """Whether a constant input meets zeros at the border, so that its contribution is not constant."""
    if isinstance(module, _ConvTransposeNd):
        return True
    if not isinstance(module, _ConvNd) or module.padding_mode != "zeros":
        return False
    if isinstance(module.padding, str):
        return module.padding == "same" and any(k > 1 for k in module.kernel_size)
    return any(module.padding)


def feature_dim(module: nn.Module) -> int:
    """The dimension of a layer's inputs and outputs that counts units."""
    if FOLLOWS in sides_of(module):
        return 1
    return -1 - len(module.kernel_size) if isinstance(module, _ConvNd) else -1


def by_unit(module: nn.Module, value: Any) -> Tensor:
    """What a layer reads or makes as (everything else, units)."""
    x, dim = tensor_of(value), feature_dim(module)
    return x.movedim(dim, -1).reshape(-1, x.shape[dim])


def tensor_of(value: Any) -> Any:
    """The tensor in a packed sequence; anything else as it is."""
    return value.data if isinstance(value, PackedSequence) else value

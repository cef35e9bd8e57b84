"""How the weights of a plain layer belong to its units: those it makes, those it reads, its own again."""

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

OUT, IN, OWN = "out", "in", "own"
"""Units a layer makes, units it reads, and those of its own it reads at the next time step."""

Masks = Mapping[str, Tensor]
"""By name of a parameter, False where a weight is set to 0; parameters without one stay whole."""


def is_depthwise(module: nn.Module) -> bool:
    """A convolution with one channel per group: it acts on every channel by itself."""
    return (
        isinstance(module, _ConvNd)
        and module.groups == module.out_channels == module.in_channels
        and module.groups > 1
    )


def simple_recurrent(module: nn.Module) -> bool:
    """A recurrent layer whose units can be taken out one by one."""
    return (
        isinstance(module, nn.RNNBase)
        and module.num_layers == 1
        and not module.bidirectional
        and module.proj_size == 0
    )


def is_follower(module: nn.Module) -> bool:
    """A layer that acts on every unit by itself, with parameters of its own or none."""
    return isinstance(module, _BatchNorm | nn.PReLU | _InstanceNorm)


def sides_of(module: nn.Module) -> tuple[str, ...]:
    """Sides on which units of this layer can be dropped; nothing for kinds that are not known."""
    if "weight" not in module._parameters and not isinstance(module, nn.RNNBase):
        return ()  # computed from others, by a parametrisation
    if isinstance(module, nn.Embedding):
        return (OUT,)
    if isinstance(module, nn.Linear | _ConvNd):
        return OUT, IN
    return (OUT, IN, OWN) if simple_recurrent(module) else ()


def units_on(module: nn.Module, side: str) -> int:
    """How many units a layer has on a side."""
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    if isinstance(module, nn.Linear):
        return module.out_features if side == OUT else module.in_features
    if isinstance(module, _ConvNd):
        return module.out_channels if side == OUT else module.in_channels
    if isinstance(module, nn.PReLU):
        return module.num_parameters
    if isinstance(module, _BatchNorm | _InstanceNorm):
        return module.num_features
    assert isinstance(module, nn.RNNBase)
    return module.input_size if side == IN else module.hidden_size


def weights_on(module: nn.Module, side: str) -> tuple[str, ...]:
    """Names of the weights that belong to the units of a side."""
    if isinstance(module, nn.RNNBase):
        names = {OUT: ("weight_ih_l0", "weight_hh_l0"), IN: ("weight_ih_l0",)}
        return names.get(side, ("weight_hh_l0",))
    return ("weight",)


def marked(module: nn.Module, side: str, units: Iterable[int]) -> dict[str, Tensor]:
    """For each weight of a side, True at the entries that belong to these units.

    Examples:
        >>> marked(nn.Linear(3, 2), IN, [2])["weight"]
        tensor([[False, False,  True],
                [False, False,  True]])
    """
    chosen = torch.zeros(units_on(module, side), dtype=torch.bool)
    chosen[list(units)] = True
    found = {}
    for name in weights_on(module, side):
        mask = torch.zeros(module.get_parameter(name).shape, dtype=torch.bool)
        if isinstance(module, nn.RNNBase) and side == OUT:
            found[name] = mask | chosen.repeat(len(mask) // len(chosen))[:, None]
        elif isinstance(module, nn.RNNBase | nn.Embedding):
            found[name] = mask | chosen
        else:
            split = blocks(module, mask)
            wanted = chosen.reshape(split.shape[0], -1)  # (groups, units of a group)
            spread = wanted[:, :, None, None] if side == OUT else wanted[:, None, :, None]
            found[name] = unblocked(module, split | spread)
    return found


def masks_without(
    net: nn.Module, gone: Mapping[tuple[str, str], Iterable[int]]
) -> dict[str, Tensor]:
    """Masks that drop all weights of some units, by layer and side."""
    masks: dict[str, Tensor] = {}
    for (layer, side), units in gone.items():
        for name, dropped in marked(net.get_submodule(layer), side, units).items():
            full = f"{layer}.{name}" if layer else name
            masks[full] = masks.get(full, torch.ones_like(dropped)) & ~dropped
    return masks


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
    for name, mask in masks.items():
        weight = net.get_parameter(name)
        weight.masked_fill_(~mask.to(weight.device), 0.0)
    return net


def alive(module: nn.Module, side: str) -> Tensor:
    """Which units of a side have a weight that is not 0.

    Examples:
        >>> layer = nn.Linear(3, 2)
        >>> layer.weight.data[1] = 0
        >>> alive(layer, OUT)
        tensor([ True, False])
    """
    found = torch.zeros(units_on(module, side), dtype=torch.bool)
    for name in weights_on(module, side):
        weight = module.get_parameter(name).detach().cpu() != 0
        if isinstance(module, nn.RNNBase) and side == OUT:
            found |= weight.reshape(-1, module.hidden_size, weight.shape[1]).any(0).any(1)
        elif isinstance(module, nn.RNNBase | nn.Embedding):
            found |= weight.any(0)
        else:
            split = blocks(module, weight).any(-1)
            found |= (split.any(2) if side == OUT else split.any(1)).flatten()
    return found


def blocks(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight as (groups, out of a group, in of a group, positions).

    Examples:
        >>> conv = nn.Conv2d(4, 6, 3, groups=2)
        >>> blocks(conv, conv.weight).shape
        torch.Size([2, 3, 2, 9])
    """
    groups = module.groups if isinstance(module, _ConvNd) else 1
    split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return split.transpose(1, 2) if isinstance(module, _ConvTransposeNd) else split


def unblocked(module: nn.Module, split: Tensor) -> Tensor:
    """`blocks` undone; there may be fewer units in it than in the module."""
    split = split.transpose(1, 2) if isinstance(module, _ConvTransposeNd) else split
    groups, first, second = split.shape[:3]
    return split.reshape(groups * first, second, *module.get_parameter("weight").shape[2:])


def bias_name(module: nn.Module) -> str:
    """Name of the bias that takes what constant inputs contribute."""
    return "bias_ih_l0" if isinstance(module, nn.RNNBase) else "bias"


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
    """The dimension of a layer's input that counts features, from behind."""
    return -(module.weight.dim() - 1) if isinstance(module, _ConvNd) else -1


def parents_of(net: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """For every module, by id, each (parent, attribute) where it is."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in net.modules():
        for name, child in parent._modules.items():
            if child is not None:
                found.setdefault(id(child), []).append((parent, name))
    return found

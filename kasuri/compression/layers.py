"""How the weights of a plain layer belong to its units: made by it, read by it, or its own again."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

OUT, IN, OWN = "out", "in", "own"
"""Units a layer makes, units it reads, and those of its own it reads at the next time step."""

Parts = dict[str, Tensor]


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
    return isinstance(module, _BatchNorm | nn.PReLU | nn.modules.instancenorm._InstanceNorm)


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
    if isinstance(module, _BatchNorm | nn.modules.instancenorm._InstanceNorm):
        return module.num_features
    assert isinstance(module, nn.RNNBase)
    return module.input_size if side == IN else module.hidden_size


def weights_on(module: nn.Module, side: str) -> tuple[str, ...]:
    """Names of the weights that belong to the units of a side."""
    if isinstance(module, nn.RNNBase):
        names = {OUT: ("weight_ih_l0", "weight_hh_l0"), IN: ("weight_ih_l0",)}
        return names.get(side, ("weight_hh_l0",))
    return ("weight",)


def marked(module: nn.Module, side: str, units: Iterable[int]) -> Parts:
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
        weight = module.get_parameter(name)
        mask = torch.zeros(weight.shape, dtype=torch.bool)
        found[name] = _mark(module, side, chosen, mask)
    return found


def _mark(module: nn.Module, side: str, chosen: Tensor, mask: Tensor) -> Tensor:
    if isinstance(module, nn.Embedding):
        return mask | chosen
    if isinstance(module, nn.RNNBase):
        if side == OUT:
            return mask | chosen.repeat(len(mask) // len(chosen))[:, None]
        return mask | chosen
    split, flipped = blocks(module, mask), isinstance(module, _ConvTransposeNd)
    wanted = chosen.reshape(split.shape[0], -1)  # (groups, units of a group)
    along = side == OUT
    spread = wanted[:, :, None, None] if along else wanted[:, None, :, None]
    return unblocked(split | spread, mask.shape, flipped)


def blocks(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight as (groups, out of a group, in of a group, positions).

    Examples:
        >>> conv = nn.Conv2d(4, 6, 3, groups=2)
        >>> blocks(conv, conv.weight).shape
        torch.Size([2, 3, 2, 9])
    """
    groups = module.groups if isinstance(module, _ConvNd) else 1
    assert isinstance(groups, int)
    split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return split.transpose(1, 2) if isinstance(module, _ConvTransposeNd) else split


def unblocked(split: Tensor, shape: torch.Size, flipped: bool) -> Tensor:
    """`blocks` undone; `shape` may have other numbers of units than the split."""
    split = split.transpose(1, 2) if flipped else split
    groups, first, second = split.shape[:3]
    return split.reshape(groups * first, second, *shape[2:])


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

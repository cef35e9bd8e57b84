"""Carrying out a plan on plain layers: parameters sliced, sizes set, constants in biases."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kasuri.compression.units import bias_name, blocks, is_depthwise, unblocked
from kasuri.network.views import in_channels_last, is_channels_last


@dataclass
class Cut:
    """What becomes of one layer, in the indices of the layer as it was.

    Args:
        out: units it no longer makes.
        ins: units it no longer reads.
        bias: what its bias takes over, one number per entry of the bias.
        carriers: for an input that stays, what its weights (out, positions) take over.
    """

    out: set[int] = field(default_factory=set)
    ins: set[int] = field(default_factory=set)
    bias: Tensor | None = None
    carriers: dict[int, Tensor] = field(default_factory=dict)


CuttingPlan = dict[str, Cut]


def kept(size: int, gone: set[int]) -> list[int]:
    """Indices that stay."""
    return [index for index in range(size) if index not in gone]


@torch.no_grad()
def apply_plan(net: nn.Module, plan: CuttingPlan) -> nn.Module:
    """The network with a plan carried out on it (in place)."""
    for name, cut in plan.items():
        module = net.get_submodule(name)
        _take_over(module, cut)
        if isinstance(module, _ConvNd):
            _cut_convolution(module, cut)
        elif isinstance(module, nn.RNNBase):
            _cut_recurrent(module, cut)
        elif isinstance(module, nn.Linear):
            outs, ins = kept(module.out_features, cut.out), kept(module.in_features, cut.ins)
            _set(module, "weight", module.weight[outs][:, ins])
            if module.bias is not None:
                _set(module, "bias", module.bias[outs])
            module.out_features, module.in_features = len(outs), len(ins)
        elif isinstance(module, nn.Embedding):
            outs = kept(module.embedding_dim, cut.out)
            _set(module, "weight", module.weight[:, outs])
            module.embedding_dim = len(outs)
        else:
            _cut_follower(module, cut)
    return net


def _take_over(module: nn.Module, cut: Cut) -> None:
    for place, extra in cut.carriers.items():
        weight = module.get_parameter("weight")
        weight[:, place] += extra.reshape(weight[:, place].shape).to(weight)
    if cut.bias is None:
        return
    name = bias_name(module)
    bias = module._parameters.get(name)
    if bias is None:
        like = module.get_parameter("weight")
        bias = nn.Parameter(like.new_zeros(len(cut.bias)), requires_grad=like.requires_grad)
        module.register_parameter(name, bias)
    bias.add_(cut.bias.to(bias))


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    old, value = module.get_parameter(name), value.contiguous()
    value = in_channels_last(value) if is_channels_last(old) else value
    setattr(module, name, nn.Parameter(value, requires_grad=old.requires_grad))


def _cut_convolution(module: _ConvNd, cut: Cut) -> None:
    outs = kept(module.out_channels, cut.out)
    if is_depthwise(module):
        _set(module, "weight", module.weight[outs])
        module.groups = module.in_channels = len(outs)
    else:
        ins = kept(module.in_channels, cut.ins)
        split = blocks(module, module.weight)
        groups, out_size, in_size = split.shape[:3]
        parts = []
        for group in range(groups):
            rows = [o - group * out_size for o in outs if o // out_size == group]
            columns = [i - group * in_size for i in ins if i // in_size == group]
            if rows or columns:  # a group without channels is gone
                parts.append(split[group][rows][:, columns])
        _set(module, "weight", unblocked(module, torch.stack(parts)))
        module.in_channels, module.groups = len(ins), len(parts)
    if module.bias is not None:
        _set(module, "bias", module.bias[outs])
    module.out_channels = len(outs)


def _cut_recurrent(module: nn.RNNBase, cut: Cut) -> None:
    size = module.hidden_size
    stay, ins = kept(size, cut.out), kept(module.input_size, cut.ins)
    gates = len(module.get_parameter("weight_ih_l0")) // size
    rows = [gate * size + unit for gate in range(gates) for unit in stay]
    _set(module, "weight_ih_l0", module.get_parameter("weight_ih_l0")[rows][:, ins])
    _set(module, "weight_hh_l0", module.get_parameter("weight_hh_l0")[rows][:, stay])
    for name in ("bias_ih_l0", "bias_hh_l0") if module.bias else ():
        _set(module, name, module.get_parameter(name)[rows])
    module.hidden_size, module.input_size = len(stay), len(ins)


def _cut_follower(module: nn.Module, cut: Cut) -> None:
    """Norms over examples, and PReLU with a slope for every unit."""
    size = "num_parameters" if isinstance(module, nn.PReLU) else "num_features"
    outs = kept(getattr(module, size), cut.out)
    if isinstance(module, nn.PReLU) and module.num_parameters == 1:
        return
    for name, parameter in list(module.named_parameters(recurse=False)):
        _set(module, name, parameter[outs])
    for name, buffer in list(module.named_buffers(recurse=False)):
        if buffer.dim() == 1:
            module._buffers[name] = buffer[outs].clone()
    setattr(module, size, len(outs))

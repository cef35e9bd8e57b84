"""The masked network: the posterior mean with some weights at 0, biases and all else as they are.

This is what the small network is compared with. A unit whose incoming weights are 0 is not silent: it
gives what its bias, batch norm and activation make of it, the same for every input.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from kasuri.compression.sparsity import put_masks
from kasuri.network.random import named_layers, posterior_of
from kasuri.posteriors.point import PointPosterior


@torch.no_grad()
def masked_net(net: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a plain network with 0 wherever a mask is False.

    Args:
        net: plain.
        keep: by name of a parameter, a mask of its shape.

    Examples:
        >>> net = masked_net(nn.Linear(2, 1), {"weight": torch.tensor([[True, False]])})
        >>> net.weight[0, 1]
        tensor(0., grad_fn=<SelectBackward0>)
    """
    net = copy.deepcopy(net)
    for name, mask in keep.items():
        weight = net.get_parameter(name)
        weight.masked_fill_(~mask.to(weight.device), 0.0)
    return net


def masked_posteriors(bnn: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a Bayesian network whose weights are 0 with certainty wherever a mask is False."""
    net = copy.deepcopy(bnn)
    masks: dict[int, Tensor] = {}
    for title, layer, conversion in named_layers(net):
        for name, view in conversion.views.items():
            q = posterior_of(layer, name)
            mask = keep.get(f"{title}.{name}" if title else name)
            if mask is not None and id(q) not in masks:
                mask = view.matrix(mask).to(q.mean.device)
                if isinstance(q, PointPosterior):
                    q.loc.data.masked_fill_(~mask, 0.0)
                else:
                    masks[id(q)] = mask
    put_masks(net, masks)
    return net

"""The masked network: the posterior mean with some weights at 0, biases and all else as they are.

This is what the small network is compared with. A unit whose incoming weights are 0 is not silent: it
gives what its bias, batch norm and activation make of it, the same for every input.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from kasuri.compression.sparsity import exchange
from kasuri.network.bayesian import named_bayesian
from kasuri.posteriors.masked import masked
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
    new = {}
    for title, layer in named_bayesian(net):
        for name, q in layer.named():
            mask = keep.get(f"{title}.{name}" if title else name)
            if mask is not None and id(q) not in new:
                mask = layer.views[name].matrix(mask).to(q.mean.device)
                if isinstance(q, PointPosterior):
                    q.loc.data.masked_fill_(~mask, 0.0)
                else:
                    new[id(q)] = masked(q, mask)
    for title, layer in named_bayesian(net):
        exchange(title, layer, new)
    return net

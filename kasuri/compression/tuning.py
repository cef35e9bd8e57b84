"""Fine-tuning: a few epochs of maximum likelihood for the small network, with its zeros kept."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from kasuri.objectives.elbo import ELBO
from kasuri.training.fit import fit


def finetune(net: nn.Module, options: Mapping[str, Any], model: nn.Module) -> list[float]:
    """Train a plain network further, in place; weights that are 0 stay 0.

    Args:
        net: plain.
        options: of `kasuri.fit`, `train` among them.
        model: what was given to compress; the likelihood of a kasuri.ELBO is used.

    Returns:
        The loss of every epoch.
    """
    given = dict(options)
    if isinstance(model, ELBO):
        given.setdefault("likelihood", copy.deepcopy(model.likelihood))  # a noise may be learned
        given.setdefault("output", model.output)
    given.setdefault("show", False)
    handles = []
    for parameter in net.parameters():
        if parameter.dim() >= 2 and parameter.requires_grad and not bool((parameter != 0).all()):
            mask = parameter.detach() != 0

            def hold(gradient: Tensor, mask: Tensor = mask) -> Tensor:
                return gradient * mask

            handles.append(parameter.register_hook(hold))
    try:
        fitted = fit(net, given.pop("train"), given.pop("valid", None), **given)
    finally:
        for handle in handles:
            handle.remove()
    net.eval()
    return [float(entry["loss"]) for entry in fitted.history]

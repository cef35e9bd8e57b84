"""Why a loss is not a number: where it began, and what usually helps."""

from typing import Any

import torch
from torch import Tensor, nn

from kasuri.inputs import run, tensors
from kasuri.network.random import named_posteriors
from kasuri.objectives.elbo import ELBO, Objective


class NonFiniteLoss(ArithmeticError):
    """The training loss became infinite or not a number; the message says where and why."""


def explain(objective: Objective, x: Any, y: Tensor, learning_rate: float) -> str:
    """Where the first non-finite number of a batch's loss comes from, in a sentence or two."""
    slower = (
        f"lower the learning rate (it is {learning_rate:g}) or clip gradients with "
        "callbacks=[kasuri.training.Clip(1.0)]"
    )
    for place, value in (("the inputs", x), ("the targets", y)):
        if count := _bad(value):
            return f"{place} of this batch hold {count} non-finite values: clean the data"
    for name, parameter in objective.named_parameters():
        if _bad(parameter):
            where = name.removeprefix("bnn.").removeprefix("_net.").replace("posteriors.", "")
            return f"the parameter {where} became non-finite in the update before: {slower}"
    with torch.no_grad():
        if layer := _first_bad_layer(objective, x):
            return (
                f"{layer}: {slower}, scale the inputs to about unit size, or bound σ by max_scale"
            )
        if source := _bad_divergence(objective):
            return (
                f"the KL of {source} is non-finite, its scale has run away: {slower}, or bound σ "
                "by max_scale"
            )
    return (
        "every layer's output and the KL are finite, so it is the log-likelihood of the targets: "
        "look for targets far outside the range of the outputs, or a learned noise near zero"
    )


def _bad(value: Any) -> int:
    """Number of non-finite entries of a tensor, or of tensors in a tuple or mapping."""
    parts = [part for part in tensors(value) if isinstance(part, Tensor)]
    return sum(int((~part.isfinite()).sum()) for part in parts)


def _first_bad_layer(objective: Objective, x: Any) -> str | None:
    """The innermost module whose output is not finite though its input was."""
    layers: list[str] = []

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if _bad(output) and not _bad(inputs):
                sizes = [float(t.abs().max()) for t in inputs if isinstance(t, Tensor)]
                size = f" for inputs up to {max(sizes):.3g}" if sizes else ""
                layers.append(f"layer {name!r} gave {_bad(output)} non-finite outputs{size}")

        return look

    handles = [
        module.register_forward_hook(watch(name or type(module).__name__))
        for name, module in objective.net.named_modules()
    ]
    try:
        run(objective.net, x, objective.output)
    finally:
        for handle in handles:
            handle.remove()
    return layers[0] if layers else None


def _bad_divergence(objective: Objective) -> str | None:
    if not isinstance(objective, ELBO):
        return None
    for name, posterior in named_posteriors(objective.net):
        if _bad(posterior.entropy()) or _bad(posterior.squared_norm()):
            return name
    return "the prior's own parameters" if _bad(objective.kl()) else None

"""Options of `kasuri.export`: what is refused."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from kasuri.checks import described, is_number, is_whole, near_misses
from kasuri.export.outputs import OutputError, Units
from kasuri.likelihoods import Bernoulli, Categorical, Likelihood
from kasuri.network.random import named_posteriors

Kind = Literal["mean", "draw", "ensemble", "variance"]
Format = Literal["onnx", "torch"]


def check_options(
    net: nn.Module,
    kind: str,
    format: str,
    members: int,
    seed: int,
    likelihood: Likelihood | None,
    target_mean: Any,
    target_scale: Any,
) -> None:
    """Refuse what cannot be meant."""
    for asked, known, name in ((kind, Kind, "kind"), (format, Format, "format")):
        if asked not in get_args(known):
            raise ValueError(
                f"export({name}={asked!r}): {near_misses(str(asked), get_args(known))}"
            )
    if kind != "mean" and next(named_posteriors(net), None) is None:
        raise ValueError(
            f'export(kind={kind!r}): {type(net).__name__} has no posterior to draw from; write kind="mean", '
            "or export the network from kasuri.bayesianize"
        )
    if kind == "ensemble" and not is_whole(members, 2):
        raise ValueError(
            f'export(kind="ensemble", members={members}): at least 2; one function is kind="draw"'
        )
    if not is_whole(seed):
        raise ValueError(f"export(seed={seed!r}): a whole number, from which weights are drawn")
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"export(likelihood={likelihood!r}): give an object, such as kasuri.Categorical()"
        )
    if isinstance(likelihood, Categorical | Bernoulli) and Units.of(target_mean, target_scale):
        raise ValueError(
            f"export(target_mean={target_mean}, target_scale={target_scale}) with "
            f"{type(likelihood).__name__}: classes have no unit"
        )


def check_details(
    covariance: str, tolerance: float, input_scaling: Any, path: str | os.PathLike[str] | None
) -> None:
    """Refuse numbers and places that cannot be meant."""
    if not (is_number(tolerance) and tolerance > 0):
        raise ValueError(
            f"export(tolerance={tolerance!r}): the largest difference from PyTorch that is allowed, positive"
        )
    pair = isinstance(input_scaling, tuple | list) and len(input_scaling) == 2
    if input_scaling is not None and not (
        pair and all(isinstance(one, Tensor) for one in input_scaling)
    ):
        raise ValueError(
            "export(input_scaling=...): (mean, scale), two tensors: what to do with the first input"
        )
    if input_scaling is not None and not bool((input_scaling[1] != 0).all()):
        raise ValueError(
            "export(input_scaling=...): a scale is 0; write 1 for inputs that are always the same"
        )
    if covariance not in ("full", "diagonal"):
        raise ValueError(f'export(covariance={covariance!r}): write "full" or "diagonal"')
    if path is None:
        return
    if str(path) in get_args(Kind):
        raise ValueError(
            f"export(..., path={str(path)!r}): a file of that name, or the kind? Write kind={str(path)!r}, "
            'or a path with an ending, e.g. "net.onnx"'
        )
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"export: there is no folder {Path(path).absolute().parent}")
    if Path(path).is_dir():
        raise IsADirectoryError(f"export: {path} is a folder; write the path of a file in it")


def check_inputs(
    net: nn.Module, inputs: tuple[Tensor, ...], input_scaling: Any
) -> dict[str, Tensor]:
    """Refuse inputs that a network cannot run on, and a scaling that does not fit the first of them.

    Args:
        net: plain, of positional tensors.
        inputs: of the example.
        input_scaling: (mean, scale) of the first one, or None.

    Returns:
        What the network puts out, by name.
    """
    first = inputs[0].shape
    for one in input_scaling or ():
        if one.dim() > len(first) or any(
            size not in (1, here) for size, here in zip(one.shape[::-1], first[::-1], strict=False)
        ):
            raise ValueError(
                f"export(input_scaling=...): a tensor of shape {tuple(one.shape)} for inputs of shape "
                f"{tuple(first)}; one number, or one for each feature"
            )
    try:
        with torch.no_grad():
            found: dict[str, Tensor] = net(*inputs)
    except OutputError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"export(example=...): the network does not run on it, {described(*inputs)} "
            f"({str(error).splitlines()[0]}); give inputs as the network takes them"
        ) from error
    return found


def check_parts(
    parts: Mapping[str, Tensor], kind: Kind, likelihood: Likelihood | None, units: Units | None
) -> None:
    """Refuse several outputs where one is meant, and outputs of which there is no mean."""
    told = type(likelihood).__name__ if likelihood is not None and kind == "ensemble" else None
    reasons = (
        (kind == "variance", 'kind="variance" has the moments of one of them'),
        (told is not None, f"{told} says what one of them means"),
        (units is not None, "target_mean and target_scale are those of one of them"),
    )
    why = next((text for holds, text in reasons if holds), None)
    if len(parts) > 1 and why is not None:
        raise ValueError(
            f"export: the network returns {', '.join(map(repr, parts))}; {why}. Say which, e.g. "
            "output=lambda out: out[0] or output=lambda out: out.logits"
        )
    whole = [name for name, one in parts.items() if not one.is_floating_point()]
    if whole and kind == "ensemble":
        raise ValueError(
            f'export(kind="ensemble"): the outputs {whole} are whole numbers, of which members have no '
            "mean; say which part to put out, e.g. output=lambda out: out[0]"
        )

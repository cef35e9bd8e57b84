"""`kasuri.export`: what was trained, as a file that needs no kasuri."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kasuri.checks import at_least_one, one_of
from kasuri.exporting.networks import Members, Scale, Servable
from kasuri.exporting.programs import file_of, largest_error
from kasuri.likelihoods import Likelihood
from kasuri.network.contexts import evaluating, plain_path
from kasuri.network.convert import collapse
from kasuri.network.random import named_layers, require_posteriors
from kasuri.objectives.trained import Trained
from kasuri.prediction.moments.moment_network import MomentNetwork
from kasuri.prediction.moments.trace import ExportError, Positional, positional, single
from kasuri.prediction.predict import Output, model_of
from kasuri.storage import write_atomically
from kasuri.streams import mix

Kind = Literal["mean", "ensemble", "variance"]
Format = Literal["onnx", "torch"]


@dataclass(frozen=True)
class Exported:
    """An exported network.

    Args:
        data: the file's content.
        metadata: what the file says about itself.
        inputs: names of its inputs.
        outputs: names of its outputs.
        error: largest difference to PyTorch, relative above 1.
    """

    data: bytes = field(repr=False)
    metadata: dict[str, str] = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: float

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; an existing one is replaced, or left untouched if anything fails."""
        write_atomically(Path(path), self.data)


def export(
    model: nn.Module | Trained,
    example: Any,
    path: str | os.PathLike[str] | None = None,
    kind: Kind = "mean",
    *,
    members: int = 16,
    seed: int = 0,
    format: Format = "onnx",
    likelihood: Likelihood | None = None,
    target_mean: float | Tensor = 0.0,
    target_scale: float | Tensor = 1.0,
    input_scaling: tuple[Tensor, Tensor] | None = None,
    output: Output = None,
    tolerance: float = 1e-5,
) -> Exported:
    """A trained network as a file that PyTorch alone, or onnxruntime alone, can run, with any batch size.

    | kind       | the graph computes                               | its outputs                     |
    |------------|--------------------------------------------------|---------------------------------|
    | "mean"     | the network at the posterior mean                | output, as the network gives it |
    | "ensemble" | `members` functions, what they say together      | mean, std and more, see below   |
    | "variance" | moments without draws (`kasuri.predict_moments`)   | mean, std and more              |

    More is `entropy` and `mutual_information` for classes (`mean` and `std` are then those of the
    probabilities); the variances `aleatoric` and `epistemic` for real targets (`std` is that of a new
    target, noise included). An ensemble with `members` and `seed` says what `kasuri.predict` with so many
    samples and this seed says.

    A network that returns a tuple or a mapping of tensors has several outputs, under its own names or as
    output_0, output_1 and so on; of an ensemble of such networks logits_mean, logits_std and so on, without a
    likelihood. With `output` it has one.

    The file is compared with PyTorch before it is written, at several batch sizes.

    Args:
        model: what `kasuri.fit` returned, an ELBO, a converted network, or (kind "mean") any network.
        example: inputs as the network takes them: a tensor (batch first), a tuple, a mapping of named ones,
            whose names the file has as well.
        path: of the file; None to get its content only.
        kind: see above.
        members: number of functions of an ensemble.
        seed: of their draws.
        format: "onnx", or "torch" for torch.export.load.
        likelihood: what the outputs mean; that of the objective if there is one.
        target_mean: mean that was taken out of the targets before training.
        target_scale: what they were divided by; outputs are in the target's own unit again.
        input_scaling: (mean, scale) to standardise the first input with, inside the graph.
        output: takes the tensor out of what the network returns; None for all it returns.
        tolerance: largest difference to PyTorch that is allowed, relative above 1.

    Examples:
        >>> import kasuri
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1, scale=0.1))
        >>> file = kasuri.export(
        ...     bnn, torch.randn(5, 3), kind="ensemble", likelihood=kasuri.Categorical(), format="torch"
        ... )
        >>> file.outputs
        ('mean', 'std', 'entropy', 'mutual_information')
    """
    one_of(kind=(kind, Kind), format=(format, Format))
    at_least_one(members=members)
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"export: there is no folder {Path(path).absolute().parent}")
    net, likelihood, output = model_of(model, likelihood, output)
    if kind != "mean":
        require_posteriors(net)
    elif not isinstance(net, nn.Module):
        raise TypeError(
            f"export of {type(net).__name__}: give what kasuri.fit returned, an ELBO or a network; "
            "estimators of kasuri.sklearn have a method `export` of their own"
        )
    names, inputs = positional(example)
    numbered = tuple(f"input_{index}" for index in range(len(inputs)))
    labels = names or (("input",) if len(inputs) == 1 else numbered)
    standardise = None if input_scaling is None else Scale(*input_scaling)
    units = _target_scale(target_mean, target_scale)
    with evaluating(net) as net, plain_path():
        mean = Positional(collapse(net), names, output)
        parts = mean.tried(*inputs)
        if kind == "variance" or units or (kind == "ensemble" and likelihood is not None):
            _check_unit(single(parts), likelihood, units)
        functions: Positional | Members | MomentNetwork = mean
        if kind == "ensemble":
            functions = _members(net, mean, members, seed)
        elif kind == "variance":
            frozen = copy.deepcopy(net).requires_grad_(False)
            functions = MomentNetwork(frozen, inputs, names, output)
        network = Servable(functions, likelihood, standardise, units).eval().requires_grad_(False)
        with torch.no_grad():
            outputs = tuple(network.named(*inputs))
        if both := [name for name in labels if name in outputs]:
            raise ValueError(
                f"export: {', '.join(map(repr, both))} would be an input and an output of the file; "
                "give outputs other names, e.g. output=lambda out: {'score': out}"
            )
        drawn = {"members": members, "seed": seed} if kind == "ensemble" else {}
        metadata = _metadata(net, kind, likelihood, labels, outputs, **drawn)
        data = file_of(network, inputs, format, metadata, labels, outputs)
        error = largest_error(network, data, format, inputs)
    if not error <= tolerance:
        raise ExportError(
            f"the exported network differs from PyTorch by {error:.2g}, more than "
            f"tolerance={tolerance:g}; nothing was written. Export a network in float64, or "
            "allow more if that is good enough"
        )
    exported = Exported(data, metadata, labels, outputs, error)
    if path is not None:
        exported.save(path)
    return exported


def _target_scale(mean: float | Tensor, scale: float | Tensor) -> Scale | None:
    """None if it changes nothing."""
    unit = Scale(*(torch.as_tensor(part, dtype=torch.float64) for part in (mean, scale)))
    if not bool((unit.scale > 0).all()):
        raise ValueError(f"target_scale must be positive, got {scale}")
    return None if bool((unit.mean == 0).all() and (unit.scale == 1).all()) else unit


def _check_unit(out: Tensor, likelihood: Likelihood | None, units: Scale | None) -> None:
    """Refuse units of classes."""
    if units is not None and likelihood is not None and likelihood.moments(out)[1] is None:
        raise ValueError(
            f"target_mean and target_scale: classes have no unit, and {type(likelihood).__name__} "
            "says that the outputs are classes"
        )


def _members(net: nn.Module, mean: Positional, members: int, seed: int) -> Members:
    """Draws of the network, numbered as `kasuri.predict` numbers them."""
    nets = [collapse(net, "sample", seed=mix(seed, member)) for member in range(members)]
    return Members([Positional(drawn, mean.names, mean.output) for drawn in nets])


def _metadata(
    net: nn.Module,
    kind: Kind,
    likelihood: Likelihood | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **more: int,
) -> dict[str, str]:
    """What the file says about itself."""
    from kasuri import __version__

    families = {
        type(family).__name__
        for _, _, conversion in named_layers(net)
        for family in conversion.families.values()
    }
    description = {
        "kind": kind,
        "family": ", ".join(sorted(families)) or "none",
        "likelihood": "none" if likelihood is None else type(likelihood).__name__,
        "inputs": ", ".join(inputs),
        "outputs": ", ".join(outputs),
        "version": __version__,
        "torch": torch.__version__,
        **more,
    }
    return {f"kasuri.{key}": str(value) for key, value in description.items()}

"""`kasuri.export`: what was trained, as a file that needs no kasuri."""

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.export.networks import Ensemble, Plain, SamplingFree, Servable, Single
from kasuri.export.options import (
    Format,
    Kind,
    check_details,
    check_inputs,
    check_options,
    check_parts,
)
from kasuri.export.outputs import Reported, Units, parts_of
from kasuri.export.programs import ExportError, onnx_bytes, program_of, torch_bytes
from kasuri.export.verify import largest_error, onnx_runner, torch_runner
from kasuri.likelihoods import Likelihood
from kasuri.network.contexts import evaluating, plain_path
from kasuri.network.convert import collapse
from kasuri.network.random import named_layers
from kasuri.objectives.elbo import Objective
from kasuri.objectives.trained import Trained, objective_of
from kasuri.prediction.moments.trace import TraceError
from kasuri.prediction.moments.trace import positional
from kasuri.prediction.moments.moment_network import Covariance, MomentNetwork
from kasuri.storage import write_atomically
from kasuri.streams import mix


@dataclass(frozen=True)
class Exported:
    """An exported network.

    Args:
        data: the file's content.
        metadata: what the file says about itself.
        inputs: names of its inputs.
        outputs: names of its outputs.
        error: largest difference to PyTorch (relative above 1), None if it was not compared.
        path: where it was written, None if it was not.
    """

    data: bytes = field(repr=False)
    metadata: dict[str, str] = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: float | None
    path: Path | None

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
    covariance: Covariance = "full",
    target_mean: float | Tensor = 0.0,
    target_scale: float | Tensor = 1.0,
    input_scaling: tuple[Tensor, Tensor] | None = None,
    input_names: Sequence[str] | None = None,
    output: Callable[[Any], Tensor] | None = None,
    verify: bool = True,
    tolerance: float = 1e-5,
) -> Exported:
    """A trained network as a file that PyTorch alone, or onnxruntime alone, can run, with any batch size.

    | kind       | the graph computes                               | its outputs                     |
    |------------|--------------------------------------------------|---------------------------------|
    | "mean"     | the network at the posterior mean                | output, as the network gives it |
    | "draw"     | one function of the posterior                    | output                          |
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
        example: inputs as the network takes them: a tensor (batch first), a tuple, a mapping of named ones.
        path: of the file; None to get its content only.
        kind: see above.
        members: number of functions of an ensemble.
        seed: of the draws.
        format: "onnx", or "torch" for torch.export.load.
        likelihood: what the outputs mean; that of the objective if there is one.
        covariance: of kind "variance", "full" or "diagonal" (cheaper, rougher).
        target_mean: mean that was taken out of the targets before training.
        target_scale: what they were divided by; outputs are in the target's own unit again.
        input_scaling: (mean, scale) to standardise the first input with, inside the graph.
        input_names: names of the inputs in the file; by default those of a mapping, or "input".
        output: takes the tensor out of what the network returns; None for all it returns.
        verify: compare with PyTorch; of an ONNX file this needs onnxruntime.
        tolerance: largest difference allowed, relative above 1.

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
    net, likelihood, output = _parts(model, likelihood, output)
    check_options(net, kind, format, members, seed, likelihood, target_mean, target_scale)
    check_details(covariance, tolerance, input_scaling, path)
    names, inputs = positional(example)
    units = Units.of(target_mean, target_scale)
    plan = _Plan(names, inputs, likelihood, output, Reported(units), input_scaling)
    with evaluating(net) as net, plain_path():
        parts = check_inputs(plan.plain(net, "mean", seed), inputs, input_scaling)
        check_parts(parts, kind, likelihood, units)
        try:
            network = plan.network(net, kind, members, seed, covariance)
        except TraceError as untraced:
            raise ExportError(str(untraced)) from untraced
        with torch.no_grad():
            outputs = tuple(network.named(*inputs))
        labels = _input_names(input_names, names, len(inputs))
        if both := [name for name in labels if name in outputs]:
            raise ValueError(
                f"export: {', '.join(map(repr, both))} would be an input and an output of the file; "
                "write input_names=[...] with other names"
            )
        metadata = _metadata(net, kind, members, seed, likelihood, labels, outputs)
        program = program_of(network, inputs, onnx=format == "onnx")
        if format == "onnx":
            data = onnx_bytes(program, metadata, labels, outputs)
        else:
            data = torch_bytes(program, metadata)
        error = None
        if verify:
            runner = onnx_runner(data) if format == "onnx" else torch_runner(data)
            error = largest_error(network, runner, inputs)
            if not error <= tolerance:
                raise ExportError(
                    f"the exported network differs from PyTorch by {error:.2g}, more than "
                    f"tolerance={tolerance:g}; nothing was written. Export a network in float64, or "
                    "allow more if that is good enough"
                )
    made = Exported(data, metadata, labels, outputs, error, None if path is None else Path(path))
    if path is not None:
        made.save(path)
    return made


@dataclass(frozen=True)
class _Plan:
    """What the networks of all kinds have in common."""

    names: tuple[str, ...] | None
    inputs: tuple[Tensor, ...]
    likelihood: Likelihood | None
    output: Callable[[Any], Tensor] | None
    report: Reported
    scaling: tuple[Tensor, Tensor] | None

    def network(
        self, net: nn.Module, kind: Kind, members: int, seed: int, covariance: Covariance
    ) -> Servable:
        rest = (self.likelihood, self.report, self.scaling)
        made: Servable
        if kind == "ensemble":
            seeds = [
                mix(seed, member) for member in range(members)
            ]  # as kasuri.predict numbers draws
            made = Ensemble([self.plain(net, "sample", one) for one in seeds], *rest)
        elif kind == "variance":
            still = copy.deepcopy(net).requires_grad_(False)
            moments = MomentNetwork(still, self.inputs, covariance, self.names, self._only)
            made = SamplingFree(moments, *rest, outputs=moments.outputs)
        else:
            made = Single(self.plain(net, "sample" if kind == "draw" else "mean", seed), *rest)
        return made.eval().requires_grad_(False)

    def _only(self, out: Any) -> Tensor:
        """The one output, taken out of whatever it is in."""
        return next(iter(parts_of(out if self.output is None else self.output(out)).values()))

    def plain(self, net: nn.Module, draw: str, seed: int) -> Plain:
        return Plain(collapse(net, draw, seed=seed), self.names, self.output)


def _parts(
    model: nn.Module | Trained, likelihood: Likelihood | None, output: Any
) -> tuple[nn.Module, Likelihood | None, Any]:
    """Network, likelihood and output of whatever was given."""
    model = objective_of(model)
    if isinstance(model, Objective):
        return model.net, likelihood or model.likelihood, output or model.output
    if isinstance(model, nn.Module):
        return model, likelihood, output
    raise TypeError(
        f"export of {type(model).__name__}: give what kasuri.fit returned, an ELBO or a network; estimators "
        "of kasuri.sklearn have a method `export` of their own"
    )


def _input_names(
    asked: Sequence[str] | None, names: tuple[str, ...] | None, count: int
) -> tuple[str, ...]:
    if asked is None:
        return names or (("input",) if count == 1 else tuple(f"input_{i}" for i in range(count)))
    if isinstance(asked, str):
        raise TypeError(f"input_names={asked!r}: a list of names, [{asked!r}]")
    if len(asked) != count or len(set(asked)) != count:
        raise ValueError(f"input_names={list(asked)}: {count} inputs want {count} different names")
    return tuple(asked)


def _metadata(
    net: nn.Module,
    kind: str,
    members: int,
    seed: int,
    likelihood: Likelihood | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> dict[str, str]:
    families = {
        type(family).__name__
        for _, _, conversion in named_layers(net)
        for family in conversion.families.values()
    }
    from kasuri import __version__

    told = {
        "kind": kind,
        "family": ", ".join(sorted(families)) or "none",
        "likelihood": "none" if likelihood is None else type(likelihood).__name__,
        "inputs": ", ".join(inputs),
        "outputs": ", ".join(outputs),
        "version": __version__,
        "torch": torch.__version__,
    }
    if kind == "ensemble":
        told["members"] = str(members)
    if kind in ("ensemble", "draw"):
        told["seed"] = str(seed)
    return {f"kasuri.{key}": value for key, value in told.items()}

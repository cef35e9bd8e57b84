"""`kasuri.export`: what was trained, as a file that needs no kasuri."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from kasuri.checks import described, first_line, is_number, is_whole, near_misses
from kasuri.exporting.networks import (
    Ensemble,
    OutputError,
    Plain,
    SamplingFree,
    Scale,
    Servable,
    Single,
    parts_of,
)
from kasuri.exporting.programs import (
    ExportError,
    largest_error,
    onnx_bytes,
    program_of,
    torch_bytes,
)
from kasuri.likelihoods import Likelihood
from kasuri.network.contexts import evaluating, plain_path
from kasuri.network.convert import collapse
from kasuri.network.random import named_layers
from kasuri.objectives.trained import Trained
from kasuri.prediction.moments.moment_network import Covariance, MomentNetwork
from kasuri.prediction.moments.trace import TraceError, positional
from kasuri.prediction.predict import Output, model_of
from kasuri.storage import write_atomically
from kasuri.streams import mix

Kind = Literal["mean", "draw", "ensemble", "variance"]
Format = Literal["onnx", "torch"]


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
    output: Output = None,
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
        example: inputs as the network takes them: a tensor (batch first), a tuple, a mapping of named ones,
            whose names the file has as well.
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
    _check_choices(kind=(kind, Kind), format=(format, Format), covariance=(covariance, Covariance))
    _check_path(path)
    if not (is_number(tolerance) and tolerance > 0):
        raise ValueError(f"tolerance must be a positive number, got {tolerance!r}")
    net, likelihood, output = model_of(model, likelihood, output)
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"export of {type(net).__name__}: give what kasuri.fit returned, an ELBO or a network; "
            "estimators of kasuri.sklearn have a method `export` of their own"
        )
    names, inputs = positional(example)
    numbered = tuple(f"input_{index}" for index in range(len(inputs)))
    labels = names or (("input",) if len(inputs) == 1 else numbered)
    recipe = Recipe(
        kind=kind,
        members=members,
        seed=seed,
        covariance=covariance,
        likelihood=likelihood,
        output=output,
        names=names,
        inputs=_input_scale(input_scaling, inputs[0].shape),
        targets=_target_scale(target_mean, target_scale),
    )
    recipe.check(net)
    with evaluating(net) as net, plain_path():
        recipe.check_outputs(net, inputs)
        try:
            network = recipe.network(net, inputs)
            with torch.no_grad():
                outputs = tuple(network.named(*inputs))
            program = program_of(network, inputs)
        except TraceError as untraced:
            raise ExportError(str(untraced)) from untraced
        if both := [name for name in labels if name in outputs]:
            raise ValueError(
                f"export: {', '.join(map(repr, both))} would be an input and an output of the file; "
                "give outputs other names, e.g. output=lambda out: {'score': out}"
            )
        metadata = recipe.metadata(net, labels, outputs)
        if format == "onnx":
            data = onnx_bytes(program, metadata, labels, outputs)
        else:
            data = torch_bytes(program, metadata)
        error = largest_error(network, data, format, inputs) if verify else None
    if error is not None and not error <= tolerance:
        raise ExportError(
            f"the exported network differs from PyTorch by {error:.2g}, more than "
            f"tolerance={tolerance:g}; nothing was written. Export a network in float64, or "
            "allow more if that is good enough"
        )
    exported = Exported(
        data, metadata, labels, outputs, error, None if path is None else Path(path)
    )
    if path is not None:
        exported.save(path)
    return exported


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is to be exported of a network: arguments of `export`, checked against each other."""

    kind: Kind
    members: int
    seed: int
    covariance: Covariance
    likelihood: Likelihood | None
    output: Output
    names: tuple[str, ...] | None  # of inputs given by name
    inputs: Scale | None
    targets: Scale | None

    def check(self, net: nn.Module) -> None:
        """Refuse arguments that contradict each other or the network."""
        if self.kind != "mean" and next(named_layers(net), None) is None:
            raise ValueError(
                f"export(kind={self.kind!r}): {type(net).__name__} has no posterior to draw from; write "
                'kind="mean", or export the network from kasuri.bayesianize'
            )
        if self.kind == "ensemble" and not is_whole(self.members, 2):
            raise ValueError(
                f'members must be at least 2, got {self.members}; for one function write kind="draw"'
            )
        if not is_whole(self.seed):
            raise ValueError(f"seed must be a whole number, got {self.seed!r}")
        if self.likelihood is not None and not isinstance(self.likelihood, Likelihood):
            raise TypeError(
                f"likelihood must be an object such as kasuri.Categorical(), got {self.likelihood!r}"
            )

    def check_outputs(self, net: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Run the network; refuse several outputs where one is meant, and outputs without a mean."""
        try:
            with torch.no_grad():
                parts: Mapping[str, Tensor] = self._plain(net, "mean", self.seed)(*inputs)
        except OutputError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"export(example=...): the network does not run on it, {described(*inputs)} "
                f"({first_line(error)}); give inputs as the network takes them"
            ) from error
        kind, likelihood = self.kind, self.likelihood
        one_meant = kind == "variance" or (kind == "ensemble" and likelihood is not None)
        if len(parts) > 1 and (one_meant or self.targets is not None):
            raise ValueError(
                f"export: the network returns {', '.join(map(repr, parts))}, but moments, a likelihood and a "
                "target's unit belong to a single output. Say to which one, e.g. output=lambda out: out[0] "
                "or output=lambda out: out.logits"
            )
        whole = [name for name, part in parts.items() if not part.is_floating_point()]
        if whole and kind == "ensemble":
            raise ValueError(
                f'export(kind="ensemble"): the outputs {whole} are whole numbers, which cannot be '
                "averaged over members; say which output to export, e.g. output=lambda out: out[0]"
            )
        if likelihood is not None and self.targets is not None:
            out = next(iter(parts.values()))
            if likelihood.moments(out)[1] is None:
                raise ValueError(
                    f"target_mean and target_scale: classes have no unit, and {type(likelihood).__name__} "
                    "says that the outputs are classes"
                )

    def network(self, net: nn.Module, inputs: tuple[Tensor, ...]) -> Servable:
        """What computes the outputs of the file."""
        units = self.likelihood, self.inputs, self.targets
        servable: Servable
        if self.kind == "ensemble":  # members are numbered as kasuri.predict numbers draws
            seeds = [mix(self.seed, member) for member in range(self.members)]
            servable = Ensemble([self._plain(net, "sample", seed) for seed in seeds], *units)
        elif self.kind == "variance":
            frozen = copy.deepcopy(net).requires_grad_(False)
            moments = MomentNetwork(frozen, inputs, self.covariance, self.names, self._only_output)
            servable = SamplingFree(moments, *units)
        else:
            draw = "sample" if self.kind == "draw" else "mean"
            servable = Single(self._plain(net, draw, self.seed), *units)
        return servable.eval().requires_grad_(False)

    def _only_output(self, out: Any) -> Tensor:
        """The one output, taken out of whatever it is in."""
        (part,) = parts_of(out if self.output is None else self.output(out)).values()
        return part

    def _plain(self, net: nn.Module, draw: str, seed: int) -> Plain:
        return Plain(collapse(net, draw, seed=seed), self.names, self.output)

    def metadata(
        self, net: nn.Module, inputs: Sequence[str], outputs: Sequence[str]
    ) -> dict[str, str]:
        """What the file says about itself."""
        from kasuri import __version__

        families = {
            type(family).__name__
            for _, _, conversion in named_layers(net)
            for family in conversion.families.values()
        }
        description = {
            "kind": self.kind,
            "family": ", ".join(sorted(families)) or "none",
            "likelihood": "none" if self.likelihood is None else type(self.likelihood).__name__,
            "inputs": ", ".join(inputs),
            "outputs": ", ".join(outputs),
            "version": __version__,
            "torch": torch.__version__,
        }
        if self.kind == "ensemble":
            description["members"] = str(self.members)
        if self.kind in ("ensemble", "draw"):
            description["seed"] = str(self.seed)
        return {f"kasuri.{key}": value for key, value in description.items()}


def _check_choices(**asked: tuple[Any, Any]) -> None:
    for name, (value, known) in asked.items():
        if value not in get_args(known):
            raise ValueError(
                f"export({name}={value!r}): {near_misses(str(value), get_args(known))}"
            )


def _check_path(path: str | os.PathLike[str] | None) -> None:
    if path is None:
        return
    if str(path) in get_args(Kind):
        raise ValueError(
            f"export(..., path={str(path)!r}): this is the name of a kind; write kind={str(path)!r}, "
            'or, if a file is meant, a path with an ending, e.g. "net.onnx"'
        )
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"export: there is no folder {Path(path).absolute().parent}")
    if Path(path).is_dir():
        raise IsADirectoryError(f"export: {path} is a folder; write the path of a file in it")


def _input_scale(given: Any, shape: Sequence[int]) -> Scale | None:
    if given is None:
        return None
    pair = isinstance(given, tuple | list) and len(given) == 2
    if not (pair and all(isinstance(part, Tensor) for part in given)):
        raise ValueError("input_scaling must be two tensors, (mean, scale) of the first input")
    for part in given:
        fits = all(
            size in (1, here) for size, here in zip(part.shape[::-1], shape[::-1], strict=False)
        )
        if part.dim() > len(shape) or not fits:
            raise ValueError(
                f"input_scaling must be one number, or one per feature of inputs of shape {tuple(shape)}, "
                f"got shape {tuple(part.shape)}"
            )
    if not bool((given[1] != 0).all()):
        raise ValueError("input_scaling: a scale is 0; write 1 for inputs that are always the same")
    return Scale(*given)


def _target_scale(mean: float | Tensor, scale: float | Tensor) -> Scale | None:
    """None if it changes nothing."""
    unit = Scale(*(torch.as_tensor(part, dtype=torch.float64) for part in (mean, scale)))
    if not bool((unit.scale > 0).all()):
        raise ValueError(f"target_scale must be positive, got {scale}")
    return None if bool((unit.mean == 0).all() and (unit.scale == 1).all()) else unit

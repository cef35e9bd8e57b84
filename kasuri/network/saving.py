"""Saving and loading: tensors as safetensors, everything else as a JSON description beside them.

The file carries no code. It is read completely and checked before anything is built: format,
digest, architecture. It is written under another name first and then renamed.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.files import write_atomically
from kasuri.likelihoods import LIKELIHOODS
from kasuri.network.bayesian import named_bayesian, original_modules
from kasuri.network.contexts import require_posteriors
from kasuri.network.descriptions import build, classes, describe
from kasuri.network.estimators import NAMED
from kasuri.network.wiring import Plan, apply_plans
from kasuri.objectives import schedules
from kasuri.objectives.balanced import Balanced
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.temperature import Tempering
from kasuri.posteriors.base import Family
from kasuri.posteriors.full_normal import FullNormal
from kasuri.posteriors.k_tied import KTied
from kasuri.posteriors.masked import Masked
from kasuri.posteriors.matrix_normal import MatrixNormal
from kasuri.posteriors.matrix_normal_diagonal import MatrixNormalDiagonal
from kasuri.posteriors.mean_field import MeanField
from kasuri.posteriors.point import Point
from kasuri.posteriors.radial.family import Radial
from kasuri.posteriors.radial.prior import RadialPrior
from kasuri.posteriors.scaled_matrix_normal import ScaledMatrixNormal
from kasuri.priors.base import HeNormal, Normal, Prior
from kasuri.priors.relevance import ARD, GroupARD

FORMAT = 1
_FAMILIES: tuple[type[Family], ...] = (
    MeanField,
    KTied,
    MatrixNormal,
    MatrixNormalDiagonal,
    ScaledMatrixNormal,
    FullNormal,
    Radial,
    Point,
    Masked,
)
_PRIORS: tuple[type[Prior], ...] = (Normal, HeNormal, ARD, GroupARD, RadialPrior)
_SCHEDULES: tuple[type, ...] = (
    schedules.Constant,
    schedules.LinearPerBatch,
    schedules.LinearOverEpochs,
    schedules.Exponential,
    schedules.HoldThenRamp,
)


class FileError(ValueError):
    """A kasuri file that cannot be used, with the reason."""


def save(bnn: nn.Module, path: str | os.PathLike[str], objective: ELBO | None = None) -> None:
    """Write a converted network to a .safetensors file.

    Args:
        bnn: a network from `bayesianize`.
        path: of the file; an existing file is replaced, or left untouched if anything fails.
        objective: also store prior, likelihood, number of data and temperature, for `load_objective`.

    Examples:
        >>> import kasuri, tempfile
        >>> net = nn.Linear(3, 2)
        >>> bnn = kasuri.bayesianize(net, kasuri.KTied(rank=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kasuri.save(bnn, folder + "/model.safetensors")
        ...     again = kasuri.load(folder + "/model.safetensors", nn.Linear(3, 2))
        >>> all(torch.equal(a, b) for a, b in zip(bnn.parameters(), again.parameters()))
        True
    """
    from safetensors.torch import save as to_bytes

    from kasuri import __version__

    if isinstance(bnn, ELBO):
        raise TypeError("save(elbo, path): write save(elbo.bnn, path, objective=elbo)")
    require_posteriors(bnn)
    tensors, aliases = _unique(bnn.state_dict())
    description: dict[str, Any] = {
        "format": FORMAT,
        "versions": {"kasuri": __version__, "torch": torch.__version__},
        "modules": _architecture(bnn),
        "layers": {name: _describe_layer(name, layer) for name, layer in named_bayesian(bnn)},
        "aliases": aliases,
    }
    if objective is not None:
        if objective.bnn is not bnn:
            raise ValueError("save(bnn, path, objective=elbo): elbo belongs to another network")
        description["objective"] = _describe_objective(objective)
        for key, value in objective.state_dict().items():
            if not key.startswith("bnn."):
                tensors[f"objective:{key}"] = value.detach().cpu().contiguous()
    text = json.dumps(description)
    write_atomically(
        Path(path), to_bytes(tensors, {"kasuri": text, "digest": _digest(text, tensors)})
    )


def load(
    path: str | os.PathLike[str],
    net: nn.Module,
    *,
    families: Sequence[type[Family]] = (),
    strict: bool = True,
) -> nn.Module:
    """The network of a file from `save`, built on a copy of the ordinary architecture.

    Args:
        path: of the file.
        net: the ordinary network as it was before conversion; its weights do not matter.
        families: classes of your own families that the file uses.
        strict: also require equal options of every module (stride, dropout rate, ...), which
            leave no trace in the tensors.
    """
    description, tensors = _read(Path(path))
    _check_architecture(Path(path), description["modules"], _architecture(net), strict)
    known = {family.__name__: family for family in (*_FAMILIES, *families)}
    plans = [_plan(name, layer, known) for name, layer in description["layers"].items()]
    with torch.random.fork_rng(devices=[]):  # initial values are overwritten: use no randomness
        bnn = apply_plans(net, plans)
    state = {key: value for key, value in tensors.items() if not key.startswith("objective:")}
    state |= {alias: state[key] for alias, key in description["aliases"].items()}
    try:
        bnn.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"{path} does not fit this network: {error}") from None
    return bnn


def load_objective(path: str | os.PathLike[str], bnn: nn.Module) -> ELBO:
    """The objective stored with a network, for a network from `load`.

    An `output=` function is code and not stored: set `elbo.output` again if you had one.
    """
    description, tensors = _read(Path(path))
    told = description.get("objective")
    if told is None:
        raise FileError(f"{path} has no objective: it was saved without objective=elbo")
    priors = [build(one, _PRIORS) for one in told["priors"]]
    patterns = told["patterns"]
    balance, temperature = told.get("balance"), build(told["temperature"], _SCHEDULES)
    elbo = ELBO(
        bnn,
        build(told["likelihood"], LIKELIHOODS),
        priors[0] if patterns is None else dict(zip(patterns, priors, strict=True)),
        num_data=told["num_data"],
        temperature=temperature if balance is None else build(balance, (Balanced,)),
        samples=told["samples"],
        kl_weight=build(told["kl_weight"], _SCHEDULES),
    )
    elbo.temperature = temperature  # which may have been changed since
    prefix = "objective:"
    state = {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
    elbo.load_state_dict(state | {f"bnn.{key}": v for key, v in bnn.state_dict().items()})
    return elbo


def _unique(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and the other names of those that have several (ties)."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[int, torch.Size], str] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state {key!r} is a {type(value).__name__}; only tensors can be saved"
            )
        place = (value.data_ptr(), value.shape)
        if value.numel() and place in first:
            aliases[key] = first[place]
        else:
            first[place] = key
            tensors[key] = value.detach().cpu().contiguous()
    return tensors, aliases


def _architecture(net: nn.Module) -> list[list[str]]:
    return [[name, type(m).__name__, m.extra_repr()] for name, m in original_modules(net)]


def _describe_layer(name: str, layer: Any) -> dict[str, Any]:
    names = {function: label for label, function in NAMED.items()}
    if layer.estimator not in names:
        raise ValueError(
            f"{name}: an estimator of your own cannot be saved; use one of {list(NAMED)}"
        )
    parameters = {}
    for parameter, family in layer.families.items():
        if not isinstance(family, Family):
            raise ValueError(
                f"{name}.{parameter}: its family is a plain function, which cannot be written to a "
                "file; make it a dataclass derived from kasuri.Family"
            )
        parameters[parameter] = describe(family)
    blocks = any(view.blocks > 1 for view in layer.views.values())
    return {"estimator": names[layer.estimator], "blocks": blocks, "parameters": parameters}


def _plan(name: str, layer: dict[str, Any], known: Mapping[str, type[Family]]) -> Plan:
    families = {}
    for parameter, told in layer["parameters"].items():
        for unknown in [kind for kind in classes(told) if kind not in known]:
            raise FileError(
                f"{name}.{parameter} has a posterior of family {unknown!r}, which this version "
                f"does not know; if it is yours write kasuri.load(..., families=[{unknown}])"
            )
        families[parameter] = build(told, tuple(known.values()))
    return Plan(name, families, layer["blocks"], NAMED[layer["estimator"]])


def _describe_objective(elbo: ELBO) -> dict[str, Any]:
    temperature = elbo.temperature
    if isinstance(temperature, Tempering):  # it follows validation: stored at its present value
        temperature = schedules.Constant(temperature.value)
    return {
        "priors": [describe(prior, _PRIORS) for prior in elbo.priors],
        "patterns": elbo.patterns,
        "likelihood": describe(elbo.likelihood, LIKELIHOODS),
        "num_data": elbo.num_data,
        "samples": elbo.samples,
        "temperature": describe(temperature, _SCHEDULES),
        "balance": None if elbo.balance is None else describe(elbo.balance, (Balanced,)),
        "kl_weight": describe(elbo.kl_weight, _SCHEDULES),
    }


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the description and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors of an undamaged file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged or no safetensors file: {error}") from None
    key = "kasuri" if "kasuri" in metadata else "weft"  # the name of version 0.2
    if key not in metadata:
        raise FileError(f"{path} is a safetensors file, but not one written by kasuri.save")
    try:
        description = json.loads(metadata[key])
        found = description["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} has an unreadable description: {error}") from None
    if found != FORMAT:
        raise FileError(
            f"{path} has format {found}, this version of kasuri reads format {FORMAT}; "
            f"it was written by kasuri {description.get('versions', {}).get('kasuri', 'unknown')}"
        )
    if metadata.get("digest") != _digest(metadata[key], tensors):
        raise FileError(f"{path} was changed after it was written: its digest does not match")
    return description, tensors


def _check_architecture(
    path: Path, saved: list[list[str]], given: list[list[str]], strict: bool
) -> None:
    """Name the first module in which the file and the network differ."""
    here = {name: (kind, options) for name, kind, options in given}
    for name, kind, options in saved:
        title = name or "the network"
        if name not in here:
            raise FileError(f"{path}: the network has no module {title!r} ({kind}), the file has")
        if here[name][0] != kind:
            raise FileError(f"{path}: {title!r} is a {here[name][0]}, in the file it is a {kind}")
        if strict and here[name][1] != options:
            raise FileError(
                f"{path}: {title!r} is {kind}({here[name][1]}), in the file {kind}({options}); "
                "build the same network, or pass strict=False if the difference is meant"
            )
    extra = [name for name in here if name not in {one for one, _, _ in saved}]
    if extra:
        raise FileError(f"{path}: the network has a module {extra[0]!r} that the file has not")

"""Saving and loading: tensors as safetensors, everything else as a JSON description beside them.

The file carries no code. It is read completely and checked before anything is built: format,
digest, architecture. It is written under another name first and then renamed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kasuri.network.convert import Plan, apply_plans
from kasuri.network.estimators import NAMED
from kasuri.network.random import Conversion, named_layers, original_modules, require_posteriors
from kasuri.storage import build, describe, write_atomically

FORMAT = 2  # 1: version 0.2, which was called weft and put a wrapper around every layer


class FileError(ValueError):
    """A model file that cannot be used, with the reason."""


def save(bnn: nn.Module, path: str | os.PathLike[str], objective: Any = None) -> None:
    """Write a converted network to a .safetensors file.

    Args:
        bnn: a network from `bayesianize`.
        path: of the file; an existing file is replaced, or left untouched if anything fails.
        objective: a `kasuri.ELBO` whose prior, likelihood, number of data and temperature are stored as
            well, for `load_objective`.

    Examples:
        >>> import kasuri, tempfile
        >>> net = nn.Linear(3, 2)
        >>> bnn = kasuri.bayesianize(net, kasuri.KTied(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kasuri.save(bnn, folder + "/model.safetensors")
        ...     again = kasuri.load(folder + "/model.safetensors", nn.Linear(3, 2))
        >>> all(torch.equal(a, b) for a, b in zip(bnn.parameters(), again.parameters()))
        True
    """
    from safetensors.torch import save as to_bytes

    from kasuri import __version__

    if hasattr(bnn, "bnn"):
        raise TypeError("save(elbo, path): write save(elbo.bnn, path, objective=elbo)")
    require_posteriors(bnn)
    tensors, aliases = _unique(bnn.state_dict())
    description: dict[str, Any] = {
        "format": FORMAT,
        "versions": {"kasuri": __version__, "torch": torch.__version__},
        "modules": _architecture(bnn),
        "layers": {name: _describe_layer(name, done) for name, _, done in named_layers(bnn)},
        "aliases": aliases,
    }
    if objective is not None:
        if objective.bnn is not bnn:
            raise ValueError("save(bnn, path, objective=elbo): elbo belongs to another network")
        description["objective"] = objective.description()
        for key, value in objective.state_dict().items():
            if not key.startswith("bnn."):
                tensors[f"objective:{key}"] = value.detach().cpu().contiguous()
    text = json.dumps(description)
    write_atomically(
        Path(path), to_bytes(tensors, {"kasuri": text, "digest": _digest(text, tensors)})
    )


def load(path: str | os.PathLike[str], net: nn.Module, *, strict: bool = True) -> nn.Module:
    """The network of a file from `save`, built on a copy of the ordinary architecture.

    Families of your own must be defined (imported) before; they are found by their names.

    Args:
        path: of the file; files of version 0.2 are read as well.
        net: the ordinary network as it was before conversion; its weights do not matter.
        strict: also require equal options of every module (stride, dropout rate, ...), which
            leave no trace in the tensors.
    """
    description, tensors = read(Path(path))
    _check_architecture(Path(path), description["modules"], _architecture(net), strict)
    plans = [_plan(name, layer) for name, layer in description["layers"].items()]
    with torch.random.fork_rng(devices=[]):  # initial values are overwritten: use no randomness
        bnn = apply_plans(net, plans)
    state = {key: value for key, value in tensors.items() if not key.startswith("objective:")}
    state |= {alias: state[key] for alias, key in description["aliases"].items()}
    try:
        bnn.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"{path} does not fit this network: {error}") from None
    return bnn


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
    """Name, class and options of every module; lists of parameters show tensors, not options."""
    lists = (nn.ParameterList, nn.ParameterDict)
    return [
        [name, type(module).__name__, "" if isinstance(module, lists) else module.extra_repr()]
        for name, module in original_modules(net)
    ]


def _describe_layer(name: str, conversion: Conversion) -> dict[str, Any]:
    names = {function: label for label, function in NAMED.items()}
    if conversion.estimator not in names:
        raise ValueError(
            f"{name}: an estimator of your own cannot be saved; use one of {list(NAMED)}"
        )
    views = conversion.views
    return {
        "estimator": names[conversion.estimator],
        "blocks": any(view.blocks > 1 and not view.lead for view in views.values()),
        "flat": conversion.flat,
        "parameters": {name: describe(family) for name, family in conversion.families.items()},
    }


def _plan(name: str, layer: dict[str, Any]) -> Plan:
    families = {}
    for parameter, description in layer["parameters"].items():
        try:
            families[parameter] = build(description)
        except KeyError as unknown:
            raise FileError(
                f"{name}.{parameter} has a posterior of family {unknown}, which is not known; if it is "
                "yours, import the module that defines it before kasuri.load"
            ) from None
    return Plan(name, families, layer["blocks"], NAMED[layer["estimator"]], layer["flat"])


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the description and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors of an undamaged file, those of version 0.2 under today's names."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged or no safetensors file: {error}") from None
    writer = "kasuri" if "kasuri" in metadata else "weft"
    if writer not in metadata:
        raise FileError(f"{path} is a safetensors file, but not one written by kasuri.save")
    try:
        description = json.loads(metadata[writer])
        version = description["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} has an unreadable description: {error}") from None
    if version not in (1, FORMAT):
        raise FileError(
            f"{path} has format {version}, this version of kasuri reads formats up to {FORMAT}; "
            f"it was written by kasuri {description.get('versions', {}).get('kasuri', 'unknown')}"
        )
    if metadata.get("digest") != _digest(metadata[writer], tensors):
        raise FileError(f"{path} was changed after it was written: its digest does not match")
    return _from_0_2(description, tensors) if version == 1 else (description, tensors)


def _from_0_2(
    description: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A file of version 0.2, whose layers were wrapped, and attention converted as one piece."""
    wrapped = set(description["layers"])
    layers: dict[str, Any] = {}
    for name, layer in description["layers"].items():
        for parameter, family in layer["parameters"].items():
            path, _, last = parameter.rpartition(".")
            owner = ".".join(part for part in (name, path) if part)
            empty = {**layer, "flat": True, "parameters": {}}
            layers.setdefault(owner, empty)["parameters"][last] = family
    aliases = {
        old_name(alias, wrapped): old_name(key, wrapped)
        for alias, key in description["aliases"].items()
    }
    description = {**description, "layers": layers, "aliases": aliases}
    return description, {old_name(key, wrapped): value for key, value in tensors.items()}


def old_name(key: str, wrapped: set[str]) -> str:
    """The name that a tensor of version 0.2 has today.

    Args:
        key: of the tensor.
        wrapped: names of the layers that had a wrapper.

    Examples:
        >>> old_name("wrapped.0.wrapped.bias", {"", "0"})
        '0.bias'
        >>> old_name("attention.posteriors.out_proj/weight.loc", {"attention"})
        'attention.out_proj.posteriors.weight.loc'
    """
    if key.startswith("objective:"):
        return key
    done: list[str] = []
    parts = key.split(".")
    while parts:
        part = parts.pop(0)
        if ".".join(done) in wrapped and part == "wrapped":
            continue
        if ".".join(done) in wrapped and part == "posteriors":
            *path, name = parts.pop(0).split("/")
            return ".".join([*done, *path, "posteriors", name, *parts])
        done.append(part)
    return ".".join(done)


def _check_architecture(
    path: Path, saved: list[list[str]], given: list[list[str]], strict: bool
) -> None:
    """Name the first module in which the file and the network differ."""
    there, here = ({name: (kind, options) for name, kind, options in m} for m in (saved, given))
    for name, (kind, options) in there.items():
        title = name or "the network"
        if name not in here:
            raise FileError(f"{path}: the network has no module {title!r} ({kind}), the file has")
        if here[name][0] != kind:
            raise FileError(f"{path}: {title!r} is a {here[name][0]}, in the file it is a {kind}")
        if strict and here[name][1] != options and kind not in ("ParameterList", "ParameterDict"):
            raise FileError(
                f"{path}: {title!r} is {kind}({here[name][1]}), in the file {kind}({options}); "
                "build the same network, or pass strict=False if the difference is meant"
            )
    extra = next((name for name in here if name not in there), None)
    if extra is not None:
        raise FileError(f"{path}: the network has a module {extra!r}, but the file has not")

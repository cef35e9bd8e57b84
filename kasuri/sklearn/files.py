"""Files of fitted estimators: a zip with the network as `kasuri.save` writes it, and a JSON description.

Neither part can carry code. The file is written under another name first and then renamed.
"""

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kasuri.network.saving import FileError, save
from kasuri.objectives.elbo import ELBO
from kasuri.objectives.temperature import Balanced
from kasuri.storage import Storable, build, describe, write_atomically

FORMAT = 1
_TEXT, _WEIGHTS = "estimator.json", "network.safetensors"


def write(
    path: Path, kind: str, params: dict[str, Any], state: dict[str, Any], objective: ELBO
) -> None:
    """Replace the file at `path` by a fitted estimator of a class; `state` is ready for JSON."""
    written = {name: _for_json(name, value) for name, value in params.items()}
    text = json.dumps({"format": FORMAT, "estimator": kind, "params": written, "state": state})
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(buffer, "w") as archive:
        save(objective.bnn, weights := Path(folder) / _WEIGHTS, objective)
        archive.writestr(_TEXT, text)
        archive.write(weights, _WEIGHTS)
    write_atomically(path, buffer.getvalue())


@contextmanager
def opened(path: Path, kind: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], Path]]:
    """(arguments of the constructor, fitted state, file for `kasuri.load`) of an undamaged file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            text, weights = (archive.read(part) for part in (_TEXT, _WEIGHTS))
        parts = ("format", "estimator", "params", "state")
        version, owner, params, state = (json.loads(text)[part] for part in parts)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged or not a file from save: {error}") from None
    if version != FORMAT:
        raise FileError(
            f"{path} has format {version}, this version of kasuri reads format {FORMAT}"
        )
    if owner != kind:
        raise FileError(f"{path} holds a {owner}: write {owner}.load(path)")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / _WEIGHTS
        place.write_bytes(weights)
        yield {name: _from_json(path, value) for name, value in params.items()}, state, place


def _for_json(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Storable):
        return describe(value)
    if isinstance(value, list | tuple):
        return [_for_json(name, part) for part in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(
        f"{name}={value!r} cannot be written to a file; set_params({name}=...) to a name or a number "
        "first, which changes nothing that was fitted"
    )


def _from_json(path: Path, value: Any) -> Any:
    if isinstance(value, dict) and value["class"] == "Balanced":  # had more options in version 0.2
        return Balanced(value["options"]["tau"])
    if isinstance(value, dict):
        try:
            return build(value)
        except KeyError as unknown:
            raise FileError(f"{path} needs {unknown}, which is not known here") from None
    return tuple(value) if isinstance(value, list) else value

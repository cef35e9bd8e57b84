"""A training run on disk: one file, replaced as a whole.

The file holds everything the next step depends on, so that a run which was killed continues to the
bit-identical result of one that was not. It is written beside the old one and renamed, hence a
crash at any moment leaves the old file or the new one. It is read with `weights_only=True`: no
code in it is ever run. Checkpoints of version 0.2 (format 1) are read as well, see `from_0_2`.
"""

import csv
import io
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from kasuri.network.saving import old_name
from kasuri.objectives.elbo import Objective
from kasuri.storage import write_atomically

FORMAT = 2  # 1: version 0.2, which was called weft and put a wrapper around every layer
NAME = "checkpoint.pt"
EVERY = 60.0  # seconds between checkpoints at ends of epochs


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason."""


def write(folder: Path, content: dict[str, Any]) -> None:
    """Replace the folder's checkpoint, and history.csv before it; a file is replaced as a whole."""
    buffer, table = io.BytesIO(), io.StringIO()
    torch.save({"format": FORMAT, **content}, buffer)
    history = content["position"]["history"]
    columns = list(dict.fromkeys(key for row in history for key in row))
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    folder.mkdir(parents=True, exist_ok=True)
    if history:
        write_atomically(folder / "history.csv", table.getvalue().encode())
    write_atomically(folder / NAME, buffer.getvalue())


def exists(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return (folder / NAME).is_file()


def read(folder: Path) -> dict[str, Any]:
    """The folder's checkpoint."""
    path = folder / NAME
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version = content["format"]
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file, and gives bad advice
        raise CheckpointError(
            f"{path} is damaged or no checkpoint of kasuri ({type(error).__name__})"
        ) from None
    if version not in (1, FORMAT):
        raise CheckpointError(
            f"{path} has format {version}, this version reads formats up to {FORMAT}"
        )
    return dict(content)


def from_0_2(
    saved: dict[str, Any], objective: Objective, optimiser: Optimizer, settings: dict[str, Any]
) -> dict[str, Any]:
    """A checkpoint of version 0.2 as this version would have written it.

    Tensors get today's names, and the optimiser's state today's order of parameters. Likelihood, prior and
    schedules, which settings describe in words, are not compared. Logs (of TensorBoard) are left out.
    """
    layers = {
        key.partition(".posteriors.")[0] for key in saved["objective"] if ".posteriors." in key
    }
    wrapped = {".".join(p for p in name.split(".") if p != "wrapped") for name in layers}
    names = {key: old_name(key, wrapped) for key in saved["objective"]}
    best = saved["best"]
    words = ("likelihood", "prior", "objective", *objective.scheduled())
    clip = [["Clip", {}]] if saved["settings"]["clip"] else []
    return saved | {
        "format": FORMAT,
        "settings": saved["settings"] | {key: settings[key] for key in words if key in settings},
        "objective": {names[key]: value for key, value in saved["objective"].items()},
        "best": best and {names[key]: value for key, value in best.items()},
        "optimizer": _reordered(saved["optimizer"], list(names.values()), objective, optimiser),
        "callbacks": saved["callbacks"] + clip,
        "temperature": {"steps": 0, "chosen": saved["temperature"], "seen": []},
    }


def _reordered(
    state: dict[str, Any], names: list[str], objective: Objective, optimiser: Optimizer
) -> dict[str, Any]:
    """The state of an optimiser, which knows parameters by their numbers, for today's numbers.

    `names` are those of all tensors in the order of version 0.2.
    """
    parameters = dict(objective.named_parameters(remove_duplicate=False))
    known = [parameters[name] for name in names if name in parameters]
    then = list(dict.fromkeys(id(p) for p in known if p.requires_grad))
    now = [id(p) for group in optimiser.param_groups for p in group["params"]]
    if then == now:
        return state
    if len(state["param_groups"]) > 1:
        raise CheckpointError(
            "this checkpoint of version 0.2 has several groups of parameters, and their order has changed "
            "since: finish the run with version 0.2"
        )
    group = state["param_groups"][0] | {"params": list(range(len(now)))}
    moved = {now.index(then[number]): values for number, values in state["state"].items()}
    return {"state": moved, "param_groups": [group]}


@contextmanager
def generators_restored() -> Iterator[None]:
    """Random generators afterwards as before: what is made next must not depend on the seed."""
    numpy = sys.modules.get("numpy")
    python, legacy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)

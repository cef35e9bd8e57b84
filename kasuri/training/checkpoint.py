"""A training run on disk: one file, replaced as a whole.

The file holds everything the next step depends on, so that a run which was killed continues to the
bit-identical result of one that was not. It is written beside the old one and renamed, hence a
crash at any moment leaves the old file or the new one. It is read with `weights_only=True`: no
code in it is ever run.
"""

import io
import random
import sys
from pathlib import Path
from typing import Any

import torch

from kasuri.storage import write_atomically

FORMAT = 1
NAME = "checkpoint.pt"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason."""


def write(folder: Path, content: dict[str, Any]) -> None:
    """Replace the folder's checkpoint."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / NAME, buffer.getvalue())


def read(folder: Path) -> dict[str, Any]:
    """The folder's checkpoint."""
    path = folder / NAME
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file: there is no training run to resume")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        found = content["format"]
    except Exception as error:  # torch raises many kinds for a damaged file, and gives bad advice
        raise CheckpointError(
            f"{path} is damaged or no checkpoint of kasuri ({type(error).__name__})"
        ) from None
    if found != FORMAT:
        raise CheckpointError(f"{path} has format {found}, this version reads format {FORMAT}")
    return dict(content)


def exists(folder: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return (folder / NAME).is_file()


def check_settings(folder: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue a run under settings that would make it another run."""
    changed = [key for key in now if saved.get(key) != now[key]]
    if changed:
        list_of = "; ".join(f"{key}: {saved.get(key)} then, {now[key]} now" for key in changed)
        raise CheckpointError(
            f"{folder / NAME} is of a run with other settings ({list_of}); use the same ones, or "
            "another folder"
        )


def generators() -> dict[str, Any]:
    """States of the random generators that user code in this process may draw from."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        import numpy as np

        kind, keys, *rest = np.random.get_state(legacy=True)  # a tuple, by `legacy`
        state["numpy"] = [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest]
    return state


def restore_generators(state: dict[str, Any]) -> None:
    """Put the generators back."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        import numpy as np

        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))

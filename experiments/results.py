"""Result files: what was run, where, and what came out."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import kasuri
from experiments.spec import Experiment, Outcome
from kasuri.storage import write_atomically

FORMAT = 1
ROOT, SOURCES = Path(__file__).parents[1], ("kasuri", "experiments", "benchmarks")


def write(
    path: Path, experiment: Experiment, seed: int, smoke: bool, started: datetime, outcome: Outcome
) -> None:
    """Write the result of a run that is done now, as a whole or not at all."""
    total = (datetime.now(UTC) - started).total_seconds()
    content = {
        "format": FORMAT,
        "experiment": experiment.name,
        "variant": experiment.variant,
        "title": experiment.title,
        "seed": seed,
        "smoke": smoke,
        "settings": experiment.settings(),
        "metrics": outcome.metrics,
        "validation": outcome.validation,
        "published": experiment.published,
        "parameters": outcome.parameters,
        "seconds": {"total": round(total, 2), "train": round(outcome.seconds, 2)},
        "started": started.isoformat(timespec="seconds"),
        **origin(),
        "history": thinned(outcome.history),
        "figures": outcome.figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_text(content).encode())


def thinned(history: list[dict[str, float]], rows: int = 100) -> list[dict[str, float]]:
    """Every validated epoch, the last one, and of the others about so many, evenly spaced.

    The whole history of a run is in its history.csv.
    """
    stride = max(1, len(history) // rows)
    return [
        row
        for number, row in enumerate(history, 1)
        if number % stride == 0
        or number == len(history)
        or any(key.startswith("valid_") for key in row)
    ]


def as_text(content: dict[str, Any]) -> str:
    """JSON with one line per entry of the outer mapping, and per row of a list of rows; seven digits."""
    content = json.loads(
        json.dumps(content), parse_float=lambda digits: float(f"{float(digits):.7g}")
    )

    def text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        return json.dumps(value)

    lines = (f" {json.dumps(key)}: {text(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def origin() -> dict[str, Any]:
    """What the numbers and the times depend on: versions, commit, machine."""
    commit = git("rev-parse", "HEAD")
    return {
        "versions": {
            "kasuri": kasuri.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "commit": commit,
        "dirty": None if commit is None else bool(git("status", "--porcelain", "--", *SOURCES)),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
    }


def git(*words: str) -> str | None:
    """What git says of the source; None outside a repository."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

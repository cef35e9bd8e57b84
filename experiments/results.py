"""Result files: what was run, where, and what came out."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from experiments.spec import Experiment, Outcome
from kasuri import __version__
from kasuri.storage import write_atomically

FORMAT = 1


def place(root: Path, experiment: Experiment, seed: int) -> Path:
    """results/<experiment>/<variant>/<seed>.json."""
    return root / experiment.name / experiment.variant / f"{seed}.json"


def write(
    path: Path, experiment: Experiment, seed: int, smoke: bool, started: datetime, found: Outcome
) -> None:
    """Write the result of a run, as a whole or not at all."""
    content = {
        "format": FORMAT,
        "experiment": experiment.name,
        "variant": experiment.variant,
        "title": experiment.title,
        "seed": seed,
        "smoke": smoke,
        "settings": experiment.settings(),
        "metrics": found.metrics,
        "validation": found.validation,
        "published": experiment.published,
        "parameters": found.parameters,
        "seconds": {phase: round(value, 2) for phase, value in found.seconds.items()},
        "started": started.isoformat(timespec="seconds"),
        "versions": versions(),
        **commit(),
        "machine": machine(),
        "history": thinned(found.history),
        "figures": found.figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_text(content).encode())


def thinned(history: list[dict[str, float]], rows: int = 100) -> list[dict[str, float]]:
    """Every validated epoch, the last one, and of the others about so many, evenly spaced.

    The whole history of a run is in its history.csv.
    """
    every = max(1, len(history) // rows)
    return [
        row
        for number, row in enumerate(history, 1)
        if number % every == 0
        or number == len(history)
        or any(key.startswith("valid_") for key in row)
    ]


def as_text(content: dict[str, Any]) -> str:
    """JSON with one line per entry of the outer mapping, and per entry of its lists."""

    def value(one: Any) -> str:
        if isinstance(one, list) and one and isinstance(one[0], dict):
            return "[\n  " + ",\n  ".join(map(json.dumps, one)) + "\n ]"
        return json.dumps(one)

    lines = (f" {json.dumps(key)}: {value(one)}" for key, one in _rounded(content).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def settings_of(path: Path) -> dict[str, Any] | None:
    """The settings of a result file; None if it cannot be read."""
    try:
        return dict(json.loads(path.read_text())["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def versions() -> dict[str, str]:
    """Of kasuri and what its numbers depend on."""
    return {
        "kasuri": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def commit() -> dict[str, Any]:
    """The commit of the source, and whether files differ from it; nothing outside a repository."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", *words],
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    sha = git("rev-parse", "HEAD")
    if sha is None:
        return {"commit": None, "dirty": None}
    return {"commit": sha, "dirty": bool(git("status", "--porcelain", "--", "."))}


def machine() -> dict[str, Any]:
    """What the times depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def now() -> datetime:
    """The present moment, with time zone."""
    return datetime.now(UTC)


def _rounded(value: Any) -> Any:
    """Floats to seven digits: more would only make the files long."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value

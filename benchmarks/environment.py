"""Where and of what a result was made: versions, commit, processor."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import kasuri
from benchmarks import peers

ROOT = Path(__file__).parent.parent
OUTPUTS = (":!results", ":!docs/benchmarks.md")  # a run writes these itself


def versions(only_kasuri: bool) -> dict[str, str]:
    """Of everything that was timed and what it stands on."""
    return {
        "kasuri": kasuri.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **({} if only_kasuri else peers.versions()),
    }


def commit() -> dict[str, str | bool]:
    """The commit, "unknown" outside of a repository, and whether the tree differs from it."""
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--", ".", *OUTPUTS)
    return {
        "commit": head or "unknown",
        "dirty": "unknown" if changes is None else bool(changes),
    }


def processor() -> str:
    """Model name of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"


def stored(path: Path) -> dict[str, Any]:
    """A result file; version 0.2, by which some were written, was called weft."""
    result: dict[str, Any] = json.loads(path.read_text().replace("weft", "kasuri"))
    return result


def load() -> float | None:
    """Processes wanting to run, over the last minute: others at work make times unreliable."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

"""Result files of benchmarks: where and of what they were made, reading, writing, tables made of them."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import kasuri
from benchmarks import peers
from kasuri.storage import write_atomically

ROOT = Path(__file__).parent.parent
OUTPUTS = (":!results", ":!docs/benchmarks.md")  # a run writes these itself
RENAMED = {  # what version 0.2 called otherwise
    "weft": "kasuri",
    "vae Diagonal(": "vae DiagonalLatent(",
    "vae FullNormal(": "vae FullLatent(",
}
Result = dict[str, Any]


def about(only_kasuri: bool = True) -> Result:
    """Versions, commit, processor, load and date: to be asked before the work."""
    changes = _git("status", "--porcelain", "--", ".", *OUTPUTS)
    return {
        "versions": {
            "kasuri": kasuri.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **({} if only_kasuri else peers.versions()),
        },
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": "unknown" if changes is None else bool(changes),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        # processes wanting to run, over the last minute: others at work make times unreliable
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def write(path: Path, result: Result) -> None:
    """The whole file or none of it: a run that is interrupted leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def stored(path: Path) -> Result:
    """A result file, with the present names."""
    text = path.read_text()
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    result: Result = json.loads(text)
    result.setdefault("cpu", result.get("processor"))  # as some files of 0.2 call it
    return result


def table(header: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """A Markdown table; all columns but the first `words` hold numbers and are set right."""
    rule = ["---" if index < words else "---:" for index in range(len(header))]
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (header, rule, *rows)]
    return "\n".join(lines) + "\n"


def threads_label(threads: int) -> str:
    """1 thread, 2 threads."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def versions_label(result: Result) -> str:
    """Names and versions of everything that was used."""
    return ", ".join(f"{name} {version}" for name, version in result["versions"].items())

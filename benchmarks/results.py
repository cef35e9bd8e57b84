"""Result files of benchmarks: where and of what they were made, reading and writing."""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import peers
from experiments.results import origin
from kasuri.storage import write_atomically

ROOT = Path(__file__).parent.parent
RENAMED = {  # what version 0.2 called otherwise
    "weft": "kasuri",
    "vae Diagonal(": "vae DiagonalLatent(",
    "vae FullNormal(": "vae FullLatent(",
}
Result = dict[str, Any]


def about() -> Result:
    """Versions, commit, processor, load and date: to be asked before the work."""
    made = origin()
    return {
        "versions": made["versions"] | peers.versions(),
        "commit": made["commit"] or "unknown",
        "dirty": "unknown" if made["dirty"] is None else made["dirty"],
        "cpu": made["machine"]["processor"],
        "cores": made["machine"]["cores"],
        # processes wanting to run, over the last minute: others at work make times unreliable
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def measured(settings: Result, work: Callable[[], Result]) -> Result:
    """What some work measures, with its settings, what it was made of, and how long it took."""
    begin, known = time.perf_counter(), about()
    found = work()
    seconds = round(time.perf_counter() - begin, 1)
    return {"settings": settings, **known, **found, "wall_seconds": seconds}


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


def threads_label(threads: int) -> str:
    """1 thread, 2 threads."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def versions_label(result: Result) -> str:
    return ", ".join(f"{name} {version}" for name, version in result["versions"].items())

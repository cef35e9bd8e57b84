"""Files that are either the old ones or the new ones, never halves."""

import contextlib
import glob
import os
import secrets
import time
from pathlib import Path

STALE = 3600.0  # seconds after which a temporary file belongs to nobody


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, flush to disk, then rename; sweep up after killed writers."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > STALE:
                leftover.unlink()
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

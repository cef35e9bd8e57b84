"""Files of data sets: in the user's folder, in the cache, or downloaded once; checked every time.

`KASURI_DATA` names a folder of the user, looked at first and never written to. `KASURI_CACHE` moves
the cache, into which downloads go. registry.json has where files are published, and checksums.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pooch

from kasuri.storage import write_atomically

TIMEOUT = (5.0, 30.0)  # seconds to connect, and between two pieces


class DataError(ValueError):
    """A data file that is missing, damaged or not the expected one, and what to do about it."""


_STORED = json.loads(Path(__file__).with_name("registry.json").read_text(encoding="utf-8"))
FILES: dict[str, tuple[str, str | None]] = _STORED["files"]  # path: where from, and checksum
DIGESTS: dict[str, str] = _STORED["digests"]  # of the arrays of prepared copies, by path


def user_folder() -> Path | None:
    """The folder named by KASURI_DATA, if it is set."""
    named = os.environ.get("KASURI_DATA")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():  # a slip of the pen would otherwise download everything again
        raise DataError(f"KASURI_DATA={named} is not a folder: correct it, or unset it")
    return folder


def cache_folder() -> Path:
    named = os.environ.get("KASURI_CACHE")
    return Path(named).expanduser() if named else Path(pooch.os_cache("kasuri"))


def find(*paths: str) -> list[Path] | None:
    """Files that are all in the user's folder, or all in the cache; not yet checked."""
    for folder in (user_folder(), cache_folder()):
        if folder is not None and all((folder / path).is_file() for path in paths):
            return [folder / path for path in paths]
    return None


def obtain(path: str) -> Path:
    """The file of the registry on this machine, with the right checksum; downloaded if it is nowhere.

    A file that is there but wrong is an error, never a reason to download another one.
    """
    url, checksum = FILES[path]
    present = find(path)
    if present is None:
        return _download(path, url, checksum)
    if checksum is not None:
        kind, _, expected = checksum.partition(":")
        actual = pooch.file_hash(str(present[0]), alg=kind)
        if actual != expected:
            raise damaged(present[0], f"its {kind} is {actual}, expected {expected}", url)
    return present[0]


def damaged(path: Path, reason: str, url: str) -> DataError:
    """The error for a file that exists but cannot be used."""
    return DataError(
        f"{path} is damaged or not the expected file: {reason}. Delete it and load again to "
        f"download it, or put an undamaged copy in its place (origin: {url})"
    )


def _download(path: str, url: str, checksum: str | None) -> Path:
    target = cache_folder() / path
    downloader = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=TIMEOUT)
    try:
        pooch.retrieve(url, checksum, target.name, target.parent, downloader=downloader)
    except (OSError, ValueError) as error:  # requests' errors are OSError, a wrong checksum Value
        named = user_folder()
        raise DataError(
            f"{path} is neither in {named or 'KASURI_DATA, which is not set,'} nor in the cache "
            f"({cache_folder()}), and its download from {url} failed: {error}. If you can "
            f"fetch that address by other means, save the file as {target}"
        ) from error
    return target


def prepared(
    path: str, names: Iterable[str], original: str, convert: Callable[[Path], Any]
) -> dict[str, Any]:
    """The arrays of an npz file, or those made from the original, which are then kept in the cache."""
    url, present = FILES[original][0], find(path)
    if present is not None:
        arrays = read_arrays(present[0], names, url)
        require_digest(arrays, DIGESTS[path], present[0], url)
        return arrays
    source = obtain(original)
    try:
        arrays = dict(convert(source))
    except DataError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise damaged(source, f"{path} cannot be made from it ({error})", url) from error
    require_digest(arrays, DIGESTS[path], source, url)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        content, target = io.BytesIO(), cache_folder() / path
        np.savez(content, **arrays)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content.getvalue())
    return arrays


def read_arrays(path: Path, names: Iterable[str], url: str) -> dict[str, Any]:
    """Arrays of an npz file, which is never unpickled; `require_digest` checks the numbers."""
    try:
        # opened here, since numpy leaves a file open that turns out to be no zip
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except Exception as error:  # a damaged zip can raise nearly anything
        raise damaged(path, f"{', '.join(names)} cannot be read from it ({error})", url) from error


def require_digest(arrays: Mapping[str, Any], sha256: str, path: Path, url: str) -> None:
    """Refuse arrays, read from `path`, that are not the expected ones.

    The numbers are checked, not the file: npz files with equal numbers differ in time stamps.
    """
    actual = digest(arrays)
    if actual != sha256:
        raise damaged(path, f"sha256 of its arrays is {actual}, expected {sha256}", url)


def digest(arrays: Mapping[str, Any]) -> str:
    """sha256 of NumPy arrays with their names, types and shapes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()

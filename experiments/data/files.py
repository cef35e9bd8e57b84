"""Files of data sets: in the user's folder, in the cache, or downloaded once; checked every time.

`KASURI_DATA` names a folder of the user, looked at first and never written to. `KASURI_CACHE` moves
the cache, into which downloads go.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT = (5.0, 30.0)  # seconds to connect, and between two pieces: offline must be told quickly
_PACKAGES = {"sklearn.datasets": "scikit-learn", "PIL.Image": "pillow"}  # import name -> pip name


class DataError(ValueError):
    """A data file that is missing, damaged or not the expected one, and what to do about it."""


@dataclass(frozen=True)
class Original:
    """A file as its publishers offer it.

    Attributes:
        set: name of the data set that needs it.
        path: below the user's folder or the cache, such as "mnist/t10k-labels-idx1-ubyte.gz".
        url: where it is published.
        checksum: "sha256:..." or "md5:..."; None if only the numbers inside can be checked.
        instead: other files that would do, for the message when it is missing.
    """

    set: str
    path: str
    url: str
    checksum: str | None
    instead: str = ""


def need(module: str, purpose: str) -> Any:
    """A module that `kasuri` itself does not depend on.

    Examples:
        >>> need("no_such_module", "datasets.load('x')")
        Traceback (most recent call last):
        ImportError: datasets.load('x') needs no_such_module: pip install kasuri[data]
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _PACKAGES.get(module, module)
        raise ImportError(f"{purpose} needs {package}: pip install kasuri[data]") from error


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
    """The folder for downloads: named by KASURI_CACHE, else where this system keeps caches."""
    named = os.environ.get("KASURI_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(need("pooch", "the download cache of datasets").os_cache("kasuri"))


def find(path: str) -> Path | None:
    """A file of the user's folder or else of the cache, if it exists there; not yet checked."""
    return next((f / path for f in _folders() if (f / path).is_file()), None)


def find_together(paths: Sequence[str]) -> list[Path] | None:
    """Several files that are all in the user's folder, or all in the cache."""
    for folder in _folders():
        if all((folder / path).is_file() for path in paths):
            return [folder / path for path in paths]
    return None


def _folders() -> Iterator[Path]:
    named = user_folder()
    if named is not None:
        yield named
    yield cache_folder()  # asked for last: it may need pooch, which a complete folder does not


def obtain(original: Original) -> Path:
    """The file on this machine, with the right checksum; downloaded if it is nowhere.

    A file that is there but wrong is an error, never a reason to download another one.
    """
    path = find(original.path)
    if path is None:
        return _download(original)
    if original.checksum is not None:
        check(path, original.checksum, original.url)
    return path


def check(path: Path, checksum: str, url: str) -> None:
    """Refuse a file whose checksum ("sha256:..." or "md5:...") is another."""
    kind, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        new = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    if new.hexdigest() != expected:
        raise damaged(path, f"its {kind} is {new.hexdigest()}, expected {expected}", url)


def damaged(path: Path, reason: str, url: str) -> DataError:
    """The error for a file that exists but cannot be used."""
    return DataError(
        f"{path} is damaged or not the expected file: {reason}. Delete it and load again to "
        f"download it, or put an undamaged copy in its place (origin: {url})"
    )


def _download(original: Original) -> Path:
    pooch = need("pooch", f"datasets.load({original.set!r})")
    keeper = pooch.create(
        path=cache_folder(),
        base_url="",
        registry={original.path: original.checksum},
        urls={original.path: original.url},
    )
    bar = _Progress(original.path) if sys.stderr.isatty() else False
    get = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=TIMEOUT)
    try:
        return Path(keeper.fetch(original.path, downloader=get))
    except (OSError, ValueError) as error:  # requests' errors are OSError, a wrong checksum Value
        raise DataError(_missing(original, error)) from error


def _missing(original: Original, error: Exception) -> str:
    named = user_folder()
    user = f"{named / original.path} (KASURI_DATA)" if named else "KASURI_DATA (not set)"
    target = cache_folder() / original.path
    instead = f", nor {original.instead}" if original.instead else ""
    return (
        f"{original.path}, which data set {original.set!r} needs, is missing: it is neither {user} "
        f"nor {target} (cache){instead}. Its download from {original.url} failed: {error}. "
        f"If you can fetch that address by other means, save the file as {target}"
    )


class _Progress:
    """One line on the terminal that counts a download; the methods are those pooch calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = 0  # set by pooch; 0 if the server does not say
        self.done = 0

    def update(self, amount: int) -> None:
        self.done = min(self.done + amount, self.total) if self.total else self.done + amount
        share = f" of {self.total / 1e6:.1f} ({self.done / self.total:.0%})" if self.total else ""
        sys.stderr.write(f"\r{self.name}: {self.done / 1e6:.1f}{share} MB\x1b[K")
        sys.stderr.flush()

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        sys.stderr.write("\n")


def read_arrays(path: Path, names: Sequence[str], sha256: str, url: str) -> dict[str, Any]:
    """Arrays of an npz file, which is never unpickled, with the right digest.

    The numbers are checked, not the file: npz files with equal numbers differ in time stamps.
    """
    arrays = unchecked_arrays(path, names, f"joint sha256 {sha256}", url)
    require_digest(arrays, sha256, path, url)
    return arrays


def unchecked_arrays(path: Path, names: Sequence[str], sums: str, url: str) -> dict[str, Any]:
    """Arrays of an npz file, which is never unpickled; `sums` says what will be checked of them."""
    np = need("numpy", f"reading {path.name}")
    try:
        # opened here, since numpy leaves a file open that turns out to be no zip
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except Exception as error:  # a damaged zip can raise nearly anything
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        reason = (
            f"it cannot be read ({error}), its sha256 is {found}; expected were the arrays "
            f"{', '.join(names)} with {sums}"
        )
        raise damaged(path, reason, url) from error


def require_digest(arrays: Mapping[str, Any], sha256: str, path: Path, url: str) -> None:
    """Refuse arrays, read from `path`, that are not the expected ones."""
    found = digest(arrays)
    if found != sha256:
        names = ", ".join(arrays)
        raise damaged(path, f"sha256 of its arrays {names} is {found}, expected {sha256}", url)


def digest(arrays: Mapping[str, Any]) -> str:
    """sha256 of NumPy arrays with their names, types and shapes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        total.update(array.tobytes())
    return total.hexdigest()

"""The data sets by name: what there is, where it lies, loading and fetching it."""

import difflib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.data import binarised, bundled, cifar, idx, reviews, tables
from experiments.data.dataset import Dataset
from experiments.data.files import find


@dataclass(frozen=True)
class Entry:
    """How to load a set, how to read it unscaled, and which files hold it (one group suffices)."""

    load: Callable[..., Dataset]
    read: Callable[[], object] | None = None
    groups: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Status:
    """Whether a data set is on this machine.

    Attributes:
        name: as `load` takes it.
        present: all its files are there; `load` will not download, though it may find one damaged.
        where: the folder, or the package that brings it along; empty if it is not present.
        size: bytes on disk; 0 for a set that comes with a package.
    """

    name: str
    present: bool
    where: str
    size: int


def _idx_files(name: str) -> tuple[tuple[str, ...], ...]:
    return (tuple(f"{name}/{file}" for file in idx.FILES),)


SETS: dict[str, Entry] = {
    "digits": Entry(bundled.digits),
    "diabetes": Entry(bundled.diabetes),
    "breast-cancer": Entry(bundled.breast_cancer),
    "wine": Entry(bundled.wine),
    **{
        f"uci/{name}": Entry(
            partial(tables.uci, name),
            partial(tables.read_uci, name),
            ((tables.prepared(name),), (tables.ARCHIVE,)),
        )
        for name in tables.TABLES
    },
    "mnist": Entry(idx.mnist, idx.read_mnist, _idx_files("mnist")),
    "static-mnist": Entry(
        binarised.static_mnist,
        binarised.read_static_mnist,
        (binarised.ORIGINALS, *_idx_files("mnist")),
    ),
    "fashion-mnist": Entry(idx.fashion_mnist, idx.read_fashion_mnist, _idx_files("fashion-mnist")),
    "cifar-10": Entry(cifar.cifar10, cifar.read_cifar10, (cifar.PREPARED, (cifar.CIFAR10.path,))),
    "cifar-100": Entry(cifar.cifar100, cifar.read_cifar100, ((cifar.CIFAR100.path,),)),
    "imdb": Entry(
        reviews.imdb,
        reviews.read_imdb,
        ((reviews.PREPARED,), (reviews.REVIEWS.path, reviews.WORDS.path)),
    ),
}


def names() -> tuple[str, ...]:
    """The names that `load` takes.

    Examples:
        >>> names()[:5]
        ('digits', 'diabetes', 'breast-cancer', 'wine', 'uci/boston')
    """
    return tuple(SETS)


def load(name: str, **options: Any) -> Dataset:
    """The data set of a name, found on this machine or downloaded once.

    Files are looked for in the folder that the environment variable KASURI_DATA names, then in the
    cache (KASURI_CACHE moves it); what is in neither is downloaded into the cache. Every file is
    checked against its checksum at every load.

    Args:
        name: one of `names()`.
        options: those of the set's own function, such as `scale="unit"` of `mnist` or `split=3`
            of `uci`.

    Raises:
        ValueError: there is no such set.
        DataError: a file is missing and cannot be downloaded, or is damaged.

    Examples:
        >>> load("digits").test
        Split(x: float32 (500, 64), y: int64 (500,))
        >>> load("digit")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: there is no data set 'digit': did you mean 'digits'? There are: digits, ...
    """
    return _entry(name).load(**options)


def fetch(name: str) -> Status:
    """Bring a data set onto this machine, or check the copy that is here; then its status."""
    entry = _entry(name)
    if entry.read is None:
        entry.load()
    else:
        entry.read()
    return _status(name, entry)


def status() -> list[Status]:
    """Which data sets are on this machine, where, and how large they are.

    Nothing is downloaded, and no checksum is computed.

    Examples:
        >>> status()[0]
        Status(name='digits', present=True, where='scikit-learn', size=0)
    """
    return [_status(name, entry) for name, entry in SETS.items()]


def _status(name: str, entry: Entry) -> Status:
    if not entry.groups:
        present = importlib.util.find_spec("sklearn") is not None
        return Status(name, present, "scikit-learn" if present else "", 0)
    for group in entry.groups:
        paths = [path for path in map(find, group) if path is not None]
        if len(paths) == len(group):
            size = sum(path.stat().st_size for path in paths)
            return Status(name, True, str(paths[0].parent), size)
    return Status(name, False, "", 0)


def _entry(name: str) -> Entry:
    if name not in SETS:
        close = difflib.get_close_matches(name, SETS, n=1)
        guess = f": did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"there is no data set {name!r}{guess} There are: {', '.join(SETS)}")
    return SETS[name]

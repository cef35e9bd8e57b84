"""The data sets by name: what there is, where it lies, loading and fetching it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.data import pictures, static_mnist, tables, text
from experiments.data.dataset import Dataset
from experiments.data.files import find
from kasuri.checks import near_misses


@dataclass(frozen=True)
class Entry:
    """How to load a set, and which files hold it; one group of files suffices."""

    load: Callable[..., Dataset]
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


def _idx(name: str) -> tuple[str, ...]:
    return tuple(f"{name}/{file}" for file in pictures.IDX_FILES)


def _cifar(source: pictures.Cifar) -> tuple[tuple[str, ...], ...]:
    return source.prepared_files, (source.archive.path,)


SETS: dict[str, Entry] = {
    "digits": Entry(tables.digits),
    "diabetes": Entry(tables.diabetes),
    "breast-cancer": Entry(tables.breast_cancer),
    "wine": Entry(tables.wine),
    **{
        f"uci/{name}": Entry(
            partial(tables.uci, name), ((tables.prepared_uci(name),), (tables.ARCHIVE,))
        )
        for name in tables.FOLDERS
    },
    "mnist": Entry(pictures.mnist, (_idx("mnist"),)),
    "static-mnist": Entry(static_mnist.static_mnist, (static_mnist.ORIGINALS, _idx("mnist"))),
    "fashion-mnist": Entry(pictures.fashion_mnist, (_idx("fashion-mnist"),)),
    "cifar-10": Entry(pictures.cifar10, _cifar(pictures.CIFAR10)),
    "cifar-100": Entry(pictures.cifar100, _cifar(pictures.CIFAR100)),
    "imdb": Entry(text.imdb, ((text.PREPARED,), (text.REVIEWS.path, text.WORDS.path))),
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
        options: those of the set's own function, such as `scale="unit"` of `pictures.mnist` or
            `split=3` of `tables.uci`.

    Raises:
        ValueError: there is no such set.
        DataError: a file is missing and cannot be downloaded, or is damaged.

    Examples:
        >>> load("digits").test
        Split(x: float32 (500, 64), y: int64 (500,))
        >>> load("digit")
        Traceback (most recent call last):
        ValueError: there is no data set 'digit': did you mean 'digits'?
    """
    return _entry(name).load(**options)


def fetch(name: str) -> Status:
    """Bring a data set onto this machine, or check the copy that is here; then its status."""
    entry = _entry(name)
    entry.load()
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
        return Status(name, True, "scikit-learn", 0)
    for group in entry.groups:
        paths = find(*group)
        if paths is not None:
            return Status(name, True, str(paths[0].parent), sum(p.stat().st_size for p in paths))
    return Status(name, False, "", 0)


def _entry(name: str) -> Entry:
    if name not in SETS:
        raise ValueError(f"there is no data set {name!r}: {near_misses(name, SETS)}")
    return SETS[name]

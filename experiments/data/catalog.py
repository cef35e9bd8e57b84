"""The data sets by name: what there is, where it lies, and loading it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.data import pictures, tables, text
from experiments.data.dataset import Dataset
from experiments.data.files import find
from experiments.data.pictures import picture_set
from experiments.data.static_mnist import ORIGINALS, read_static_mnist
from kasuri.checks import near_misses

_IDX = {name: tuple(f"{name}/{file}" for file in pictures.IDX_FILES) for name in pictures.CLASSES}
# how to load a set, and which files hold it: one group suffices
SETS: dict[str, tuple[Callable[..., Dataset], list[tuple[str, ...]]]] = {
    **{name: (partial(tables.bundled, name), []) for name in tables.BUNDLED},
    **{
        f"uci/{name}": (partial(tables.uci, name), [(f"uci/{file}.npz",), (tables.ARCHIVE,)])
        for name, file in tables.FOLDERS.items()
    },
    **{
        name: (partial(picture_set, name, pictures.read_mnist, scale="signed", flat=True), [files])
        for name, files in _IDX.items()
    },
    "static-mnist": (
        partial(picture_set, "static-mnist", read_static_mnist, scale="unit", flat=True),
        [ORIGINALS, _IDX["mnist"]],
    ),
    **{
        name: (
            partial(picture_set, name, pictures.read_cifar, scale="unit", flat=False),
            [pictures.strips(name), (source.archive,)],
        )
        for name, source in pictures.CIFAR.items()
    },
    "imdb": (text.imdb, [(text.PREPARED,), (text.REVIEWS, text.WORDS)]),
}


def load(name: str, **options: Any) -> Dataset:
    """The data set of a name, found on this machine or downloaded once.

    Args:
        name: of a data set, such as "mnist"; `status` lists all.
        options: those of the set's own function, such as `scale="unit"` of `pictures.picture_set` or
            `split=3` of `tables.uci`.

    Examples:
        >>> load("digits").test
        Split(x: float32 (500, 64), y: int64 (500,))
        >>> load("digit")
        Traceback (most recent call last):
        ValueError: there is no data set 'digit': did you mean 'digits'?
    """
    if name not in SETS:
        raise ValueError(f"there is no data set {name!r}: {near_misses(name, SETS)}")
    return SETS[name][0](**options)


def status() -> dict[str, str]:
    """Where each data set is on this machine: a folder, a package, or nowhere (""). Checks no file.

    Examples:
        >>> status()["digits"]
        'scikit-learn'
    """
    places = {}
    for name, (_, groups) in SETS.items():
        paths = next(filter(None, (find(*group) for group in groups)), [])
        places[name] = str(paths[0].parent) if paths else "" if groups else "scikit-learn"
    return places

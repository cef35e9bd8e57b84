"""Lists of layers under one key of `figures`, over all seeds of a variant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from experiments.report.results import Result, Row

T = TypeVar("T")


def told(results: Sequence[Result], key: str) -> list[tuple[Result, Any]]:
    """The seeds that store something under a key; nothing, {} and [] are nothing.

    Examples:
        >>> runs = [Result("e", "v", s, figures=f) for s, f in enumerate([{"a": [1]}, {"a": []}, {}])]
        >>> [(run.seed, value) for run, value in told(runs, "a")]
        [(0, [1])]
    """
    found = ((result, result.figures.get(key)) for result in results)
    return [(result, value) for result, value in found if value not in (None, [], {})]


def by_layer(
    row: Row, key: str, parse: Callable[[Mapping[str, Any]], T | None]
) -> tuple[dict[str, list[tuple[Result, T]]], list[str]]:
    """What the seeds of a variant store about each layer, in the order of the files.

    Args:
        row: the variant.
        key: in `figures` of its results, a list of objects with a name under "layer".
        parse: from such an object to something usable, or None if it is not.

    Returns:
        The usable entries with the run that each is from, and what no seed has in a usable form,
        named for people.
    """
    usable: dict[str, list[tuple[Result, T]]] = {}
    broken: dict[str, None] = {}
    for result, name, entry in _entries(row, key):
        found = parse(entry)
        if found is None:
            broken[name] = None
        else:
            usable.setdefault(name, []).append((result, found))
    lost = [f"{row.name} ({name})" if name else row.name for name in broken if name not in usable]
    return usable, lost


def _entries(row: Row, key: str) -> Iterator[tuple[Result, str, Mapping[str, Any]]]:
    for result, value in told(row.results, key):
        if not isinstance(value, list):
            yield result, "", {}
            continue
        for index, entry in enumerate(value):
            known = entry if isinstance(entry, dict) else {}
            name = known.get("layer")
            yield result, name if isinstance(name, str) and name else f"layer {index}", known

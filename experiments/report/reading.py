"""Result files: what one holds, and reading many of them."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.report.json_numbers import number

FORMAT = 1
Published = Mapping[str, tuple[float, float | None]]
_KINDS: dict[str, type] = {"experiment": str, "variant": str, "seed": int, "history": list}
_KINDS |= dict.fromkeys(("settings", "versions", "machine", "seconds"), dict)
_KINDS |= dict.fromkeys(("metrics", "validation", "published", "figures"), dict)


class ResultError(ValueError):
    """Data that is not a result, with the reason."""


@dataclass(frozen=True)
class Result:
    """One run of one variant with one seed, as its JSON file describes it.

    Sections that the file lacks are empty. Scores are kept if they are numbers; `published` holds
    (value, standard error or None).

    Examples:
        >>> run = Result.from_dict({"format": 1, "experiment": "a/b", "variant": "plain",
        ...                         "seed": 0, "metrics": {"nll": 0.5, "note": "x"}})
        >>> run.variant, run.metrics, run.history
        ('plain', {'nll': 0.5}, ())
    """

    experiment: str
    variant: str
    seed: int
    smoke: bool = False
    title: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    dirty: bool = False
    machine: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    parameters: float | None = None
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    published: Published = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Result":
        """The result that parsed JSON describes.

        Raises:
            ResultError: another format, no experiment, variant or seed, or a section of a wrong type.
        """
        if data.get("format") != FORMAT or isinstance(data["format"], bool):
            found = json.dumps(data.get("format"))[:40]
            raise ResultError(f"format {found}: this version of kasuri reads format {FORMAT}")
        for key, kind in _KINDS.items():
            value = data.get(key)
            optional = value is None and kind in (dict, list)
            if not optional and (type(value) is not kind or value == ""):
                raise ResultError(f"{key!r} must be of type {kind.__name__}, got {value!r:.40}")
        fields: dict[str, Any] = {name: data.get(name) for name in cls.__dataclass_fields__}
        fields |= {key: fields[key] or {} for key, kind in _KINDS.items() if kind is dict}
        fields |= {key: _scores(fields[key]) for key in ("seconds", "metrics", "validation")}
        fields |= {key: bool(fields[key]) for key in ("smoke", "dirty")}
        for key in ("title", "commit", "started"):
            fields[key] = fields[key] if isinstance(fields[key], str) else ""
        fields["parameters"] = number(fields["parameters"])
        fields["history"] = tuple(e for e in fields["history"] or () if isinstance(e, dict))
        fields["published"] = _published(fields["published"])
        return cls(**fields)


@dataclass(frozen=True)
class Problem:
    """A file that could not be used, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def read(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[Result], list[Problem]]:
    """The results in files and folders, and the files that could not be used.

    Args:
        paths: files, and folders that are searched for *.json; JSON files in a folder that have no
            "experiment" are something else and passed over in silence.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    results: dict[tuple[object, ...], tuple[Path, Result]] = {}
    problems: list[Problem] = []
    for path, named in _files(map(Path, given)):
        try:
            result = _read_file(path, named)
        except ResultError as error:
            problems.append(Problem(str(path), str(error)))
            continue
        if result is not None:
            identity = (result.experiment, result.variant, result.seed, result.smoke)
            first, _ = results.setdefault(identity, (path, result))
            if first != path:
                reason = f"the same variant and seed as {first}: left out"
                problems.append(Problem(str(path), reason))
    return [result for _, result in results.values()], problems


def _files(paths: Iterable[Path]) -> Iterable[tuple[Path, bool]]:
    """Files to look at, each once; True for those that were named by the caller."""
    files: dict[Path, tuple[Path, bool]] = {}  # by where they really are
    for path in paths:
        inside = path.rglob("*.json") if path.is_dir() else [path]
        for file in sorted(inside, key=_natural):
            if not file.is_dir():
                files.setdefault(file.resolve(), (file, not path.is_dir()))
    return files.values()


def _natural(path: Path) -> list[tuple[float, str]]:
    """Sorting key by which 2.json comes before 10.json, and tau-0.005 before tau-0.01."""
    parts = re.split(r"(\d{1,9}(?:\.\d{1,9})?)", str(path), flags=re.ASCII)
    return [(float(p), "") if place % 2 else (-1.0, p) for place, p in enumerate(parts)]


def _read_file(path: Path, named: bool) -> Result | None:
    """The result in a file; None if the file holds something else and nobody asked for it."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ResultError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ResultError(f"not JSON: {error}") from None
    if isinstance(data, dict) and "experiment" in data:
        return Result.from_dict(data)
    if named:
        raise ResultError("not a result: it has no 'experiment'")
    return None


def _scores(section: Mapping[str, Any]) -> dict[str, float]:
    return {key: score for key in section if (score := number(section[key])) is not None}


def _published(section: Mapping[str, Any]) -> dict[str, tuple[float, float | None]]:
    """Values with their standard errors; a number alone has none."""
    found = {}
    for key, entry in section.items():
        value, error, *_ = [*(entry if isinstance(entry, list) else [entry]), None, None]
        if (known := number(value)) is not None:
            found[key] = known, number(error)
    return found

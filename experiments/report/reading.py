"""Result files: what one holds, and reading many of them."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.report.values import finite, number, records

FORMAT = 1
_SECTIONS: tuple[tuple[str, type], ...] = (
    ("settings", dict),
    ("versions", dict),
    ("machine", dict),
    ("seconds", dict),
    ("history", list),
    ("metrics", dict),
    ("validation", dict),
    ("published", dict),
    ("figures", dict),
)


class ResultError(ValueError):
    """Data that is not a result, with the reason."""


@dataclass(frozen=True)
class Result:
    """One run of one variant with one seed, as its JSON file tells it.

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
    published: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "") -> "Result":
        """The result that parsed JSON describes.

        Args:
            data: the object in the file.
            source: name of the file, for people.

        Raises:
            ResultError: another format, no experiment, variant or seed, or a section of a wrong type.
        """
        _check(data)
        return cls(
            experiment=data["experiment"],
            variant=data["variant"],
            seed=data["seed"],
            smoke=bool(data.get("smoke")),
            title=_text(data.get("title")),
            settings=data.get("settings") or {},
            versions=data.get("versions") or {},
            commit=_text(data.get("commit")),
            dirty=bool(data.get("dirty")),
            machine=data.get("machine") or {},
            started=_text(data.get("started")),
            seconds=_scores(data.get("seconds")),
            parameters=number(data.get("parameters")),
            history=tuple(records(data.get("history"))),
            metrics=_scores(data.get("metrics")),
            validation=_scores(data.get("validation")),
            published=_published(data.get("published")),
            figures=data.get("figures") or {},
            source=source,
        )


@dataclass(frozen=True)
class Problem:
    """A file that could not be used, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        """One line for a terminal."""
        return f"{self.path}: {self.reason}"


def read(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[Result], list[Problem]]:
    """The results in files and folders, and the files that could not be used.

    Args:
        paths: files, and folders that are searched for *.json; JSON files in a folder that have no
            "experiment" are something else and passed over in silence.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "0.json").write_text("{")
        ...     results, problems = read(folder)
        >>> results, problems[0].reason
        ([], 'not JSON: Expecting property name enclosed in double quotes, line 1')
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    results: list[Result] = []
    problems: list[Problem] = []
    seen: dict[tuple[object, ...], Path] = {}
    for path, asked_for in _files(map(Path, given)).items():
        try:
            result = _read_file(path, asked_for)
        except ResultError as error:
            problems.append(Problem(str(path), str(error)))
            continue
        if result is None:
            continue
        identity = (result.experiment, result.variant, result.seed, result.smoke)
        first = seen.setdefault(identity, path)
        if first == path:
            results.append(result)
        else:
            problems.append(Problem(str(path), f"the same variant and seed as {first}: left out"))
    return results, problems


def _files(paths: Iterable[Path]) -> dict[Path, bool]:
    """Files to look at, each once; True for those that were named by the caller."""
    found: dict[Path, bool] = {}
    known: set[Path] = set()
    for path in paths:
        inside = path.rglob("*.json") if path.is_dir() else [path]
        for file in sorted(inside, key=_natural):
            if file.resolve() not in known and not file.is_dir():
                known.add(file.resolve())
                found[file] = not path.is_dir()
    return found


def _natural(path: Path) -> list[tuple[float, str]]:
    """Sorting key by which 2.json comes before 10.json, and tau-0.005 before tau-0.01."""
    parts = re.split(r"(\d{1,9}(?:\.\d{1,9})?)", str(path), flags=re.ASCII)
    return [(float(p), "") if place % 2 else (-1.0, p) for place, p in enumerate(parts)]


def _read_file(path: Path, asked_for: bool) -> Result | None:
    """The result in a file; None if the file holds something else and nobody asked for it."""
    try:
        data = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        raise ResultError(f"not JSON: {error.msg}, line {error.lineno}") from None
    except (ValueError, RecursionError) as error:
        raise ResultError(f"not JSON: {error}") from None
    except OSError as error:
        raise ResultError(f"cannot be read: {error.strerror or error}") from None
    if not isinstance(data, dict) or "experiment" not in data:
        if asked_for:
            raise ResultError("not a result: it has no 'experiment'")
        return None
    return Result.from_dict(data, str(path))


def _check(data: Mapping[str, Any]) -> None:
    if data.get("format") != FORMAT or isinstance(data["format"], bool):
        told = json.dumps(data.get("format"))[:40]
        raise ResultError(f"format {told}: this version of kasuri reads format {FORMAT}")
    for key in ("experiment", "variant"):
        if not isinstance(data.get(key), str) or not data[key]:
            raise ResultError(f"no {key!r}: a result has a name there")
    if isinstance(data.get("seed"), bool) or not isinstance(data.get("seed"), int):
        raise ResultError("no 'seed': a result has an integer there")
    for key, kind in _SECTIONS:
        if data.get(key) is not None and not isinstance(data[key], kind):
            wanted = "an object" if kind is dict else "a list"
            raise ResultError(f"{key!r} should be {wanted}, not {json.dumps(data[key])[:40]}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _scores(section: Mapping[str, Any] | None) -> dict[str, float]:
    found = {key: number(value) for key, value in (section or {}).items()}
    return {key: value for key, value in found.items() if value is not None}


def _published(section: Mapping[str, Any] | None) -> dict[str, tuple[float, float | None]]:
    found: dict[str, tuple[float, float | None]] = {}
    for key, told in (section or {}).items():
        pair = told if isinstance(told, list) else [told]
        value = finite(pair[0]) if pair else None
        if value is not None:
            found[key] = value, finite(pair[1]) if len(pair) > 1 else None
    return found

"""Result files: what one holds, and reading many of them."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
Published = Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Result:
    """One run of one variant with one seed, as its JSON file describes it.

    What the file lacks is empty. `published` holds (value, standard error or None).

    Examples:
        >>> run = Result.from_dict({"format": 1, "experiment": "a/b", "variant": "plain",
        ...                         "seed": 0, "metrics": {"nll": 0.5}})
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
            ValueError: another format, or no experiment, variant or seed.
        """
        if data.get("format") != FORMAT:
            written = json.dumps(data.get("format"))[:40]
            raise ValueError(f"format {written}: this version of kasuri reads format {FORMAT}")
        known = {key: data[key] for key in cls.__dataclass_fields__ if data.get(key) is not None}
        for key in ("experiment", "variant", "seed"):
            if key not in known:
                raise ValueError(f"the file has no {key!r}")
        for key in ("metrics", "validation"):
            scores = known.get(key, {})
            known[key] = {name: value for name, value in scores.items() if value is not None}
        return cls(**known)


def read(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[Result], list[str]]:
    """The results in files and folders, and which files could not be used and why.

    Folders are searched for *.json. JSON files without "experiment" are passed over in silence.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    files: list[Path] = []
    for path in map(Path, given):
        files += sorted(path.rglob("*.json"), key=_natural) if path.is_dir() else [path]
    results: dict[tuple[object, ...], tuple[Path, Result]] = {}
    problems: list[str] = []
    for path in {file.resolve(): file for file in files}.values():
        try:
            data = json.loads(path.read_bytes())
            if not isinstance(data, dict) or "experiment" not in data:
                continue
            result = Result.from_dict(data)
        except (OSError, ValueError) as error:
            problems.append(f"{path}: cannot be read: {error}")
            continue
        identity = (result.experiment, result.variant, result.seed, result.smoke)
        first, _ = results.setdefault(identity, (path, result))
        if first != path:
            problems.append(f"{path}: the same variant and seed as {first}")
    return [result for _, result in results.values()], problems


def _natural(path: Path) -> list[tuple[float, str]]:
    """Sorting key by which 2.json comes before 10.json, and tau-0.005 before tau-0.01."""
    parts = re.split(r"(\d{1,9}(?:\.\d{1,9})?)", str(path), flags=re.ASCII)
    return [(float(p), "") if place % 2 else (-1.0, p) for place, p in enumerate(parts)]

"""What an experiment is: a frozen description that can run itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

Published = Mapping[str, Sequence[float | None]]
FIXED = {"fixed": True}  # metadata of a field that the command line cannot change
LABELS = ("name", "variant", "title", "published", "space")  # fields that are no settings


@dataclass(frozen=True)
class Where:
    """Circumstances of a run, which do not change its result.

    Args:
        folder: for checkpoints; None keeps nothing.
        show: progress bars; None if the program runs in a terminal.
        test: also score the test data; a sweep chooses on validation data and leaves them alone.
    """

    folder: Path | None = None
    show: bool | None = None
    test: bool = True

    def below(self, name: str) -> "Where":
        """The same with a folder inside this one."""
        return self if self.folder is None else replace(self, folder=self.folder / name)


@dataclass(frozen=True)
class Outcome:
    """What came out of a run, ready for JSON.

    Args:
        metrics: scores on the test data; empty if they were left alone.
        validation: scores on the validation data.
        history: one row per epoch.
        figures: data of the report's figures.
        parameters: number of trained numbers.
        seconds: wall time by phase.
    """

    metrics: dict[str, float]
    validation: dict[str, float]
    history: list[dict[str, float]]
    figures: dict[str, Any]
    parameters: int
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One variant of an experiment, described completely.

    Fields that hold text or numbers can be changed on the command line (`--epochs 3`); those marked
    FIXED are Python objects and cannot.

    Args:
        name: of the experiment, e.g. "quality/mnist".
        variant: of this row of its table, e.g. "k-tied-2".
        title: what the experiment asks, in a sentence.
        published: published values beside ours, metric -> (value, standard error or None).
        space: the values that a sweep tries, field -> values.
    """

    name: str
    variant: str
    title: str
    published: Published | None = field(default=None, metadata=FIXED)
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict, metadata=FIXED)

    @abstractmethod
    def run(self, seed: int, where: Where) -> Outcome:
        """Data, training, evaluation."""

    @abstractmethod
    def smoke(self) -> "Experiment":
        """The same in seconds: few data, few epochs, few draws."""

    def settings(self) -> dict[str, Any]:
        """Every field as text or number, for the result file."""
        names = [setting.name for setting in fields(self) if setting.name not in LABELS]
        return {name: _plain(getattr(self, name)) for name in names}

    def made(self, stored: Mapping[str, Any]) -> bool:
        """Whether a result file with these settings is of this experiment.

        A setting that the file does not know came later, and had its default value then. One that
        is not known any more must have been off.
        """
        now = self.settings()
        defaults = {setting.name: _plain(setting.default) for setting in fields(self)}
        return all(
            stored.get(key, defaults.get(key)) == value for key, value in now.items()
        ) and all(key in now or not value for key, value in stored.items())


def _plain(value: Any) -> Any:
    """JSON as it is; a function by its name, anything else by its repr."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.__name__ if callable(value) and isinstance(value, type(_plain)) else repr(value)

"""What an experiment is: a frozen description that can run itself."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from tyro.conf import Fixed

Published = Mapping[str, Sequence[float | None]]
E = TypeVar("E", bound="Experiment")


@dataclass(frozen=True)
class Where:
    """Circumstances of a run, which do not change its result."""

    folder: Path | None = None  # for checkpoints; None keeps nothing
    show: bool | None = None  # progress bars; None if the program runs in a terminal
    test: bool = True  # also score the test data; a sweep leaves them alone

    def below(self, name: str) -> "Where":
        """The same with a folder inside this one."""
        return self if self.folder is None else replace(self, folder=self.folder / name)


@dataclass(frozen=True)
class Outcome:
    """What came out of a run, ready for JSON."""

    metrics: dict[str, float]  # scores on the test data; empty if they were left alone
    validation: dict[str, float]  # scores on the validation data
    history: list[dict[str, float]]  # one row per epoch
    figures: dict[str, Any]  # data of the report's figures
    parameters: int  # number of trained numbers
    seconds: float  # wall time of training


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One variant of an experiment, described completely.

    Fields that hold text or numbers can be changed on the command line (`--epochs 3`), and the comment beside
    a field is its help there. Those marked Fixed are Python objects and cannot be changed.
    """

    name: Fixed[str]  # of the experiment, e.g. "quality/mnist"
    variant: Fixed[str]  # of this row of its table, e.g. "k-tied-2"
    title: Fixed[str]  # what the experiment asks, in a sentence
    published: Fixed[Published | None] = None  # metric -> (value, standard error or None)
    space: Fixed[Mapping[str, Sequence[Any]]] = field(default_factory=dict)  # what a sweep tries

    @abstractmethod
    def run(self, seed: int, where: Where) -> Outcome:
        """Data, training, evaluation."""

    @abstractmethod
    def smoke(self) -> "Experiment":
        """The same in seconds: few data, few epochs, few draws."""

    def changed(self, **settings: Any) -> Self:
        """The same with other settings, which its variant's name then lists."""
        names = [
            f",{name}={value}".replace("/", "-")
            for name, value in settings.items()
            if getattr(self, name) != value
        ]
        return replace(self, **settings | {"variant": self.variant + "".join(names)})

    def bar(self, where: Where) -> bool | str | None:
        """`show` of `kasuri.fit`: a progress bar with the name of the run, if there is to be one."""
        return f"{self.name} {self.variant}" if where.show else where.show

    def settings(self) -> dict[str, Any]:
        """Every field but those above as text or number, for the result file."""
        labels = {label.name for label in fields(Experiment)}
        names = [setting.name for setting in fields(self) if setting.name not in labels]
        return {name: _plain(getattr(self, name)) for name in names}

    def made(self, stored: Mapping[str, Any]) -> bool:
        """Whether a result file with these settings is of this experiment.

        Settings that only one of the two knows do not count: they came or went with a version.
        """
        now = self.settings()
        return all(now.get(key, value) == value for key, value in stored.items())


def table(
    base: E,
    variants: Mapping[str, Mapping[str, Any]],
    published: Mapping[str, Published] | None = None,
) -> list[E]:
    """Rows of a table: for each variant the base with these changes, beside its published values."""
    values = published or {}
    return [
        replace(base, variant=name, published=values.get(name), **changes)
        for name, changes in variants.items()
    ]


def form(rows: Iterable[E], suffix: str, **changes: Any) -> list[E]:
    """The same rows in a shorter form; published values would mean nothing beside them."""
    changes = {"published": None} | changes
    return [replace(row, name=f"{row.name}-{suffix}", **changes) for row in rows]


def _plain(value: Any) -> Any:
    """JSON as it is; a function by its name, anything else by its repr."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.__name__ if isinstance(value, type(_plain)) else repr(value)

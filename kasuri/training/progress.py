"""What training shows in the terminal: a bar with the numbers that matter and the time left."""

import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any


class Progress(ABC):
    """Told about every step and epoch."""

    @abstractmethod
    def step(self, done: int, numbers: dict[str, float]) -> None:
        """So many steps are done; the latest numbers."""

    @abstractmethod
    def say(self, text: str) -> None:
        """One line above the bar."""

    def __enter__(self) -> "Progress":
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        return


class Quiet(Progress):
    """Shows nothing."""

    def step(self, done: int, numbers: dict[str, float]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class Bar(Progress):
    """A rich progress bar: description, share, numbers, time left."""

    def __init__(self, title: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        self.task = self.rich.add_task(title, total=total, numbers="")

    def step(self, done: int, numbers: dict[str, float]) -> None:
        """Move the bar; rich itself draws at most ten times a second."""
        self.rich.update(self.task, completed=done, numbers=_line(numbers))

    def say(self, text: str) -> None:
        """Print above the bar."""
        self.rich.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> "Bar":
        """Show the bar."""
        self.rich.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """Leave the finished bar where it is."""
        self.rich.stop()


def _line(numbers: dict[str, float]) -> str:
    def one(name: str, value: float) -> str:
        return f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.4g}"

    return "  ".join(one(name, value) for name, value in numbers.items())


def make(show: bool | None, title: str, total: int) -> Progress:
    """A bar if asked for, or if standard error is a terminal and rich is installed."""
    if show is False or (show is None and not sys.stderr.isatty()):
        return Quiet()
    try:
        return Bar(title, total)
    except ImportError:
        if show:
            raise ImportError(
                "show=True needs rich: pip install kasuri[train], or leave it out"
            ) from None
        return Quiet()

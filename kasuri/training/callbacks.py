"""Callbacks, which are called at every step and epoch of training, and the progress bar."""

import sys
from collections.abc import Callable
from typing import Any, Self

from torch import nn

from kasuri.objectives.elbo import Objective, Terms

Row = dict[str, float]


class Callback:
    """Called at every step and epoch of `kasuri.fit`; override what you need.

    Examples:
        >>> class Printer(Callback):
        ...     def on_epoch(self, objective: Objective, row: Row) -> None:
        ...         print(row["epoch"], row["loss"])
    """

    def on_step(self, objective: Objective, step: int, terms: Terms) -> None:
        """After the gradients of a step are there, before the optimiser uses them."""

    def on_epoch(self, objective: Objective, row: Row) -> None:
        """After an epoch; `row` is its line of the history."""

    def on_end(self) -> None:
        """After training, also when it failed."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: tensors, numbers, strings, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of an interrupted run."""


class Clip(Callback):
    """Bounds the norm of the gradient at every step.

    Args:
        norm: the largest norm of all gradients together.
    """

    def __init__(self, norm: float) -> None:
        if not norm > 0:
            raise ValueError(f"Clip: norm must be above 0, got {norm}")
        self.norm = norm

    def on_step(self, objective: Objective, step: int, terms: Terms) -> None:
        nn.utils.clip_grad_norm_(objective.parameters(), self.norm)


class Bar:
    """A progress bar on standard error: title, share, numbers, time left; `show` is that of `kasuri.fit`."""

    def __init__(self, show: bool | str | None, total: int) -> None:
        self.rich: Any = None
        if show is False or (show is None and not sys.stderr.isatty()):
            return
        try:
            from rich import progress
            from rich.console import Console
        except ImportError:
            if show is None:
                return
            raise ImportError("show=True needs rich: pip install kasuri[train]") from None
        self.rich = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[numbers]}"),
            progress.TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        title = show if isinstance(show, str) else "training"
        self.task = self.rich.add_task(title, total=total, numbers="")

    def step(self, done: int, numbers: Callable[[], Row]) -> None:
        """Move the bar; rich itself draws at most ten times a second."""
        if self.rich is not None:
            shown = [
                f"{name} {value:{'.1%' if name == 'accuracy' else '.4g'}}"
                for name, value in numbers().items()
            ]
            self.rich.update(self.task, completed=done, numbers="  ".join(shown))

    def __enter__(self) -> Self:
        if self.rich is not None:
            self.rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.rich is not None:
            self.rich.stop()

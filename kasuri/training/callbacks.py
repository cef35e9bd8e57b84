"""Callbacks: what is told about steps and epochs of training, and the bar that shows them."""

import csv
import io
import sys
import time
from pathlib import Path
from typing import Any, Self

from torch import nn

from kasuri.objectives.elbo import Objective, Terms
from kasuri.storage import write_atomically
from kasuri.training.distributed import processes

Row = dict[str, float]


class Callback:
    """Told about every step and epoch of `kasuri.fit`; override what you need.

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

    def state_dict(self) -> dict[str, Any]:
        return {"norm": self.norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norm = float(state["norm"])


class TensorBoard(Callback):
    """The history as TensorBoard events; a resumed run hides what it repeats.

    Args:
        folder: for the events; with several processes the first one writes them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.epoch = 0
        self._writer: Any = None

    def on_epoch(self, objective: Objective, row: Row) -> None:
        if not processes().is_first:
            return
        if self._writer is None:
            self._writer = _summary_writer(self.folder, purge_step=self.epoch + 1)
        self.epoch = int(row["epoch"])
        for name, value in row.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, self.epoch)
        self._writer.flush()

    def on_end(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = int(state["epoch"])


def _summary_writer(folder: Path, purge_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("TensorBoard needs tensorboard: pip install kasuri[train]") from None
    return SummaryWriter(str(folder), purge_step=purge_step)


class CSVLog(Callback):
    """The history as a CSV file, rewritten whole so that a resumed run repeats no line.

    Not more often than every few seconds: epochs of small data sets are shorter than a write.
    """

    def __init__(self, path: Path, every: float = 5.0) -> None:
        self.path, self.every = path, every
        self.rows: list[Row] = []
        self.written = -float("inf")

    def on_epoch(self, objective: Objective, row: Row) -> None:
        self.rows.append(dict(row))
        if time.monotonic() - self.written >= self.every:
            self._write()

    def on_end(self) -> None:
        if self.rows:
            self._write()

    def _write(self) -> None:
        self.written = time.monotonic()
        text = io.StringIO()
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text.getvalue().encode())

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = list(state["rows"])


class Progress:
    """Told how many steps are done, and the latest numbers; this one shows nothing."""

    def step(self, done: int, numbers: Row) -> None:
        """So many steps are done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End."""


class Bar(Progress):
    """A rich progress bar on standard error: title, share, numbers, time left."""

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

    def step(self, done: int, numbers: Row) -> None:
        """Move the bar; rich itself draws at most ten times a second."""
        formats = {name: ".1%" if name == "accuracy" else ".4g" for name in numbers}
        shown = [f"{name} {value:{formats[name]}}" for name, value in numbers.items()]
        self.rich.update(self.task, completed=done, numbers="  ".join(shown))

    def __enter__(self) -> Self:
        self.rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rich.stop()


def progress(show: bool | str | None, total: int) -> Progress:
    """A bar if asked for, or if standard error is a terminal and rich is installed."""
    if show is False or (show is None and not sys.stderr.isatty()):
        return Progress()
    try:
        return Bar(show if isinstance(show, str) else "training", total)
    except ImportError:
        if show:
            raise ImportError(
                "show=True needs rich: pip install kasuri[train], or leave it out"
            ) from None
        return Progress()

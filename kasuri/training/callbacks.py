"""What may be hung into training: things told about steps and epochs."""

import time
from pathlib import Path
from typing import Any

from kasuri.objectives.elbo import Objective, Terms
from kasuri.storage import write_atomically

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


class CSVLog(Callback):
    """The history as a CSV file, rewritten whole so that a resumed run repeats no line.

    Not more often than every few seconds: epochs of small data sets are shorter than a write.
    """

    def __init__(self, path: Path, every: float = 5.0) -> None:
        self.path, self.every = path, every
        self.rows: list[Row] = []
        self.written = -float("inf")

    def on_epoch(self, objective: Objective, row: Row) -> None:
        """Take in a row; write the file if the last time is long enough ago."""
        self.rows.append(dict(row))
        if time.monotonic() - self.written >= self.every:
            self.write()

    def on_end(self) -> None:
        """Write what is missing."""
        if self.rows:
            self.write()

    def write(self) -> None:
        """Rewrite the file."""
        self.written = time.monotonic()
        columns = list(dict.fromkeys(key for one in self.rows for key in one))
        lines = [",".join(columns)]
        lines += [",".join(_cell(one.get(key)) for key in columns) for one in self.rows]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, ("\n".join(lines) + "\n").encode())

    def state_dict(self) -> dict[str, Any]:
        """The rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The rows of the interrupted run."""
        self.rows = list(state["rows"])


class TensorBoardLog(Callback):
    """The history as TensorBoard events; a resumed run hides what it repeats."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.epoch = 0
        self._writer: Any = None

    def on_epoch(self, objective: Objective, row: Row) -> None:
        """One scalar per number of the row."""
        if self._writer is None:
            self._writer = _summary_writer(self.folder, purge_step=self.epoch + 1)
        self.epoch = int(row["epoch"])
        for name, value in row.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, self.epoch)
        self._writer.flush()

    def on_end(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        """The last epoch written."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the last epoch of the checkpoint."""
        self.epoch = int(state["epoch"])


def _summary_writer(folder: Path, purge_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError(
            "tensorboard=True needs tensorboard: pip install kasuri[train], or leave it out"
        ) from None
    return SummaryWriter(str(folder), purge_step=purge_step)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value!r}"

"""Ctrl-C and SIGTERM as a request to stop at the next safe moment."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop (Ctrl-C, SIGTERM); the message says how to go on.

    Args:
        hint: the message.
        where: epoch and step that were reached.
    """

    def __init__(self, hint: str, where: str) -> None:
        super().__init__(hint)
        self.where = where

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, str]]:
        return Interrupted, (self.args[0], self.where)


class Interrupts:
    """Inside the block the first SIGINT or SIGTERM only sets `asked`; a second one interrupts.

    A Python exception in the middle of an optimiser step would leave some parameters updated and
    others not; training looks at `asked` between steps, where its state can be saved.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        """Take over the signals; outside the main thread Python does not allow it, so leave them."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

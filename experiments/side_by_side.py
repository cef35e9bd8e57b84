"""Several runs at the same time, each in one of several processes; all are asked to stop together.

A worker is in a process group of its own, so that Ctrl-C in a terminal reaches this process alone. It passes
the request on once, and SIGTERM likewise: a run that trains saves where it is. A second Ctrl-C interrupts.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from types import FrameType
from typing import Generic, NamedTuple, TypeVar

from experiments.memory import prepare
from kasuri.training.interrupts import Interrupted

Found = TypeVar("Found")


class Ended(NamedTuple, Generic[Found]):
    """What a task gave, or None if it was stopped."""

    found: Found | None


def side_by_side(
    tasks: Sequence[tuple[str, Callable[[], Found]]],
    say: Callable[[str], None],
    show: Callable[[Found], str],
    workers: int,
    threads: int,
) -> list[Found]:
    """What the tasks give, in their order. One that fails does not stop the others.

    Args:
        tasks: with their titles; they must survive pickling.
        say: where to tell what is done.
        show: what to say of what a task gave.
        workers: processes.
        threads: of torch, in each.
    """
    start = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, start, _begin, (threads,)) as pool:
        waiting = {pool.submit(_do, task): title for title, task in tasks}
        try:
            with _terminated_by_interrupt():
                for done in as_completed(waiting):
                    error = done.exception()
                    found = None if error is not None else done.result().found
                    if found is not None:
                        say(show(found))
                    else:
                        say(f"{waiting[done]} {'stopped' if error is None else f'failed: {error}'}")
        except KeyboardInterrupt:
            _stop(pool, list(waiting))
            left = sum(not _is_done(one) for one in waiting)
            where = f"{left} of {len(waiting)} runs"
            raise Interrupted(f"{where} were stopped", where) from None
    failed = [one for one in waiting if not _is_done(one)]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(waiting)} runs failed, as told above; the results of the others are kept"
        ) from failed[0].exception()
    return [found for one in waiting if (found := one.result().found) is not None]


def _is_done(one: "Future[Ended[Found]]") -> bool:
    if one.cancelled() or not one.done() or one.exception() is not None:
        return False
    return one.result().found is not None


def _stop(pool: ProcessPoolExecutor, waiting: "Sequence[Future[Ended[Found]]]") -> None:
    """Ask every worker to stop, and wait until each has."""
    pool.shutdown(wait=False, cancel_futures=True)
    try:
        _pass_on()
        wait(waiting)
    except KeyboardInterrupt:  # once more
        _pass_on()
        wait(waiting)


def _pass_on() -> None:
    for one in multiprocessing.active_children():
        if one.pid is not None:
            os.kill(one.pid, signal.SIGINT)


@contextmanager
def _terminated_by_interrupt() -> Iterator[None]:
    """SIGTERM like Ctrl-C inside the block; outside the main thread Python does not allow it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begin(threads: int) -> None:
    """In a worker, before its first task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing to stop yet
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    prepare(threads)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """Stop when the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os.kill(os.getpid(), signal.SIGINT)


def _do(task: Callable[[], Found]) -> Ended[Found]:
    """In a worker, one task."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return Ended(task())
    except KeyboardInterrupt:
        return Ended(None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

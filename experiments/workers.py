"""Several tasks at the same time, each in one of several processes; all are asked to stop together.

A worker is in a process group of its own, so that Ctrl-C in a terminal reaches this process alone. It passes
the request on, and SIGTERM likewise: a run that trains saves where it is.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed, wait
from typing import Any

import torch

import kasuri

# options of glibc's malloc.h: mmap, trim and top-pad thresholds; glibc takes no larger first one
_MALLOC = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 256 * 2**20}
_WORKING = threading.Lock()  # held while a task runs


def announce(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def run_tasks(
    tasks: Sequence[tuple[str, Callable[[], Any]]], workers: int, threads: int | None
) -> list[Any]:
    """What the tasks give, in their order; with several workers, one that fails does not stop the others.

    Tasks have titles, and survive pickling. One worker is this process; each has so many threads of torch.
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    if workers == 1:
        prepare(threads)
        return [task() for _, task in tasks]
    threads = threads or max(1, torch.get_num_threads() // workers)
    workers = min(workers, len(tasks))
    context = multiprocessing.get_context("spawn")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProcessPoolExecutor(workers, context, _begin, (threads,)) as pool:
        titles = {pool.submit(_do, task): title for title, task in tasks}
        try:
            for future in as_completed(titles):
                if not _succeeded(future):
                    announce(f"{titles[future]} failed: {future.exception()}")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, signal.SIGINT)
            wait(titles)
            left = sum(not _succeeded(future) for future in titles)
            where = f"{left} of {len(titles)} runs"
            raise kasuri.training.Interrupted(f"{where} were stopped", where) from None
        finally:
            signal.signal(signal.SIGTERM, before)
    failed = [future for future in titles if not _succeeded(future)]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(titles)} runs failed, see above; the results of the others are kept"
        ) from failed[0].exception()
    return [future.result() for future in titles]


def prepare(threads: int | None) -> None:
    """Settings of a process that trains and ends: threads of torch, and freed memory stays with it.

    Training takes and frees the same tensors in every step. The C library of Linux gives large freed
    blocks back to the system, which hands them out again page by page, zeroed.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC.items():
            mallopt(option, value)


def _succeeded(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _begin(threads: int | None) -> None:
    """In a worker, before its first task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing to stop yet
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    prepare(threads)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """When the process that started this one is gone, stop what runs, and then this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)
        with _WORKING:
            os._exit(1)  # the pool's own loop would wait for tasks for ever


def _do(task: Callable[[], Any]) -> Any:
    """In a worker, one task; the pool hands on what it raises, an interrupt too."""
    with _WORKING:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return task()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

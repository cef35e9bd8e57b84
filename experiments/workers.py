"""Several runs at the same time, each in a process of its own."""

import contextlib
import ctypes
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

# options of glibc's malloc.h: mmap, trim and top-pad thresholds; glibc takes no larger first one
_MALLOC = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 256 * 2**20}
Task = Callable[[], object]


class RunsFailed(ValueError):
    """Some runs failed; the results of the others are kept."""


def run_tasks(tasks: Mapping[str, Task], workers: int, threads: int | None) -> None:
    """Do all tasks, so many at a time; a loss that is no number does not stop the others.

    Several workers are processes, one for each task, which must survive pickling. Whatever ends one does not
    stop the others, and Ctrl-C in a terminal reaches them all. One worker is this process.
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    if workers == 1:
        prepare(threads)
        done = [_is_done(title, task) for title, task in tasks.items()]
    else:
        threads = threads or max(1, torch.get_num_threads() // workers)
        with ThreadPoolExecutor(workers) as pool:  # a thread waits for a process
            done = list(pool.map(partial(_in_process, threads), tasks, tasks.values()))
    if not all(done):
        failed = f"{done.count(False)} of {len(done)} runs failed, see above"
        raise RunsFailed(f"{failed}; the results of the others are kept")


def _is_done(title: str, task: Task) -> bool:
    try:
        task()
    except ArithmeticError as error:
        print(f"{title} failed: {error}", flush=True)
        return False
    return True


def _in_process(threads: int, title: str, task: Task) -> bool:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work, args=(threads, title, task))
    process.start()
    process.join()
    return process.exitcode == 0


def _work(threads: int, title: str, task: Task) -> None:
    prepare(threads)
    try:
        task()
    except KeyboardInterrupt:
        sys.exit(f"{title} stopped")
    except Exception as error:
        sys.exit(f"{title} failed: {error}")


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

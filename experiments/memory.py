"""Freed memory stays with the process: training takes and frees the same tensors in every step.

The C library of Linux gives large freed blocks back to the system, which hands them out again page by page,
zeroed: time that a training step has better use for.
"""

import ctypes
import sys

import torch

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # numbers of glibc's malloc.h
_LARGEST = 32 * 2**20  # glibc takes no larger threshold
_SPARE = 256 * 2**20


def keep_freed_memory() -> bool:
    """Tell the allocator to keep what is freed; False where it cannot be told.

    Blocks of more than 32 MB go back all the same. Meant for a process that trains and ends, as the command
    `kasuri run` is; a library should not decide this for the program that imports it.

    Examples:
        >>> keep_freed_memory() in (True, False)
        True
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    told = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, _SPARE))
    return all([mallopt(option, value) == 1 for option, value in told])


def prepare(threads: int | None) -> None:
    """Settings of a process that trains and ends.

    Args:
        threads: of torch; as many as torch thinks right if not told.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    keep_freed_memory()

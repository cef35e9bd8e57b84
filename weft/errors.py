"""Words for error messages, and nothing else."""

import difflib
from collections.abc import Iterable
from typing import Any


def near_misses(asked: str, known: Iterable[str]) -> str:
    """A sentence naming what is closest to `asked`, or everything there is if nothing is close.

    Examples:
        >>> near_misses("encodr", ["encoder", "head"])
        "did you mean 'encoder'?"
    """
    known = sorted(set(known))
    close = difflib.get_close_matches(asked, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, known[:12])) + (", ..." if len(known) > 12 else "")
    return f"there is: {shown}" if known else "there is nothing to choose from"


def described(*tensors: Any) -> str:
    """Types and shapes of tensors.

    Examples:
        >>> import torch
        >>> described(torch.zeros(2, 3), torch.ones(4).long())
        'float32 (2, 3), int64 (4,)'
    """
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in tensors
    )


def told(error: BaseException) -> str:
    """Kind and first line of an error, to put into another one's sentence.

    Examples:
        >>> told(ValueError("too long"))
        'ValueError: too long'
    """
    return f"{type(error).__name__}: {error}".splitlines()[0]

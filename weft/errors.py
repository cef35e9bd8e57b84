"""Words for error messages, and nothing else."""

import difflib
from collections.abc import Iterable


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

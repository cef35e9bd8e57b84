"""Tables in Markdown."""

from collections.abc import Sequence


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the heading.

    Examples:
        >>> print(markdown([["", "a"], ["x", "1"]]))
        |  | a |
        | --- | --- |
        | x | 1 |
    """
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])

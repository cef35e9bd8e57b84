"""Published numbers: one JSON file for each source, with notes on what is printed there and its tables."""

import json
from pathlib import Path
from typing import Any


def table(source: str, name: str) -> dict[str, Any]:
    """A table by row and column; a number is [value, standard error or null].

    Examples:
        >>> table("k_tied", "mnist-mlp")["k-tied-2"]["nll"]
        [0.129, 0.0039]
    """
    path = Path(__file__).with_name(f"{source}.json")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["tables"][name]
    return values

"""What is dropped of each layer, beside published shares."""

from collections.abc import Sequence
from typing import Any

from experiments import published
from experiments.report.results import Result
from tools.markdown import markdown

_DROPPED = {
    name: published.table("matrix_normal", f"dropped-{name}")
    for name in ("cifar10-group", "cifar10-group-4x")
}


def sparsity_tables(found: Sequence[Result]) -> str:
    """For each experiment with published shares per layer a table of ours and theirs."""
    parts = []
    for name in dict.fromkeys(one.experiment for one in found):
        plain = name.removeprefix("matrix-normal/").removesuffix("-short")
        dropped = _DROPPED.get(plain, {})
        rows = []
        for one in (one for one in found if one.experiment == name and dropped):
            row = dropped.get(one.variant, {"of": "weights", "per_cent": ()})
            what, theirs = row["of"], row["per_cent"]
            layers = one.figures["sparsity"]["layers"]
            rows.append([one.variant, what, *(f"{_dropped(layer, what):.0f}" for layer in layers)])
            if theirs:
                cells = [f"{one.variant}, published", what, *map(str, theirs)]
                rows.append([*cells, *[""] * (len(layers) - len(theirs))])
        if rows:
            head = ["", "of", *(f"conv {i}" for i in range(1, len(rows[0]) - 2)), "dense"]
            parts += [f"Per cent dropped of each layer, {name}", markdown([head, *rows])]
    return "\n\n".join(parts)


def _dropped(layer: dict[str, Any], what: str) -> float:
    return 100 * (1 - layer[f"{what}_left"] / layer[what])

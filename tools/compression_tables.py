"""What compression leaves: the widths of the networks, run by run, beside published ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.markdown import markdown
from weft.experiments.compression_published import LENET5
from weft.experiments.lenet5_counts import LeNet5
from weft.report.results import Result

_HEAD = ["", "seed", "left", "weights", "MACs and biases", "error (%)"]
_AS_PRINTED = ["weights as the paper counts", "FLOPs as the paper counts"]


def compression_tables(found: Sequence[Result]) -> str:
    """For each experiment a table of the networks that were chosen."""
    parts = []
    for name in dict.fromkeys(one.experiment for one in found):
        head, rows = _HEAD, [_row(one) for one in found if one.experiment == name]
        if "lenet5" in name:
            head, rows = [*_HEAD, *_AS_PRINTED], [*rows, *_published()]
            rows = [[*row, *_as_printed(row[2])] for row in rows]
        parts += [f"What is left in {name}", markdown([head, *rows])]
    return "\n\n".join(parts)


def _row(one: Result) -> list[str]:
    frontier: Mapping[str, Any] = one.figures["frontier"]
    point = frontier["points"][frontier["chosen"]]
    return [
        one.variant,
        f"{one.seed}",
        point["left"],
        f"{point['weights']:,}",
        f"{point['flops']:,}",
        f"{100 * point['error']:.2f}",
    ]


def _as_printed(left: str) -> list[str]:
    """The counts of the table of the RDP paper, with a layer that does not exist and without the last."""
    widths = LeNet5(*map(int, left.split("-")))
    return [f"{widths.table_weights:,}", f"{widths.table_flops:,}"]


def _published() -> list[list[str]]:
    rows = []
    for name, one in LENET5.items():
        widths = one.widths
        left = f"{widths.n1}-{widths.n2}-{widths.n3}-{widths.n4}"
        sizes = f"{widths.weights:,}", f"{widths.macs_and_biases:,}"
        rows.append([f"{name}, published", "", left, *sizes, f"{one.error_percent:.1f}"])
    return rows

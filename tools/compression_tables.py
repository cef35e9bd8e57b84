"""What compression leaves: the widths of the networks, run by run, beside published ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments import published
from experiments.compression import LENET5, LeNet5Counts
from experiments.report.results import Result
from tools.markdown import markdown

# shares of weights, inputs and outputs that were set to 0 there; units stay where some of theirs are left
_DROPPED = {
    variant: row["per_cent"]
    for variant, row in published.table("matrix_normal", "dropped-cifar10-group").items()
} | {
    f"matrix-normal-4x{'' if side == 'free' else f'-{side}'}": row["per_cent"]
    for side, row in published.table("matrix_normal", "dropped-cifar10-group-4x").items()
}
_HEAD = ["", "seed", "left", "weights", "MACs and biases", "error (%)", "of validation data (%)"]
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
        if "vgg" in name:
            runs = [one for one in found if one.experiment == name]
            dropped = [_dropped(one) for one in runs]
            theirs = dict.fromkeys(one.variant for one in runs if one.variant in _DROPPED)
            dropped += [[f"{one}, published", *map(str, _DROPPED[one]), ""] for one in theirs]
            convolutions = (f"conv {i}" for i in range(1, len(dropped[0]) - 1))
            parts += [
                f"Per cent of the weights of each layer that are gone, {name}",
                markdown([["", *convolutions, "dense"], *dropped]),
            ]
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
        f"{100 * point['valid_error']:.2f}" if "valid_error" in point else "",
    ]


def _dropped(one: Result) -> list[str]:
    """Shares of the weights of every layer."""
    frontier: Mapping[str, Any] = one.figures["frontier"]
    left = frontier["points"][frontier["chosen"]]["layers"]
    shares = [1 - after / before for after, before in zip(left, frontier["layers"], strict=True)]
    return [f"{one.variant}, seed {one.seed}", *(f"{100 * share:.0f}" for share in shares)]


def _as_printed(left: str) -> list[str]:
    """The counts of the table of the RDP paper, with a layer that does not exist and without the last."""
    widths = LeNet5Counts(*map(int, left.split("-")))
    return [f"{widths.table_weights:,}", f"{widths.table_flops:,}"]


def _published() -> list[list[str]]:
    rows = []
    for name, one in LENET5.items():
        left = "-".join(map(str, one["widths"]))
        counts = LeNet5Counts(*one["widths"])
        sizes = f"{counts.weights:,}", f"{counts.macs_and_biases:,}"
        rows.append([f"{name}, published", "", left, *sizes, f"{one['error_percent']:.1f}", ""])
    return rows

"""Tables of the papers' pages that are no comparison of variants."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.compression import LENET5, lenet5_counts
from experiments.published import table as published_table
from experiments.report import Result, compare
from experiments.report.json_numbers import short
from experiments.report.score_tables import column
from experiments.report.sweeps import SweepCurve, pooled
from experiments.report.text_tables import markdown_grid

_DROPPED = {
    name: published_table("matrix_normal", f"dropped-{name}")
    for name in ("cifar10-group", "cifar10-group-4x")
}


def by_experiment(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    for name in dict.fromkeys(result.experiment for result in results):
        yield name, [result for result in results if result.experiment == name]


def compression_tables(results: Sequence[Result]) -> str:
    """The networks that were chosen, run by run, beside published ones."""
    parts = []
    for name, runs in by_experiment(results):
        head = ["", "seed", "left", "weights", "MACs and biases", "error (%)"]
        head += ["of validation data (%)"]
        rows = [_chosen(run) for run in runs]
        if "lenet5" in name:
            head += ["weights as the paper counts", "FLOPs as the paper counts"]
            rows = [[*row, *_counted(row[2])[2:]] for row in rows]
            for method, row in LENET5.items():
                left, error = "-".join(map(str, row["widths"])), f"{row['error_percent']:.1f}"
                ours, theirs = _counted(left)[:2], _counted(left)[2:]
                rows.append([f"{method}, published", "", left, *ours, error, "", *theirs])
        parts += [f"What is left in {name}", markdown_grid([head, *rows])]
        if "vgg" in name:
            parts += [
                f"Per cent of the weights of each layer that are gone, {name}",
                _gone(runs),
            ]
    return "\n\n".join(parts)


def _counted(left: str) -> list[str]:
    """Weights and operations of a LeNet-5 with these widths, counted right and as the paper does."""
    return [f"{count:,}" for count in lenet5_counts(*map(int, left.split("-"))).values()]


def _chosen(run: Result) -> list[str]:
    frontier: Mapping[str, Any] = run.figures["frontier"]
    point = frontier["points"][frontier["chosen"]]
    return [
        run.variant,
        f"{run.seed}",
        point["left"],
        f"{point['weights']:,}",
        f"{point['flops']:,}",
        f"{100 * point['error']:.2f}",
        f"{100 * point['valid_error']:.2f}" if "valid_error" in point else "",
    ]


def _gone(runs: Sequence[Result]) -> str:
    """Shares of the weights of every layer; where they were set to 0 in the paper, units stay."""
    group, wide = _DROPPED.values()
    published = group | {
        "matrix-normal-4x": wide["free"],
        "matrix-normal-4x-inputs": wide["inputs"],
        "matrix-normal-4x-outputs": wide["outputs"],
    }
    rows = []
    for run in runs:
        frontier: Mapping[str, Any] = run.figures["frontier"]
        left = frontier["points"][frontier["chosen"]]["layers"]
        pairs = zip(left, frontier["layers"], strict=True)
        gone = [f"{100 * (1 - after / before):.0f}" for after, before in pairs]
        rows.append([f"{run.variant}, seed {run.seed}", *gone])
    for variant in dict.fromkeys(run.variant for run in runs if run.variant in published):
        rows.append([f"{variant}, published", *map(str, published[variant]["per_cent"]), ""])
    return markdown_grid([["", *_layers(len(rows[0]) - 1)], *rows])


def _layers(count: int) -> list[str]:
    return [*(f"conv {i}" for i in range(1, count)), "dense"]


def sparsity_tables(results: Sequence[Result]) -> str:
    """For each experiment with published shares per layer a table of ours and theirs."""
    parts = []
    for name, runs in by_experiment(results):
        published = _DROPPED.get(name.removeprefix("matrix-normal/").removesuffix("-short"), {})
        rows = []
        for run in runs if published else []:
            row = published.get(run.variant, {"of": "weights", "per_cent": ()})
            what, theirs = row["of"], row["per_cent"]
            layers = run.figures["sparsity"]["layers"]
            dropped = [100 * (1 - layer[f"{what}_left"] / layer[what]) for layer in layers]
            rows.append([run.variant, what, *(f"{share:.0f}" for share in dropped)])
            if theirs:
                padding = [""] * (len(layers) - len(theirs))
                rows.append([f"{run.variant}, published", what, *map(str, theirs), *padding])
        if rows:
            head = ["", "of", *_layers(len(rows[0]) - 2)]
            parts += [
                f"Per cent dropped of each layer, {name}",
                markdown_grid([head, *rows], words=2),
            ]
    return "\n\n".join(parts)


def sweep_tables(results: Sequence[Result]) -> str:
    """For each experiment a table of all scores, or with several series a table of series for each score.

    Best values along a series are bold. Behind a stroke: what is published, or exact.

    Raises:
        ValueError: a result does not say what was varied.
    """
    parts = []
    for table in compare(results):
        sweep = pooled(table.rows)
        if not sweep.scores:
            raise ValueError(f"{table.name}: its results do not say what was varied")
        parts.append(f"### {table.name}: {table.title}")
        if len(sweep.series) == 1:
            (name,) = sweep.series
            scores = {column(s).title: (s, curves[name]) for s, curves in sweep.scores.items()}
            parts.append(_sweep(sweep.x, scores))
            continue
        for score, series in sweep.scores.items():
            curves = {name: (score, curve) for name, curve in series.items()}
            parts += [column(score).title, _sweep(sweep.x, curves)]
    return "\n\n".join(parts)


def _sweep(x: str, columns: Mapping[str, tuple[str, SweepCurve]]) -> str:
    places = sorted({place for _, curve in columns.values() for place in curve.measured})
    cells = [[f"{place:,g}" for place in places]]
    for score, curve in columns.values():
        known, means = column(score), curve.means()
        losses = [known.loss(mean) for mean in means.values()] if known.better else []
        shown = []
        for place in places:
            text = short(known.factor * means[place]) if place in means else ""
            best = losses and place in means and known.loss(means[place]) == min(losses)
            beside = short(known.factor * curve.beside[place]) if place in curve.beside else ""
            shown.append((f"**{text}**" if best else text) + (f" / {beside}" if beside else ""))
        cells.append(shown)
    return markdown_grid([[x, *columns], *zip(*cells, strict=True)])
